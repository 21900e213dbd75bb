"""Keeps the row of a run of the pipeline in step with it::

    with record("bulk", "sms-2026-11-21", queue="sms", total=1_000_000) as run:
        for done in ...:
            run.progress(rows=done.rows, created=done.created)

A row only tells. A database that does not answer stops no run: what could not be told is logged, and told later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import Error, connections, router
from django.utils import timezone

from ..models.history import PipelineRun

__all__ = ["BEAT", "DIED", "SILENT", "Record", "record", "state_of"]

logger: Final = logging.getLogger("django_delayq.history")

#: a running run that was not heard of for so long has died with its process
SILENT: Final = timedelta(minutes=5)
#: what :func:`state_of` calls it
DIED: Final = "died"
#: seconds between two signs of life of a run that makes no progress
BEAT: Final = 60.0
#: seconds between two writes of its progress
EVERY: Final = 1.0
#: characters of an error that are kept
_LONGEST_ERROR: Final = 10_000

_States = PipelineRun.State


def state_of(run: PipelineRun, now: datetime | None = None) -> str:
    """The state of a run, one of :class:`PipelineRun.State`; ``died`` where nobody was left to say how it ended."""
    if run.state == _States.RUNNING and (timezone.now() if now is None else now) - run.seen_at > SILENT:
        return DIED
    return str(run.state)


class Record:
    """The row of a run that is under way.

    Attributes:
        row: what was last written, or is to be.
    """

    def __init__(self, row: PipelineRun, alias: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.row = row
        self._alias = alias
        self._clock = clock
        self._lock = threading.Lock()
        self._written_at = float("-inf")
        self._over = threading.Event()
        self._stopped = False

    def progress(
        self,
        *,
        rows: int | None = None,
        created: int | None = None,
        known: int | None = None,
        bad: int | None = None,
        total: int | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """How far it is: counts since its beginning. They are written once a second at most, and at the end.

        Args:
            rows: of the input, done so far.
            created: jobs, or rows, that were made.
            known: what was there already.
            bad: what was refused.
            total: rows of the input in all.
            detail: what is to be known besides; added to what was said before. What JSON can hold.
        """
        given = {"rows": rows, "created": created, "known": known, "bad": bad, "total": total}
        with self._lock:
            for name, number in given.items():
                if number is not None:
                    setattr(self.row, name, max(0, int(number)))
            if detail:
                self.row.detail = {**self.row.detail, **detail}
            if self._clock() - self._written_at >= EVERY:
                self._write()

    def stop(self) -> None:
        """Somebody stopped it, and it ends soon without an error: its state will be ``stopped``, not ``finished``."""
        self._stopped = True

    # -- of the context manager --------------------------------------------------------------------------------------

    def begin(self) -> threading.Thread:
        """Write the row for the first time, and tell from now on that the run lives."""
        with self._lock:
            self._write()
        beat = threading.Thread(target=self._beat, name="delayq-record", daemon=True)
        beat.start()
        return beat

    def end(self, error: BaseException | None) -> None:
        """Write how it ended."""
        self._over.set()
        state = _States.STOPPED if self._stopped else _States.FINISHED
        if isinstance(error, Exception):
            state = _States.FAILED
        elif error is not None:  # KeyboardInterrupt, SystemExit
            state = _States.STOPPED
        with self._lock:
            self.row.state = state
            self.row.error = _told(error) if error is not None else ""
            self.row.ended_at = timezone.now()
            self._write()

    def _write(self) -> None:
        """All of the row. Where there is none yet, because the database did not answer, it is made now."""
        self._written_at = self._clock()
        self.row.seen_at = timezone.now()
        self._try(lambda: self.row.save(using=self._alias))

    def _beat(self) -> None:
        """The body of a thread: a sign of life now and then."""
        rows = PipelineRun._default_manager.using(self._alias)
        try:
            while not self._over.wait(BEAT):
                pk = self.row.pk
                if pk is not None:
                    alive = rows.filter(pk=pk, state=_States.RUNNING)
                    self._try(lambda alive=alive: alive.update(seen_at=timezone.now()))  # type: ignore[misc]
        finally:
            connections[self._alias].close()

    def _try(self, write: Callable[[], object]) -> None:
        connection = connections[self._alias]
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        try:
            write()
        except Error as error:
            logger.warning("run %s: its row could not be written, the run goes on: %s", self.row.run_id, error)


@contextmanager
def record(
    kind: str,
    run_id: str,
    *,
    queue: str = "",
    task: str = "",
    total: int | None = None,
    detail: Mapping[str, Any] | None = None,
    using: str | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Record]:
    """A row that says how a run goes: ``finished`` when the block ends, ``failed`` when it raises, ``stopped`` when it
    is interrupted or :meth:`Record.stop` was called.

    Args:
        kind: one of :class:`PipelineRun.Kind`.
        run_id: several rows may have the same one: those of a run that was resumed.
        queue: the queue it is about, if it is about one.
        task: the task it is about, if it is about one.
        total: rows of the input, if that is known.
        detail: what it was asked for; what JSON can hold.
        using: alias of the database; None = the one that the project's routers name.
        clock: seconds, for the pace of the writes.

    Raises:
        ValueError: there is no such kind.
    """
    now = timezone.now()
    row = PipelineRun(
        kind=PipelineRun.Kind(kind),
        run_id=run_id,
        queue=queue,
        task=task,
        total=total,
        detail=dict(detail or {}),
        started_at=now,
        seen_at=now,
    )
    made = Record(row, using or router.db_for_write(PipelineRun), clock)
    beat = made.begin()
    try:
        yield made
    except BaseException as error:
        made.end(error)
        raise
    else:
        made.end(None)
    finally:
        beat.join(timeout=EVERY)


def _told(error: BaseException) -> str:
    text = str(error).replace("\0", "")
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:_LONGEST_ERROR]
