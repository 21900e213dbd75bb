"""Job history: lands the events of the streams in a Delta table, and publishes hourly metrics of them.

A batch of events is one version of the table (:mod:`.delta`), with the positions that it has reached: it is in exactly
once. Metrics live in the database alone. It stores the number of the last batch whose hours it has, in the transaction
that stores the hours; the files of later batches name the hours that have to be computed. A run that dies at any step
is therefore completed by the next one, and a database that was restored from a copy gets the hours it lacks.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import pyarrow as pa

from ..core.events import BEGINNING, Lag, lag
from ..core.inputs import short
from . import event_plan as plan
from .delta import BATCH, TABLE, EventFile, EventTable, number_of
from .errors import PipelineError, plain_errors
from .options import DEFAULT_PREFIX, address_of, open_broker
from .transforms import attempts, hours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..core.broker import Broker

log = logging.getLogger(__name__)

#: the next events, and the positions behind them; None = there are no more
Batch: TypeAlias = "tuple[DataFrame, plan.Positions] | None"
#: made for a run, and then called with the stored positions for one batch after another
Source: TypeAlias = "Callable[[SparkSession], Callable[[plan.Positions], Batch]]"
#: days whose metrics are computed at once
DAYS_AT_ONCE: Final = 7
_SIGNS: Final = frozenset("*?[]{}\\")


class HoursStore(Protocol):
    """Database of the metrics."""

    def published(self, history: str) -> int:
        """Return the number of the last batch whose hours are stored; -1 for none."""

    def publish(self, history: str, batch: int | None, metrics: pa.Table, selected: Collection[datetime]) -> None:
        """Replace the metrics of some hours, and store the number of the batch unless it is None; all or nothing.

        Args:
            history: id of the history.
            metrics: all metrics of these hours; the columns of the model ``HourlyStat``.
            selected: starts of the hours.
        """


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """Location, inputs and retention of a history."""

    #: a path, or a URL that Spark and deltalake can write to (:data:`.delta.SCHEMES`)
    root: str
    #: address of Redis: a URL, or JSON for the core's ``RedisConfig.parse``
    redis: str | None = None
    #: or the name of an environment variable that holds the same; Spark's plans do not show its value
    redis_env: str | None = None
    prefix: str = DEFAULT_PREFIX
    #: queues to read now; empty = every one, future ones included. The others keep their positions
    queues: tuple[str, ...] = ()
    #: task or queue → seconds by which an attempt may be late; "*" = all others
    sla: dict[str, float] = field(default_factory=lambda: {"*": 60.0})
    #: events per batch
    max_rows: int = 500_000
    #: False: a gap in the streams is logged, and reading continues after it
    fail_on_loss: bool = True
    #: seconds to wait for another process on the same history
    wait_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.root or _SIGNS & set(self.root):
            raise PipelineError(
                f"root must be a folder without any of * ? [ ] {{ }} \\ in its name, got {short(self.root)}"
            )

    def address(self) -> dict[str, str]:
        """Return the options that address Redis."""
        return address_of(self.redis, self.redis_env, self.prefix)


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a pipeline run."""

    #: events landed; for a backfill, events of the days
    rows: int = 0
    batches: int = 0
    #: days of which hours were computed and published
    days: tuple[date, ...] = ()
    seconds: float = 0.0


#: callback with the number of days done and of all days, called at the beginning and after each portion
OnDays: TypeAlias = Callable[[int, int], object]


def ignore(*_: object) -> None:
    """Do nothing: the default of a callback."""


