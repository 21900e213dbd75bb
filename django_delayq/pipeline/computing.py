"""Computation of attempts and hourly metrics for the days and hours whose events changed.

The output for an hour depends only on the events of that hour, the ``sla`` and the expectations, because the time of an
event is part of its key. If the previous pipeline run completed, only the hours that received events in this run are
read and written again; the metrics of the other hours of those days are copied unchanged. A day left pending by an
interrupted run is computed completely, whatever its present state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import Observation
from pyspark.sql import functions as F

from . import quality
from .day_hours import DayHours, lies_in, parts, whole
from .history_options import HistoryOptions
from .schemas import EVENTS
from .tables import NO_DAY, Table
from .transforms import HOURS, attempts, day_of, hours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .landing import Landed

#: maximum number of metric rows that the driver holds at once, unless a single day has more
METRICS_AT_ONCE: Final = 50_000


@dataclass(frozen=True, slots=True)
class Computing:
    """Computed tables of a history."""

    #: all tables by name
    tables: Mapping[str, Table]
    options: HistoryOptions

    def hours_of(
        self, days: Iterable[date], touched: Mapping[date, Collection[int]], interrupted: Collection[date]
    ) -> DayHours:
        """Return the days and hours to compute.

        Args:
            touched: the hours of a day that changed; a missing day means all of its hours.
            interrupted: days that an earlier pipeline run left pending.
        """
        days, whole_ones = list(days), {NO_DAY, *interrupted}
        computed = {*self.tables["hours"].days()} & {*self.tables["attempts"].days()} if days else set()
        return {
            day: frozenset(touched[day]) if day in touched and day in computed - whole_ones else None for day in days
        }

    def compute(self, spark: SparkSession, selected: DayHours, counted: Landed | None = None) -> None:
        """Write attempts, quarantine and hourly metrics.

        Args:
            counted: receives the number of attempts.
        """
        replaced = {name: table.replaced() for name, table in self.tables.items()}

        def replace(name: str, rows: DataFrame | None, selected: DayHours) -> None:
            table = self.tables[name]
            table.replace([] if rows is None else table.write(rows), selected, replaced[name])

        expectations = self.options.expectations
        attempts_of = attempts(self.tables["events"].read(spark, selected).select(*EVENTS.names), self.options.sla)
        quality.refuse_broken(attempts_of, expectations)
        seen = Observation()
        judged = attempts_of.withColumn(quality.REASON, quality.reason_of(expectations))
        counters = [F.count(F.lit(1)).alias("rows"), *quality.counters(expectations)]
        is_good = F.col(quality.REASON).isNull()
        replace("attempts", judged.observe(seen, *counters).where(is_good).drop(quality.REASON), selected)
        counts = seen.get
        if counted is not None:
            counted.add(counts, expectations)
        replace("quarantine", judged.where(~is_good) if counts.get("bad") else None, selected)
        replace("hours", self._all_hours(spark, selected), whole(selected))

    def _all_hours(self, spark: SparkSession, selected: DayHours) -> DataFrame:
        """Return all metrics of the days: those computed now, and those of their other hours."""
        computed = hours(self.tables["attempts"].read(spark, selected))
        partly = {day: some for day, some in selected.items() if some is not None}
        if not partly:
            return computed
        others = self._hours(spark, list(partly)).where(~lies_in(F.col("hour"), partly))
        return computed.unionByName(others)

    def _hours(self, spark: SparkSession, days: Sequence[date]) -> DataFrame:
        return self.tables["hours"].read(spark, whole(days)).select(*HOURS.names)

    def metrics(self, spark: SparkSession, days: Sequence[date]) -> Iterator[tuple[pa.Table, list[date]]]:
        """Yield the metrics of some days in portions of whole days that fit the driver's memory."""
        for some in self._portions(spark, days):
            yield self._table(spark, some), some

    def _portions(self, spark: SparkSession, days: Sequence[date]) -> Iterable[list[date]]:
        if len(days) < 2:
            return [list(days)]
        by_day = self._hours(spark, days).groupBy(day_of(F.col("hour"))).count()
        return parts(days, {day: int(count) for day, count in by_day.collect()}, len(days), METRICS_AT_ONCE)

    def _table(self, spark: SparkSession, days: Sequence[date]) -> pa.Table:
        table: Any = self._hours(spark, days).toArrow()
        moment = table.schema.get_field_index("hour")
        return table.set_column(moment, "hour", table.column("hour").cast(pa.timestamp("us", tz="UTC")))
