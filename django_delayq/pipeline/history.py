"""The history of jobs: events land in the lake, attempts and figures are computed of them, and somebody is told.

What a run that dies leaves is made good by the next one, with the same figures as if nothing had happened:

=========================================  ==================================================================
it dies                                    then
=========================================  ==================================================================
while a batch is written                   the batch lies where nobody reads; it is swept away and read again
when days are noted, or a batch is landed  the batch is read again and replaces its own folders
before attempts and figures are whole      the days are noted as pending: the next run computes them whole
while a day or an hour is exchanged        the same; until then it may be missing, but never half there
before the figures are told, or told half  the same, and all figures of the day are told again
before the note is deleted                 the day is computed and told once more, with the same figures
=========================================  ==================================================================
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from . import compacting, purging, quality
from .computing import Computing
from .days_done import DaysDone, OnDays, nobody
from .errors import PipelineError
from .lake import EVENTS_TABLE, Lake, Step, no_step
from .landing import Landed, Landing, Source, events_source, read_offsets, warn_of_lost_root
from .options import HistoryOptions, source_options
from .purging import Purge
from .status import Status, status_of
from .tables import ATTEMPTS
from .wanted import Wanted, parts, whole

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from ..core.broker import Broker

log = logging.getLogger(__name__)

#: takes the figures of some days, which are all that there are of these days
OnHours = Callable[["pa.Table", list[date]], object]
#: days that are computed at once, and attempts of a backfill if a day alone has not more of them
DAYS_AT_ONCE: Final = 31
ROWS_AT_ONCE: Final = 500_000
_POLL_S: Final = 0.2


__all__ = ["DaysDone", "History", "HistoryOptions", "OnDays", "OnHours", "Purge", "Status", "Summary"]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run has done."""

    #: events that were landed; of a backfill the attempts that were computed
    rows: int = 0
    #: those of them that went into the quarantine
    bad: int = 0
    batches: int = 0
    #: days of which the figures were computed and told
    days: tuple[date, ...] = ()
    #: how far the streams are read
    offsets: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    #: expectation → rows that broke it, whatever became of them
    broken: dict[str, int] = field(default_factory=dict)
    #: it was stopped before it was done; the next run carries on
    stopped: bool = False


def _never() -> bool:
    return False


def _nobody(table: pa.Table, days: list[date]) -> None:
    """The figures stay in the lake."""


