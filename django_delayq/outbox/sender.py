"""Sending of claimed outbox rows to Redis, and the results of its replies.

Rows of one job are sent one after the other, and a row that is held up delays only the later rows of its job.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from itertools import groupby
from typing import TYPE_CHECKING, Final

from ..core.errors import InvalidJob, NotConfirmed, QueueFull
from ..core.job import is_durable
from ..core.outcomes import ScheduleOutcome
from ..core.redis.faults import Fault, classify
from ..models import OutboxJob
from ..settings.conf import Conf
from .due import DueTime
from .protocol import (
    BROUGHT_BACK,
    FOR_NOW,
    FREE,
    LATER,
    UNCONFIRMED,
    ChangedRow,
    RowOutcome,
    RowResult,
    correct,
    row_result_of,
)
from .records import digest_of, generation_of, job_of
from .rows import table

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.job import NewJob
    from .claims import ClaimedBatch

State = OutboxJob.State

#: results that delay the later rows of its job
_HELD_UP: Final = (RowOutcome.LATER, RowOutcome.FREE, RowOutcome.UNSENT)


class OutboxSender:
    """Sender of claimed outbox rows."""

    #: consecutive errors of one row after which it is refused and waits for an operator
    max_tries = 10

    def __init__(self, settings: Conf, broker: DjangoBroker) -> None:
        self._settings = settings.outbox
        self._broker = broker

    def send(self, batch: ClaimedBatch) -> Iterator[tuple[int, RowResult]]:
        """Send the rows of a claimed batch. Each result is yielded, by ``pk``, as soon as Redis has answered.

        Raises:
            QueueUnavailable: Redis became unavailable; rows without a result may or may not have been received.
        """
        held_up: set[tuple[str, str]] = set()
        for wave in _waves(batch.rows):
            ready = [row for row in wave if (row.queue, row.job_id) not in held_up]
            for (queue, unsent), some in groupby(ready, key=lambda row: (row.queue, row.state == State.UNSENT)):
                rows = list(some)
                for row, result in self._schedule(batch, queue, rows) if unsent else self._correct(batch, queue, rows):
                    if result.outcome in _HELD_UP:
                        held_up.add((row.queue, row.job_id))
                    yield row.pk, result

    def _schedule(
        self, batch: ClaimedBatch, queue: str, rows: Sequence[OutboxJob]
    ) -> Iterator[tuple[OutboxJob, RowResult]]:
        """Schedule jobs of one queue."""
        jobs: list[tuple[OutboxJob, NewJob]] = []
        for row in rows:
            try:
                jobs.append((row, job_of(row, batch.due_ms[row.pk])))
            except Exception as error:  # any error of the reader affects only this row
                yield (
                    row,
                    RowResult(
                        RowOutcome.REFUSED, f"the record cannot be read: {type(error).__name__}: {error}", row.tries
                    ),
                )
        if jobs:
            yield from self._offer(batch, queue, jobs)

    def _offer(
        self, batch: ClaimedBatch, queue: str, jobs: list[tuple[OutboxJob, NewJob]]
    ) -> Iterator[tuple[OutboxJob, RowResult]]:
        try:
            outcomes, unconfirmed = self._ask(batch, queue, [job for _, job in jobs])
        except QueueFull:  # Redis is out of memory
            yield from ((row, _later(row, LATER[ScheduleOutcome.FULL])) for row, _ in jobs)
        except Exception as error:
            if classify(error) is not Fault.BUG:
                raise
            if len(jobs) > 1:  # one of them is the cause and must not affect the others
                middle = len(jobs) // 2
                yield from self._offer(batch, queue, jobs[:middle])
                yield from self._offer(batch, queue, jobs[middle:])
            else:
                yield jobs[0][0], self._result_of_error(jobs[0][0], error)
        else:
            again: list[tuple[OutboxJob, NewJob]] = []
            for place, ((row, job), outcome) in enumerate(zip(jobs, outcomes, strict=True)):
                if place in unconfirmed:
                    yield row, _later(row, UNCONFIRMED)
                elif outcome is ScheduleOutcome.IGNORED and row.sent_at is not None and self._is_pushed_out(row):
                    job.on_conflict, job.due_policy, job.reset_retries = "replace", "replace", True
                    again.append((row, job))
                elif outcome is ScheduleOutcome.TAKEN and row.sent_at is not None and self._is_pushed_out(row):
                    yield row, _later(row, BROUGHT_BACK)
                else:
                    yield row, self._result_of_reply(row, job, outcome)
            if again:
                yield from self._offer(batch, queue, again)

    def _ask(self, batch: ClaimedBatch, queue: str, news: list[NewJob]) -> tuple[Sequence[ScheduleOutcome], Set[int]]:
        """Send jobs; return their outcomes, and the places of those that are not confirmed."""
        try:
            return self._broker.queue(queue).schedule_many(news, not_after_ms=batch.deadline_ms), frozenset()
        except NotConfirmed as error:
            return error.outcomes, error.unconfirmed

    def _result_of_error(self, row: OutboxJob, error: Exception) -> RowResult:
        text = f"{type(error).__name__}: {error}"
        tries = row.tries + 1 if row.error not in FOR_NOW else 1
        if isinstance(error, InvalidJob) or tries >= self.max_tries:
            return RowResult(RowOutcome.REFUSED, text, tries)
        return RowResult(RowOutcome.LATER, text, tries)

    def _result_of_reply(self, row: OutboxJob, job: NewJob, outcome: ScheduleOutcome) -> RowResult:
        if outcome in LATER:
            return _later(row, LATER[outcome])
        if outcome is ScheduleOutcome.KNOWN and job.payload is None and row.moved_by is not None and self._waits(row):
            return RowResult(RowOutcome.MOVED)
        return row_result_of(outcome)

    def _waits(self, row: OutboxJob) -> bool:
        """Return True if the job of a rescheduled row waits, perhaps for its old due time.

        Its sender died before it could mark the row, which was rescheduled meanwhile. A job that has failed waits for
        its back-off and is not changed.
        """
        view = self._broker.inspector.get(row.queue, row.job_id)
        if view is None or view.state not in ("delayed", "ready"):
            return False
        return view.job.key == row.key.bytes and not view.job.failures

    def _is_pushed_out(self, row: OutboxJob) -> bool:
        """Return True if the live content of the id of ``row`` is durable and no longer has a row.

        It was replaced or cancelled in the database, and Redis never received the change, or has lost it.
        """
        view = self._broker.inspector.get(row.queue, row.job_id)
        if view is None or view.state == "morgue" or view.job.merged:
            return False
        keys = [job.key for job in (view.job, view.gated) if job is not None]
        if not all(map(is_durable, keys)):
            return False
        row_keys = [uuid.UUID(bytes=key) for key in keys]
        return not any(table(alias).filter(key__in=row_keys).exists() for alias in self._settings.databases)

    def _correct(
        self, batch: ClaimedBatch, queue: str, rows: Sequence[OutboxJob]
    ) -> Iterator[tuple[OutboxJob, RowResult]]:
        """Cancel and move jobs of one queue."""
        opened = self._broker.existing(queue)
        generations = [(row.job_id, row.key.bytes, digest_of(row.record)) for row in rows]
        in_redis = [False] * len(rows) if opened is None else opened.knows(generations)
        for row, is_known in zip(rows, in_redis, strict=True):
            cancelled = row.state == State.CANCELLED
            due = None if cancelled else DueTime(due_ms=batch.due_ms[row.pk], delay_ms=None)
            if batch.is_over:
                yield row, FREE
            elif is_known and opened is not None:
                yield row, correct(opened, ChangedRow(row.job_id, row.task, generation_of(row), due), batch.deadline_ms)
            elif cancelled and opened is not None and self._is_pushed_out(row):  # its predecessor is live
                yield row, correct(opened, ChangedRow(row.job_id, row.task, None, None), batch.deadline_ms)
            else:  # never sent; or lost, and a job that should run is sent again
                yield row, RowResult(RowOutcome.GONE if cancelled else RowOutcome.UNSENT)


def _waves(rows: Sequence[OutboxJob]) -> Iterator[list[OutboxJob]]:
    """Yield the first row of each job, then the second of each, and so on.

    Each list is sorted, so that rows sent in one call are adjacent.
    """
    waves: list[list[OutboxJob]] = []
    seen: Counter[tuple[str, str]] = Counter()
    for row in rows:
        place = seen[row.queue, row.job_id]
        seen[row.queue, row.job_id] += 1
        if place == len(waves):
            waves.append([])
        waves[place].append(row)
    for wave in waves:
        yield sorted(wave, key=lambda row: (row.queue, row.state == State.UNSENT))


def _later(row: OutboxJob, why: str) -> RowResult:
    """Return the result for a row that is retried without limit, at growing intervals: the row is not at fault."""
    return RowResult(RowOutcome.LATER, why, row.tries + 1 if row.error == why else 1)