class History:
    """History below one root, used by one process at a time.

    Args:
        spark: a session with the formats registered; None = for everything that only reads or deletes.
        store: database of the metrics; None = none are computed.
        source: another source of events than Redis.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        options: HistoryOptions,
        store: HoursStore | None = None,
        *,
        source: Source | None = None,
    ) -> None:
        self.options = options
        self.table = EventTable(options.root)
        self.spark: Any = spark
        self._store = store
        self._source = source or (lambda session: RedisEvents(session, options))

    def run(self, on_rows: Callable[[int], object] = ignore) -> Summary:
        """Process the events that exist now, then return.

        Args:
            on_rows: called with the number of landed events after each batch.

        Raises:
            EventsLost: events were trimmed before they were read.
            PipelineError: any other failure; the message says what to do.
        """
        began, rows, batches = time.monotonic(), 0, 0
        with plain_errors(), self.table.alone(self.options.wait_s):
            read = self._source(self.spark)
            while True:
                table = self.table.open()
                found = read(self.table.positions(table))
                if found is None:
                    break
                frame, positions = found
                batch = number_of(table, BATCH) + 1
                # A source has a task for each shard; one file of each task would be too small.
                files = self.table.write(frame.coalesce(self.spark.sparkContext.defaultParallelism), batch)
                self.table.commit(table, files, batch, positions)
                rows += sum(json.loads(file.stats)["numRecords"] for file in files)
                batches += 1
                on_rows(rows)
            pending = self.pending()
            last = max((file.batch for file in pending), default=None)
            days = self._publish({file.hour for file in pending}, last)
        return Summary(rows, batches, days, time.monotonic() - began)

    def pending(self) -> list[EventFile]:
        """Return the files of batches whose hours are not published yet; none of days that have lost events by age."""
        table = self.table.latest()
        if table is None or self._store is None:
            return []
        published = self._store.published(str(table.metadata().id))
        files = [file for file in self.table.files() if file.batch > published]
        closed = sorted({file.day for file in files if file.day < self.table.closed_before()})
        if closed:
            log.warning(
                "events arrived for closed days, of which older events were deleted by age; their metrics stay as they "
                "are: %s",
                ", ".join(map(str, closed)),
            )
        return [file for file in files if file.day not in closed]

    def backfill(self, first: date, last: date, on_days: OnDays = ignore) -> Summary:
        """Compute and publish the metrics of the days ``first`` to ``last`` again. Days without kept events stay.

        Args:
            on_days: progress callback.

        Raises:
            PipelineError: the days are in the wrong order, or none of them has kept events.
        """
        if last < first:
            raise PipelineError(f"The last day, {last}, is before the first, {first}")
        began = time.monotonic()
        with plain_errors(), self.table.alone(self.options.wait_s):
            first = max(first, self.table.closed_before())
            files = [file for file in self.table.files() if first <= file.day <= last]
            if not files:
                raise PipelineError(f"No events from {first} to {last} are kept, so nothing can be computed")
            selected = {_start(file.day) + timedelta(hours=hour) for file in files for hour in range(24)}
            days = self._publish(selected, None, on_days)
        return Summary(sum(file.rows for file in files), 0, days, time.monotonic() - began)

    def _publish(self, selected: Collection[datetime], batch: int | None, on_days: OnDays = ignore) -> tuple[date, ...]:
        """Publish the metrics of some hours, a few days at once; the last portion carries the number of the batch."""
        days = sorted({hour.date() for hour in selected})
        on_days(0, len(days))
        for start in range(0, len(days), DAYS_AT_ONCE):
            done = days[: start + DAYS_AT_ONCE]
            part = {hour for hour in selected if hour.date() in days[start : start + DAYS_AT_ONCE]}
            events = self.table.read(self.spark, part)
            metrics = _in_utc(hours(attempts(events, self.options.sla)).toArrow())
            table = self.table.latest()
            if self._store is not None and table is not None:
                is_last = len(done) == len(days)
                self._store.publish(str(table.metadata().id), batch if is_last else None, metrics, part)
            on_days(len(done), len(days))
        return tuple(days)

    def compact(self, older_than_days: float = 2, *, on_days: OnDays = ignore) -> tuple[date, ...]:
        """Merge the files of each hour of the days that ended ``older_than_days`` ago, and delete replaced files.

        A day with hours that are not published yet is left to the next time.

        Args:
            on_days: progress callback.

        Returns:
            The days that had several files for an hour.
        """
        with self.table.alone(self.options.wait_s):
            pending, counts = {file.day for file in self.pending()}, Counter(file.hour for file in self.table.files())
            several = {hour.date() for hour, count in counts.items() if count > 1}
            days = sorted(day for day in several - pending if day < first_kept(older_than_days))
            on_days(0, len(days))
            for done, day in enumerate(days, 1):
                self.table.compact(day)
                on_days(done, len(days))
            self.table.vacuum()
            return tuple(days)

    def purge(self, keep_days: float | None) -> tuple[date, ...]:
        """Delete the events of days that ended longer ago; None = keep all. Return these days.

        Their files leave the disk a day later, with the next purge or compaction.
        """
        with self.table.alone(self.options.wait_s):
            days = self.outdated(keep_days)
            if keep_days is not None:
                self.table.delete_before(first_kept(keep_days))
            self.table.vacuum()
            return days

    def outdated(self, keep_days: float | None) -> tuple[date, ...]:
        """Return the days that :meth:`purge` deletes."""
        first = date.min if keep_days is None else first_kept(keep_days)
        return tuple(sorted({file.day for file in self.table.files() if file.day < first}))

    def lag(self, broker: Broker) -> list[Lag]:
        """Return how far the history is behind in each shard. Needs no Spark."""
        return lag(broker, self.table.positions(self.table.latest()))


def first_kept(keep_days: float) -> date:
    """Return the first day to keep: the first one that ended less than ``keep_days`` ago, in UTC."""
    return (datetime.now(UTC) - timedelta(days=keep_days)).date()


def read(spark: SparkSession, table: str) -> DataFrame:
    """Return the events of a history, for a Spark without a reader for Delta tables.

    Args:
        spark: any session. The rows are those of the latest version, even if the table changes meanwhile.
        table: path or URL of the table, like ``/srv/history/events``.
    """
    root, _, name = table.rstrip("/").rpartition("/")
    if name != TABLE:
        raise PipelineError(f"a history has the table {TABLE}, not {short(name)}; attempts are a query over it")
    return EventTable(root or ".").read(spark)


def _start(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _in_utc(metrics: Any) -> pa.Table:
    place = metrics.schema.get_field_index("hour")
    return metrics.set_column(place, "hour", metrics.column("hour").cast(pa.timestamp("us", tz="UTC")))


class RedisEvents:
    """Source of a history: the streams of a Redis, up to where they end at the first call."""

    def __init__(self, spark: SparkSession, options: HistoryOptions) -> None:
        self._spark = spark
        self._options = options
        self._target: plan.Positions | None = None

    def __call__(self, stored: plan.Positions) -> Batch:
        """Return the next events.

        Raises:
            EventsLost: unread events are gone, and the options do not allow that.
        """
        options = self._options
        with open_broker(options.address()) as broker:
            planner = plan.Planner(broker, options.queues, fails=options.fail_on_loss)
            if self._target is None:
                planner.fix_target()
                self._target = planner.target
            planner.target = self._target
            positions = stored or planner.first("earliest")
            begin, end = planner.batch(positions, options.max_rows)
        # Positions also change by a loss that is accepted.
        if {**begin, **end} == begin and all(positions.get(place, BEGINNING) == at for place, at in begin.items()):
            return None
        frame = (
            self._spark.read.format("delayq.events")
            .options(**options.address(), failOnDataLoss=str(options.fail_on_loss).lower())
            .options(startingOffset=json.dumps(plan.to_offsets(begin)), endingOffset=json.dumps(plan.to_offsets(end)))
        )
        return frame.load(), {**positions, **begin, **end}