class History:
    """The history below one root. One process at a time works on it; the others wait, and say so if it takes long.

    Args:
        spark: a session, with the formats registered unless ``source`` is given; None = for :meth:`status` and
            :meth:`purge` of plain Parquet below a path, which need none.
        source: makes the stream of events; None = the format ``delayq.events``.
        step: called with the name of each step that is done.
    """

    def __init__(
        self, spark: SparkSession | None, options: HistoryOptions, *, source: Source | None = None, step: Step = no_step
    ) -> None:
        self.options = options
        self._lake = Lake(options.root, spark, step)
        self._spark = spark
        self._source = source
        self._computing = Computing(self._lake, options)
        self._tables = self._computing.tables
        self._checked = False

    # --- the verbs

    def run(self, on_hours: OnHours = _nobody, *, stop: Callable[[], bool] = _never) -> Summary:
        """Reads what there is, and ends.

        Args:
            on_hours: called on the driver with the figures (columns of the model ``HourlyStat``) of some days. If it
                raises, so does this, and the days are told by the next run.
            stop: asked now and then, by a thread of its own; a second after it says yes the run has ended.

        Raises:
            EventsLost: events were taken off before they were read.
            PipelineError: something else is wrong; the text says what to do.
        """
        return self._run(on_hours, stop)

    def _run(self, on_hours: OnHours, stop: Callable[[], bool], *, patient: bool = False) -> Summary:
        began, landed, told = time.monotonic(), Landed(), list[date]()
        with self._stoppable(stop) as stopping, self._alone(stopping.is_set, patient=patient):
            died = self._lake.pending()
            self._landing(landed).run(stopping.is_set)
            self._acknowledge()
            self._lake.step("landed")
            days = self._open(self._lake.pending())
            wanted = self._computing.wanted(days, landed.hours, died)
            for part in parts(days, {}, DAYS_AT_ONCE, 0):
                self._publish({day: wanted[day] for day in part}, on_hours, stopping, told)
        return self._summary(landed, told, began, stopping.is_set())

    def stream(
        self,
        interval_s: float,
        on_hours: OnHours = _nobody,
        stop: Callable[[], bool] = _never,
        *,
        on_summary: Callable[[Summary], object] = lambda summary: None,
    ) -> int:
        """Runs again and again until ``stop`` says yes, and ends within a second of that.

        Another process that is at work on the history is waited for, however long it takes.

        Args:
            interval_s: seconds from the beginning of one run to that of the next.
            on_summary: called after each run.

        Returns:
            How many runs there were.
        """
        runs = 0
        while not stop():
            began = time.monotonic()
            on_summary(self._run(on_hours, stop, patient=True))
            runs += 1
            while not stop() and (left := began + interval_s - time.monotonic()) > 0:
                time.sleep(min(_POLL_S, left))
        return runs

    def backfill(
        self,
        first: date,
        last: date,
        on_hours: OnHours = _nobody,
        *,
        stop: Callable[[], bool] = _never,
        on_days: OnDays = nobody,
    ) -> Summary:
        """Computes attempts and figures anew from the events that were landed, of the days from ``first`` to ``last``.

        Days of which no events are kept any more stay as they are.

        Args:
            on_days: is told how far it is.

        Raises:
            PipelineError: the days are in the wrong order, or no events of any of them are kept.
        """
        if last < first:
            raise PipelineError(f"The last day, {last}, is before the first, {first}")
        began, counted, told = time.monotonic(), Landed(), list[date]()
        with self._stoppable(stop) as stopping, self._alone(stopping.is_set):
            closed = self._lake.closed_before()
            days = [day for day in self._lake.days(EVENTS_TABLE) if first <= day <= last and day >= closed]
            if not days:
                raise PipelineError(f"No events from {first} to {last} are kept any more, so nothing can be computed")
            rows = self._lake.count(days)
            self._lake.note_pending(days)
            of_rows = sum(rows.values())
            on_days(DaysDone(0, len(days), 0, of_rows))
            for part in parts(days, rows, DAYS_AT_ONCE, ROWS_AT_ONCE):
                self._publish(whole(part), on_hours, stopping, told, counted)
                on_days(DaysDone(len(told), len(days), sum(rows.get(day, 0) for day in told), of_rows))
        return self._summary(counted, told, began, stopping.is_set())

    def compact(self, older_than_days: float = 2, *, on_days: OnDays = nobody) -> tuple[date, ...]:
        """Makes the batches of each day that ended so long ago one, and deletes old versions of Delta tables.

        Args:
            on_days: is told how far it is.

        Returns:
            The days that had several.
        """
        with self._alone():
            first = purging.horizon(datetime.now(UTC), older_than_days)
            old = [day for day in self._lake.days(EVENTS_TABLE) if day < first and len(self._lake.batches(day)) > 1]
            rows = self._lake.count(old) if old else {}
            done, of_rows = 0, sum(rows.values())
            on_days(DaysDone(0, len(old), 0, of_rows))
            for at, day in enumerate(old, 1):
                compacting.compact(self._lake, day)
                done += rows.get(day, 0)
                on_days(DaysDone(at, len(old), done, of_rows))
            for table in self._tables.values():
                table.tidy()
            return tuple(old)

    def purge(
        self,
        events_days: float | None = None,
        attempts_days: float | None = None,
        hours_days: float | None = None,
        *,
        on_days: OnDays = nobody,
    ) -> Purge:
        """Deletes the days that ended so long ago; None = as the options say.

        Args:
            on_days: is told how far it is.

        Returns:
            The deleted days by table; those of the figures may be deleted elsewhere, too.
        """
        kept = self.options
        with self._alone():
            return purging.purge(
                self._lake,
                self._tables,
                datetime.now(UTC),
                events_days=kept.keep_events_days if events_days is None else events_days,
                attempts_days=kept.keep_attempts_days if attempts_days is None else attempts_days,
                hours_days=kept.keep_hours_days if hours_days is None else hours_days,
                on_days=on_days,
            )

    def status(self, door: Callable[[], AbstractContextManager[Broker]] | None = None) -> Status:
        """What is kept, what is pending, how far the streams are read.

        Args:
            door: opens a broker, to say how far behind each shard is; None = that is not asked.
        """
        return status_of(self._lake, self._tables, self.options.consumer, door)

    # --- the steps

    def _landing(self, landed: Landed) -> Landing:
        lake, options = self._lake, self.options
        if not self._checked:
            quality.check(lake.spark.createDataFrame([], ATTEMPTS), options.expectations)
            self._checked = True
        source = self._source or events_source(options)
        found = Landing(lake, options.consumer, source, options.expectations, landed, lossy=not options.fail_on_loss)
        if self._source is None and found.is_new:
            warn_of_lost_root(options)
        return found

    def _acknowledge(self) -> None:
        """Says in Redis how far was read; Spark would do that only when the next run begins."""
        offsets = read_offsets(self._lake, self.options.consumer)
        if self._source is not None or not offsets:
            return
        from ..core.errors import QueueUnavailable
        from .events import commit

        try:
            commit(source_options(self.options), offsets)
        except QueueUnavailable as error:
            log.warning("how far was read could not be noted in Redis, the next run will do it: %s", error)

    def _open(self, days: Sequence[date]) -> list[date]:
        """Those of the days that can be computed; of the others nothing is pending any more."""
        before = self._lake.closed_before()
        closed = [day for day in days if day < before]
        if closed:
            log.warning(
                "events came of days that are closed, because events of them were deleted by age; their "
                "figures stay as they are: %s",
                ", ".join(map(str, closed)),
            )
            self._lake.settle(closed)
        return [day for day in days if day >= before]

    def _publish(
        self,
        wanted: Wanted,
        on_hours: OnHours,
        stopping: threading.Event,
        told: list[date],
        counted: Landed | None = None,
    ) -> None:
        if stopping.is_set():
            return
        self._computing.compute(wanted, counted)
        for figures, days in self._computing.figures(list(wanted)):
            on_hours(figures, days)
            self._lake.step("hours told")
            self._lake.settle(days)
            told += days
            self._lake.step("days settled")

    def _summary(self, landed: Landed, told: Sequence[date], began: float, stopped: bool) -> Summary:
        offsets = read_offsets(self._lake, self.options.consumer)
        return Summary(
            landed.rows,
            landed.bad,
            landed.batches,
            tuple(told),
            offsets,
            time.monotonic() - began,
            landed.broken,
            stopped,
        )

    # --- alone, and to be stopped

    @contextmanager
    def _alone(self, give_up: Callable[[], bool] = _never, *, patient: bool = False) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(self._lake.files.alone(self.options.wait_s, give_up))
            except PipelineError as error:
                if not patient or give_up():
                    raise
                log.warning("%s; it is waited for", error)
                stack.enter_context(self._lake.files.alone(float("inf"), give_up))
            self._lake.sweep()
            compacting.recover(self._lake)
            yield

    @contextmanager
    def _stoppable(self, stop: Callable[[], bool]) -> Iterator[threading.Event]:
        """An event that is set when ``stop`` says yes; what Spark computes for this thread is then given up.

        Being stopped is no failure, whatever falls over because of it.
        """
        stopping, done = threading.Event(), threading.Event()
        context = self._lake.spark.sparkContext
        tag = f"delayq-history-{id(done)}"

        def watch() -> None:
            while not done.wait(_POLL_S):
                if stopping.is_set() or stop():
                    stopping.set()
                    with suppress(Exception):  # the session itself may be ending
                        context.cancelJobsWithTag(tag)

        watcher = threading.Thread(target=watch, name="delayq-history-stop", daemon=True)
        context.addJobTag(tag)
        watcher.start()
        try:
            yield stopping
        except (PySparkException, Py4JError, PipelineError):
            if not stopping.is_set():
                raise
        finally:
            done.set()
            watcher.join()
            context.removeJobTag(tag)
