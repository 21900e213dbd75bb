"""Sending of claimed outbox rows to Redis, and the verdicts on its replies.

Rows of one job are sent one after the other, and a row that is held up delays only the later rows of its job.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from ..core.errors import IdTaken, InvalidJob, QueueFull
from ..core.job import Generation, is_durable
from ..core.redis.faults import Fault, classify
from ..models import OutboxJob
from ..settings.conf import Conf
from .records import digest_of, generation_of, job_of
from .rows import table

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.job import NewJob
    from ..core.queue import Queue
    from .claims import ClaimedBatch

State = OutboxJob.State

#: reasons why Redis does not accept a row now, but will later
_LATER: Final = {"full": "the queue, or Redis, is full", "paused": "the queue is paused for new jobs"}
#: reasons why a row is given up, and the consequence
GONE: Final = {
    "taken": "the live job of this id belongs to another task",
    "exists": "a job with this id lives already, and on_conflict is 'error'",
    "ignored": "a job with this id lives already",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a row. ``word``: sent, moved, unsent, gone, refused, later or free (as if never claimed)."""

    word: str
    error: str = ""
    tries: int = 0
    #: reply of Redis, for the log
    outcome: str = ""


#: the row was not sent, or Redis has changed nothing
FREE: Final = Verdict("free")


class OutboxSender:
    """Sender of claimed outbox rows.

    Args:
        settings: the project's settings.
        broker: broker that receives the jobs.
    """

    def __init__(self, settings: Conf, broker: DjangoBroker) -> None:
        self._settings = settings.outbox
        self._broker = broker

    def tell(self, hand: ClaimedBatch) -> Iterator[tuple[int, Verdict]]:
        """Send the rows of a claimed batch. Each verdict is yielded, by ``pk``, as soon as Redis has answered.

        Raises:
            QueueUnavailable: Redis became unavailable; rows without a verdict may or may not have been received.
        """
        held_up: set[tuple[str, str]] = set()
        for wave in _waves(hand.rows):
            ready = [row for row in wave if (row.queue, row.job_id) not in held_up]
            for (queue, unsent), some in groupby(ready, key=lambda row: (row.queue, row.state == State.UNSENT)):
                rows = list(some)
                for row, verdict in self._send(hand, queue, rows) if unsent else self._correct(hand, queue, rows):
                    if verdict.word in ("later", "free", "unsent"):
                        held_up.add((row.queue, row.job_id))
                    yield row.pk, verdict

    def _send(self, hand: ClaimedBatch, queue: str, rows: Sequence[OutboxJob]) -> Iterator[tuple[OutboxJob, Verdict]]:
        """Schedule jobs of one queue."""
        jobs: list[tuple[OutboxJob, NewJob]] = []
        for row in rows:
            try:
                jobs.append((row, job_of(row, hand.due_ms[row.pk])))
            except Exception as error:  # any error of the reader affects only this row
                yield row, Verdict("refused", f"the record cannot be read: {type(error).__name__}: {error}", row.tries)
        if jobs:
            yield from self._offer(hand, queue, jobs)

    def _offer(
        self, hand: ClaimedBatch, queue: str, jobs: list[tuple[OutboxJob, NewJob]]
    ) -> Iterator[tuple[OutboxJob, Verdict]]:
        try:
            opened = self._broker.queue(queue)
            outcomes = opened.schedule_many([job for _, job in jobs], not_after_ms=hand.deadline_ms)
        except QueueFull:  # Redis is out of memory
            yield from ((row, _later(row, _LATER["full"])) for row, _ in jobs)
        except Exception as error:
            if classify(error) is not Fault.BUG:
                raise
            if len(jobs) > 1:  # one of them is the cause and must not affect the others
                middle = len(jobs) // 2
                yield from self._offer(hand, queue, jobs[:middle])
                yield from self._offer(hand, queue, jobs[middle:])
            else:
                yield jobs[0][0], self._failed(jobs[0][0], error)
        else:
            behind: list[tuple[OutboxJob, NewJob]] = []
            for (row, job), outcome in zip(jobs, outcomes, strict=True):
                if outcome == "ignored" and row.sent_at is not None and self._is_pushed_out(row):
                    job.on_conflict, job.due_policy, job.reset_retries = "replace", "replace", True
                    behind.append((row, job))
                else:
                    yield row, self._answered(row, job, outcome)
            if behind:
                yield from self._offer(hand, queue, behind)

    def _failed(self, row: OutboxJob, error: Exception) -> Verdict:
        said = f"{type(error).__name__}: {error}"
        tries = row.tries + 1 if row.error not in _LATER.values() else 1
        if isinstance(error, InvalidJob) or tries >= self._settings.max_tries:
            return Verdict("refused", said, tries)
        return Verdict("later", said, tries)

    def _answered(self, row: OutboxJob, job: NewJob, outcome: str) -> Verdict:
        if outcome in _LATER:
            return _later(row, _LATER[outcome])
        if outcome in GONE:
            return Verdict("gone", outcome=outcome)
        if outcome == "late":
            return FREE
        if outcome == "known" and job.payload is None and row.moved_by is not None and self._waits(row):
            return Verdict("moved")
        return Verdict("sent", outcome=outcome)

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
        wanted = [uuid.UUID(bytes=key) for key in keys]
        return not any(table(alias).filter(key__in=wanted).exists() for alias in self._settings.databases)

    def _correct(
        self, hand: ClaimedBatch, queue: str, rows: Sequence[OutboxJob]
    ) -> Iterator[tuple[OutboxJob, Verdict]]:
        """Cancel and move jobs of one queue."""
        opened = self._broker.existing(queue)
        asked = [(row.job_id, row.key.bytes, digest_of(row.record)) for row in rows]
        known = [False] * len(rows) if opened is None else opened.knows(asked)
        for row, is_known in zip(rows, known, strict=True):
            cancelled = row.state == State.CANCELLED
            if not hand.held:
                yield row, FREE
            elif not is_known or opened is None:  # never sent; or lost, and a job that should run is sent again
                if cancelled and opened is not None and self._is_pushed_out(row):  # its predecessor is live
                    yield row, self._cancel(hand, opened, row, None)
                else:
                    yield row, Verdict("gone" if cancelled else "unsent")
            elif cancelled:
                yield row, self._cancel(hand, opened, row, generation_of(row))
            else:
                _or_nothing(opened.reschedule, row, due_ms=hand.due_ms[row.pk], generation=generation_of(row))
                yield row, Verdict("sent")

    def _cancel(self, hand: ClaimedBatch, opened: Queue, row: OutboxJob, generation: Generation | None) -> Verdict:
        outcome = _or_nothing(opened.cancel, row, not_after_ms=hand.deadline_ms, generation=generation)
        return FREE if outcome == "late" else Verdict("gone", outcome=outcome)


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


def _later(row: OutboxJob, why: str) -> Verdict:
    """Return the verdict for a row that is retried without limit, at growing intervals: the row is not at fault."""
    return Verdict("later", why, row.tries + 1 if row.error == why else 1)


def _or_nothing(verb: Callable[..., Any], row: OutboxJob, **options: Any) -> str:
    """Call a verb of one id. Return "" if the id belongs to a job of another task by now."""
    try:
        return str(verb(row.job_id, task=row.task, **options) or "")
    except IdTaken:
        return ""
