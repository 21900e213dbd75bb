"""Computation of attempts and hourly metrics for the days and hours whose events changed.

The output for an hour depends only on the events of that hour, the ``sla`` and the expectations, because the time of an
event is part of its key. If the previous pipeline run completed, only the hours that received events in this run are
read and written again; the metrics of the other hours of those days are copied unchanged. A day left pending by an
interrupted run is computed completely, whatever its present state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from . import quality
from .lake import NO_DAY, Lake
from .options import HistoryOptions
from .tables import Table, table_of
from .transforms import attempts, day_of, hours
from .wanted import Wanted, lies_in, parts, whole

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from .landing import Landed

#: maximum number of metric rows that the driver holds at once, unless a single day has more
FIGURES_AT_ONCE: Final = 50_000


class Computing:
    """Computed tables of a history."""

    def __init__(self, lake: Lake, options: HistoryOptions) -> None:
        self._lake = lake
        self._options = options
        self.tables: dict[str, Table] = {
            name: table_of(lake, name, options.format) for name in ("attempts", "hours", "quarantine")
        }

    def wanted(self, days: Iterable[date], touched: Mapping[date, Collection[int]], died: Collection[date]) -> Wanted:
        """Return the days and hours to compute.

        Args:
            days: days that have changed.
            touched: the hours of a day that changed; a missing day means all of its hours.
            died: days that an earlier pipeline run left pending.
        """
        days, whole_ones = list(days), {NO_DAY, *died}
        figured = set(self.tables["hours"].days()) if days else set()
        by_hour = self.tables["attempts"].is_by_hour
        return {
            day: frozenset(touched[day])
            if day in touched and day not in whole_ones and day in figured and by_hour(day)
            else None
            for day in days
        }

    def compute(self, wanted: Wanted, counted: Landed | None = None) -> None:
        """Write attempts, quarantine and hourly metrics.

        Args:
            counted: receives the number of attempts.
        """
        expectations = self._options.expectations
        runs = attempts(self._lake.events(wanted), self._options.sla)
        quality.refuse_broken(runs, expectations)
        seen = Observation()
        judged = runs.withColumn(quality.REASON, quality.reason_of(expectations)).observe(
            seen, F.count(F.lit(1)).alias("rows"), *quality.counters(expectations)
        )
        is_good = F.col(quality.REASON).isNull()
        self.tables["attempts"].replace(judged.where(is_good).drop(quality.REASON), wanted)
        self._lake.step("attempts written")
        found = seen.get
        if counted is not None:
            counted.add(found, expectations)
        if found.get("bad"):
            bad = runs.withColumn(quality.REASON, quality.reason_of(expectations)).where(~is_good)
            self.tables["quarantine"].replace(bad, wanted)
        else:
            self.tables["quarantine"].drop(wanted)
        self._lake.step("quarantine written")
        self.tables["hours"].replace(self._figured(wanted), whole(wanted))
        self._lake.step("hours written")

    def _figured(self, wanted: Wanted) -> DataFrame:
        """Return all metrics of the days: those computed now, and those of their other hours."""
        found = hours(self.tables["attempts"].read(wanted))
        partly = {day: some for day, some in wanted.items() if some is not None}
        if not partly:
            return found
        others = self.tables["hours"].read(whole(partly)).where(~lies_in(F.col("hour"), partly))
        return found.unionByName(others)

    def figures(self, days: Sequence[date]) -> Iterator[tuple[pa.Table, list[date]]]:
        """Yield the metrics of some days in portions of whole days that fit the driver's memory."""
        for some in self._portions(days):
            yield self._table(some), some

    def _portions(self, days: Sequence[date]) -> Iterable[list[date]]:
        if len(days) < 2:
            return [list(days)]
        by_day = self.tables["hours"].read(whole(days)).groupBy(day_of(F.col("hour"))).count()
        return parts(days, {day: int(count) for day, count in by_day.collect()}, len(days), FIGURES_AT_ONCE)

    def _table(self, days: Sequence[date]) -> pa.Table:
        import pyarrow as pa

        table: Any = self.tables["hours"].read(whole(days)).toArrow()
        moment = table.schema.get_field_index("hour")
        return table.set_column(moment, "hour", table.column("hour").cast(pa.timestamp("us", tz="UTC")))
