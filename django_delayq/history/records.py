"""Progress records that keep the rows of pipeline runs up to date.

::

    with record("bulk", "sms-2026-11-21", queue="sms", total=1_000_000) as run:
        for done in ...:
            run.progress(rows=done.rows, created=done.created)

The row is informational. A database error does not stop the run: it is logged, and the next write includes the missed
values.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import Error, connections, router
from django.utils import timezone

from ..models.history import PipelineRun

logger: Final = logging.getLogger("django_delayq.history")

#: a running pipeline run without progress for this long has died with its process
SILENT: Final = timedelta(hours=1)
#: its state in :func:`state_of`
DIED: Final = "died"
#: seconds between two writes of progress
EVERY: Final = 1.0
#: characters of an error that are kept
_LONGEST_ERROR: Final = 10_000

_COUNTS: Final = frozenset({"rows", "created", "known", "bad", "total"})

_States = PipelineRun.State


def state_of(run: PipelineRun, now: datetime | None = None) -> str:
    """Return the state of a run, one of :class:`PipelineRun.State`; ``died`` if it has made no progress for an hour."""
    if run.state == _States.RUNNING and (timezone.now() if now is None else now) - run.seen_at > SILENT:
        return DIED
    return str(run.state)


def seconds_of(run: PipelineRun, now: datetime | None = None) -> float:
    """Return the duration of a run so far or in all; of one that died, up to its last progress."""
    now = timezone.now() if now is None else now
    end = run.ended_at or (now if state_of(run, now) == _States.RUNNING else run.seen_at)
    return max(0.0, (end - run.started_at).total_seconds())


class Record:
    """Row of a pipeline run in progress.

    Attributes:
        row: the state that was last written, or will be written next.
    """

    def __init__(self, row: PipelineRun, alias: str) -> None:
        self.row = row
        self._alias = alias
        self._lock = threading.Lock()
        self._written_at = float("-inf")
        self._stopped = False

    def progress(self, *, detail: Mapping[str, Any] | None = None, **counts: int | None) -> None:
        """Update the progress: counts since the start. Written at most once a second, and at the end.

        Args:
            detail: further information, merged into earlier details. JSON-serialisable.
            counts: ``rows`` (of the input, done so far), ``total`` (rows of the input in all), ``created`` (jobs, or
                rows), ``known`` (entries that existed already), ``bad`` (entries that were rejected); None = unchanged.
        """
        if unknown := sorted(counts.keys() - _COUNTS):
            raise TypeError(f"a run has no count {unknown[0]!r}; choose from: {', '.join(sorted(_COUNTS))}")
        with self._lock:
            for name, number in counts.items():
                if number is not None:
                    setattr(self.row, name, max(0, int(number)))
            if detail:
                self.row.detail = {**self.row.detail, **detail}
            if time.monotonic() - self._written_at >= EVERY:
                self.write()

    def stop(self) -> None:
        """Mark the run as stopped by a user.

        If it then ends without an error, its state is ``stopped``, not ``finished``.
        """
        self._stopped = True

    def end(self, error: BaseException | None) -> None:
        """Write the final state."""
        with self._lock:
            self.row.state = _States.FINISHED
            if isinstance(error, Exception):
                self.row.state = _States.FAILED
            elif self._stopped or error is not None:  # KeyboardInterrupt, SystemExit
                self.row.state = _States.STOPPED
            self.row.error = _error_text(error) if error is not None else ""
            self.row.ended_at = timezone.now()
            self.write()

    def write(self) -> None:
        """Write the whole row; it is inserted now if an earlier insert failed."""
        self._written_at = time.monotonic()
        self.row.seen_at = timezone.now()
        connection = connections[self._alias]
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        try:
            self.row.save(using=self._alias)
        except Error as error:
            logger.warning("run %s: its row could not be written, but the run continues: %s", self.row.run_id, error)


@contextmanager
def record(kind: str, run_id: str, **about: Any) -> Iterator[Record]:
    """Record a pipeline run in a row.

    Its state becomes ``finished`` when the block ends, ``failed`` when it raises, and ``stopped`` when it is
    interrupted or :meth:`Record.stop` was called.

    Args:
        kind: one of :class:`PipelineRun.Kind`.
        run_id: several rows may share one: those of a run that was resumed.
        about: further columns: ``queue`` and ``task`` of the run, if it has them, ``total`` (rows of the input, if
            known), ``detail`` (options of the run; JSON-serialisable).

    Raises:
        ValueError: there is no such kind.
    """
    now = timezone.now()
    row = PipelineRun(kind=PipelineRun.Kind(kind), run_id=run_id, started_at=now, seen_at=now, **about)
    made = Record(row, router.db_for_write(PipelineRun))
    made.write()
    try:
        yield made
    except BaseException as error:
        made.end(error)
        raise
    made.end(None)


def _error_text(error: BaseException) -> str:
    text = str(error).replace("\0", "")
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:_LONGEST_ERROR]
