"""Job history: lands events, computes attempts and hourly metrics from them, and publishes the metrics.

Every change of a table is one version (:mod:`.versions`). The next pipeline run repairs what an interrupted one left,
and arrives at the same metrics:

=========================================  ===================================================================
interrupted                                recovery
=========================================  ===================================================================
while files are written                    no version has them; a batch is read again, and days stay pending
after a batch is landed                    the next run sees that it is in, and does not land it again
before attempts and metrics are complete   the days are marked as pending: the next run computes them completely
before or while metrics are published      the same, and all metrics of the day are published again
before the mark is deleted                 the day is computed and published once more, with the same metrics
=========================================  ===================================================================
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

from . import quality, upkeep
from .computing import Computing
from .day_hours import DayHours, parts, whole
from .errors import PipelineError
from .history_guard import POLL_SECONDS, stoppable
from .history_options import HistoryOptions
from .landing import Landed, Landing, Source, events_source
from .status import Status, status_of
from .store import PendingDays, Store, read_offsets
from .summary import Summary
from .tables import ATTEMPTS, Step, ignore, read, tables_of
from .upkeep import DaysDone, OnDays, Purge

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from ..core.broker import Broker

log = logging.getLogger(__name__)

#: callback for the metrics of some days; the table contains all metrics of these days
OnHours = Callable[["pa.Table", list[date]], object]
#: maximum number of days computed at once, and of attempts in a backfill unless a single day has more
DAYS_AT_ONCE: Final = 31
ROWS_AT_ONCE: Final = 500_000

__all__ = ["DaysDone", "History", "HistoryOptions", "OnDays", "OnHours", "Purge", "Status", "Summary", "read"]


def _never() -> bool:
    return False


class History:
    """History below one root, used by one process at a time; others wait, and log a warning if it takes long.

    Args:
        spark: a session, with the formats registered unless ``source`` is given; None = for :meth:`status` and
            :meth:`purge`, which do not need Spark.
        source: factory for the stream of events; None = the format ``delayq.events``.
        step: called with the name of each completed step.
    """

    def __init__(
        self, spark: SparkSession | None, options: HistoryOptions, *, source: Source | None = None, step: Step = ignore
    ) -> None:
        self.options = options
        self.store = Store(options.root)
        self.tables = tables_of(self.store, step)
        self._spark = spark
        self._source = source
        self._step = step
        self._pending = PendingDays(self.store)
        self._computing = Computing(self.tables, options)
        self._checked = False

    @property
    def spark(self) -> SparkSession:
        """Session of Spark.

        Raises:
            PipelineError: the history has no session.
        """
        if self._spark is None:
            raise PipelineError("Reading and writing the history needs a session of Spark")
        return self._spark

    # --- operations

    def run(self, on_hours: OnHours = ignore, *, stop: Callable[[], bool] = _never, patient: bool = False) -> Summary:
        """Process the events that exist now, then return.

        Args:
            on_hours: called on the driver with the metrics (columns of the model ``HourlyStat``) of some days; by
                default they stay in the tables only. An exception in it is raised to the caller, and the next run
                publishes these days.
            stop: polled by a thread; the run ends within a second after it returns True.
            patient: wait for another process that is working on the history, however long it takes.

        Raises:
            EventsLost: events were trimmed before they were read.
            PipelineError: any other failure; the message says what to do.
        """
        began, landed, published = time.monotonic(), Landed(), list[date]()
        with (
            stoppable(self.spark, stop) as stopping,
            self.store.alone(self.options.wait_s, stopping.is_set, patient=patient),
        ):
            interrupted = self._pending.see()
            landing = self._landing()
            landed = landing.landed
            landing.run(stopping.is_set)
            self._step("landed")
            days = self._pending.open_days()
            selection = self._computing.hours_of(days, landed.hours, interrupted)
            for part in parts(days, {}, DAYS_AT_ONCE, 0):
                self._publish({day: selection[day] for day in part}, on_hours, stopping, published)
        return self._summary(landed, published, began, stopping.is_set())

    def stream(
        self,
        interval_s: float,
        on_hours: OnHours = ignore,
        stop: Callable[[], bool] = _never,
        *,
        on_summary: Callable[[Summary], object] = ignore,
    ) -> int:
        """Run repeatedly until ``stop`` returns True, and return within a second after that.

        If another process is working on the history, wait for it, however long it takes.

        Args:
            interval_s: seconds between the starts of two runs.
            on_summary: called after each run.

        Returns:
            The number of runs.
        """
        runs = 0
        while not stop():
            began = time.monotonic()
            on_summary(self.run(on_hours, stop=stop, patient=True))
            runs += 1
            while not stop() and (left := began + interval_s - time.monotonic()) > 0:
                time.sleep(min(POLL_SECONDS, left))
        return runs

    def backfill(
        self,
        first: date,
        last: date,
        on_hours: OnHours = ignore,
        *,
        stop: Callable[[], bool] = _never,
        on_days: OnDays = ignore,
    ) -> Summary:
        """Recompute attempts and metrics of the days ``first`` to ``last`` from the landed events.

        Days without kept events stay unchanged.

        Args:
            on_days: progress callback.

        Raises:
            PipelineError: the days are in the wrong order, or none of them has kept events.
        """
        if last < first:
            raise PipelineError(f"The last day, {last}, is before the first, {first}")
        began, counted, published = time.monotonic(), Landed(), list[date]()
        with stoppable(self.spark, stop) as stopping, self.store.alone(self.options.wait_s, stopping.is_set):
            closed = self.store.closed_before()
            days = [day for day in self.tables["events"].days() if first <= day <= last and day >= closed]
            if not days:
                raise PipelineError(f"No events from {first} to {last} are kept, so nothing can be computed")
            rows = upkeep.count_attempts(self.spark, self.tables["events"], days)
            self._pending.note(days)
            of_rows = sum(rows.values())
            on_days(DaysDone(0, len(days), 0, of_rows))
            for part in parts(days, rows, DAYS_AT_ONCE, ROWS_AT_ONCE):
                self._publish(whole(part), on_hours, stopping, published, counted)
                on_days(DaysDone(len(published), len(days), sum(rows.get(day, 0) for day in published), of_rows))
        return self._summary(counted, published, began, stopping.is_set())

    def compact(self, older_than_days: float = 2, *, on_days: OnDays = ignore) -> tuple[date, ...]:
        """Merge the files of each day that ended ``older_than_days`` ago, and delete files that nobody needs.

        Args:
            on_days: progress callback.

        Returns:
            The days that had several files for an hour.
        """
        with self.store.alone(self.options.wait_s):
            first = upkeep.horizon(datetime.now(UTC), older_than_days)
            days = upkeep.compact(self.spark, self.tables["events"], first, on_days)
            self._vacuum()
            return days

    def _vacuum(self) -> None:
        for table in self.tables.values():
            table.vacuum()

    def purge(
        self,
        events_days: float | None = None,
        attempts_days: float | None = None,
        hours_days: float | None = None,
        *,
        on_days: OnDays = ignore,
    ) -> Purge:
        """Delete days older than the given ages; None = as configured in the options.

        Args:
            on_days: progress callback.

        Returns:
            The deleted days by table; a caller may delete copies of the metrics accordingly.
        """
        kept = self.options
        days = {
            "events": kept.keep_events_days if events_days is None else events_days,
            "attempts": kept.keep_attempts_days if attempts_days is None else attempts_days,
            "hours": kept.keep_hours_days if hours_days is None else hours_days,
        }
        with self.store.alone(self.options.wait_s):
            gone = upkeep.purge(self.store, self.tables, days, datetime.now(UTC), on_days=on_days, step=self._step)
            self._vacuum()
            return gone

    def status(self, door: Callable[[], AbstractContextManager[Broker]] | None = None) -> Status:
        """Return the state of the history: kept data, pending days, positions in the streams.

        Args:
            door: opens a broker, to compute the lag of each shard; None = leave the lag out.
        """
        return status_of(self.store, self.tables, self.options.consumer, door)

    # --- steps

    def _landing(self) -> Landing:
        options = self.options
        if not self._checked:
            quality.check(self.spark.createDataFrame([], ATTEMPTS), options.expectations)
            self._checked = True
        source = self._source or events_source(options)
        return Landing(self.spark, self.tables["events"], options, source, self._pending, self._step)

    def _publish(
        self,
        selected: DayHours,
        on_hours: OnHours,
        stopping: threading.Event,
        published: list[date],
        counted: Landed | None = None,
    ) -> None:
        if stopping.is_set():
            return
        self._computing.compute(self.spark, selected, counted)
        for metrics, days in self._computing.metrics(self.spark, list(selected)):
            on_hours(metrics, days)
            self._step("hours published")
            self._pending.settle(days)
            published += days
            self._step("days settled")

    def _summary(self, landed: Landed, published: Sequence[date], began: float, stopped: bool) -> Summary:
        return Summary(
            landed.rows,
            landed.bad,
            landed.batches,
            tuple(published),
            read_offsets(self.store, self.options.consumer),
            time.monotonic() - began,
            landed.broken,
            stopped,
        )
