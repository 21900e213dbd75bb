"""Protocol by which rows reach Redis: claim them, send their jobs or changes, write the results to the rows.

The process that wrote rows pushes them after its commit, with a short timeout; the relay of a dispatcher pushes what is
left. A claim is a token and an end time in the row, set by one guarded UPDATE, so it is safe on every database, and no
lock is held while Redis is called. New jobs and cancellations carry a deadline on Redis's clock before that time, so a
process that slept is answered ``late`` and has changed nothing. A process may die after each step: the next claim finds
the row as it was, and Redis answers ``known`` to a job that it has received before.

A verb that changes a row takes it from the claim (:func:`.rows.change`), so the result of the push is not written to
it: a relay pushes the row again, because Redis may have received it as it was before.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from ..core.errors import DelayQError, IdTaken, InvalidJob, NotConfirmed, QueueFull
from ..core.job import Generation
from ..core.outcomes import ScheduleOutcome
from ..core.redis.faults import Fault, classify
from ..core.task import registry
from ..core.times import datetime_of
from ..signals import emit, job_cancelled, job_not_sent, job_scheduled
from ..transactions import not_sent
from . import rows
from .rows import DueTime

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.job import NewJob
    from ..core.queue import Queue
    from ..models import OutboxJob
    from .rows import Row

logger: Final = logging.getLogger("django_delayq.outbox")

#: seconds that a claim lasts: of a process whose caller waits, and of a relay
BRIEF: Final = 2.0
PATIENT: Final = 5.0
#: seconds between the deadline of commands and the end of the claim: for clocks that run at different speeds
MARGIN: Final = 0.25
#: number of jobs sent together: no more than one script call takes, so that jobs of one id keep their order
TOGETHER: Final = 250
#: consecutive errors of one row after which it is refused and waits for an operator
MAX_TRIES: Final = 10
#: seconds of back-off for a row that Redis does not accept now
PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
#: reasons why Redis does not accept a row now, but will later
LATER: Final = {
    ScheduleOutcome.FULL: "the queue, or Redis, is full",
    ScheduleOutcome.PAUSED: "the queue is paused for new jobs",
}
#: reason why a row is sent again although Redis has its job
UNCONFIRMED: Final = "Redis has the job, but replicas or disks did not confirm it in time: see manage.py delayq_check"
#: reasons that are no fault of the row
FOR_NOW: Final = frozenset((*LATER.values(), UNCONFIRMED))
#: reasons why a row is given up
NEVER: Final = {
    ScheduleOutcome.TAKEN: "the live job of this id belongs to another task",
    ScheduleOutcome.EXISTS: "a job with this id lives already, and on_conflict is 'error'",
}
#: reply to a row that has another due time
MOVED: Final = "moved"


class RowOutcome(StrEnum):
    """State of a row after its push."""

    SENT = "sent"
    #: as sent, but its job waits no more: it runs, or has ended
    BEGUN = "begun"
    #: to be sent, because Redis certainly does not have the job
    UNSENT = "unsent"
    #: no longer needed
    GONE = "gone"
    #: kept for a person
    REFUSED = "refused"
    #: tried again after a pause
    LATER = "later"
    #: tried again at once; Redis may have the job or not
    FREE = "free"


@dataclass(frozen=True, slots=True)
class RowResult:
    """Result of pushing a row; ``reply`` is that of Redis, or its refusal to change a job of another task."""

    outcome: RowOutcome
    error: str = ""
    tries: int = 0
    reply: str | IdTaken = field(default="", compare=False)  # equal results are written together


FREE: Final = RowResult(RowOutcome.FREE)


def write(mine: QuerySet[OutboxJob], result: RowResult) -> int:
    """Write a result to claimed rows; return their number."""
    changes: dict[str, Any] = {"claim": None, "claimed_until": None, "tries": result.tries, "error": result.error}
    match result.outcome:
        case RowOutcome.GONE:
            return mine.delete()[0]
        case RowOutcome.FREE:
            return mine.update(claimed_until=None)
        case RowOutcome.SENT | RowOutcome.BEGUN:
            changes |= {"state": "sent", "sent_at": Now(), "checked_at": Now()}
            if result.outcome is RowOutcome.BEGUN:  # due at once if Redis loses it
                changes |= {"due_ms": None, "delay_ms": 0, "delay_from": Now()}
        case RowOutcome.UNSENT:
            changes["state"] = "unsent"
        case RowOutcome.REFUSED:
            changes |= {"state": "refused", "claimed_until": Now()}
        case RowOutcome.LATER:
            changes["claimed_until"] = rows.ahead(PAUSES[min(result.tries, len(PAUSES)) - 1])
            changes["claim"] = None if result.error in LATER.values() else rows.RESTING
    return mine.update(**changes)


def change_job(queue: Queue, ident: str, when: DueTime | None, **which: Any) -> str:
    """Cancel a job in Redis, or give it another due time. Return the reply to a cancellation, moved, or "".

    Args:
        when: None = it is cancelled. One that is wanted now keeps its place if it is overdue.
        which: see :meth:`.Queue.cancel`.
    """
    if when is None:
        return queue.cancel(ident, **which)
    moved = queue.run_now(ident, **which) if when == rows.NOW else queue.reschedule(ident, **when, **which)
    return MOVED if moved else ""


@dataclass(eq=False)
class Push:
    """Push of rows of one database.

    Args:
        broker: receives the commands.
        limit: number of rows that a relay takes, the oldest ones; 0 = a caller waits for rows of its own: the claim is
            brief, and rows without a result stay claimed.
        jobs: jobs of rows that are in memory; the records of the others are read.

    Attributes:
        deadline_ms: deadline of the commands, on Redis's clock.
        taken: rows that were claimed.
        results: by the keys of the rows. A row without one may or may not have been received.

    Raises:
        QueueUnavailable: Redis is unavailable, so nothing should be claimed.
    """

    alias: str
    broker: DjangoBroker
    limit: int = 0
    jobs: Mapping[uuid.UUID, NewJob] = field(default_factory=dict)
    token: uuid.UUID = field(default_factory=uuid.uuid4)
    taken: list[Row] = field(default_factory=list)
    results: dict[uuid.UUID, RowResult] = field(default_factory=dict)
    _read_at: float = 0.0
    #: lost jobs that a newer job of their id must not be replaced by
    _overtaken: set[int] = field(default_factory=set)
    #: jobs whose later rows have to wait
    _held_up: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._seconds = PATIENT if self.limit else BRIEF
        self._until = time.monotonic() + self._seconds - MARGIN
        redis_ms = self.broker.now_ms()
        #: Redis's clock in ms = monotonic() * 1000 + this, never ahead of it: time has passed since Redis read it
        self._offset_ms = redis_ms - time.monotonic() * 1000
        self.deadline_ms = self._until * 1000 + self._offset_ms

    @property
    def is_over(self) -> bool:
        """True if it is too late to send commands to Redis."""
        return time.monotonic() >= self._until

    def held(self, **fields: Any) -> QuerySet[OutboxJob]:
        """Return those rows that the claim still holds."""
        return rows.table(self.alias).filter(claim=self.token, **fields)

    def run(self, keys: Sequence[uuid.UUID] = ()) -> None:
        """Push the rows of these keys, or the oldest ones.

        Raises:
            QueueUnavailable: Redis became unavailable. Rows that it had not received were released by a relay, and stay
                claimed otherwise.
        """
        if self.take(keys):
            try:
                self.send()
            finally:
                self.settle()

    # -- claim ---------------------------------------------------------------------------------------------------------

    def take(self, keys: Sequence[uuid.UUID] = ()) -> list[Row]:
        """Claim and return the rows of these keys, or the oldest ones, that no process has claimed.

        Left out is a row behind another row of its job that waits and is not of this push: jobs keep the order of their
        rows.
        """
        claimed = {"claim": self.token, "claimed_until": rows.ahead(self._seconds)}
        if self.limit:
            with rows.locking(self.alias):
                pks = rows.candidates(self.alias, self.limit)
                count = rows.waiting(self.alias, pk__in=pks).update(**claimed) if pks else 0
        else:
            # New rows were never claimed, or a relay has them. Unsent rows that were changed are sent by a relay, which
            # reports what becomes of them.
            new = Q(claimed_until=None) if self.jobs else None
            free = rows.waiting(self.alias, new, key__in=keys)
            count = (free if self.jobs else free.exclude(state="unsent")).update(**claimed)
        if not count:
            return []
        mine = rows.read(self.held().order_by("id"))
        self._read_at = time.monotonic()
        # No other row can have the id of a fresh job.
        unsent = [row.pk for row in mine if row.state == "unsent" and not (self.jobs and self.jobs[row.key].fresh)]
        blocked = rows.beside(self.alias, unsent, mine[0].WAITING, ~Q(claim=self.token)) if unsent else ()
        if blocked:
            write(self.held(pk__in=blocked), FREE)
            mine = [row for row in mine if row.pk not in blocked]
        lost = [row.pk for row in mine if row.sent_at and row.state == "unsent"]
        self._overtaken = rows.beside(self.alias, lost, later=True) if lost else set()
        self.taken = mine
        return mine

    # -- Redis ---------------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send the rows, with one round trip for new jobs of a queue.

        A row that is held up delays only the later rows of its job.
        """
        in_order = sorted(self.taken, key=lambda row: row.queue)
        for (queue, unsent), group in groupby(in_order, key=lambda row: (row.queue, row.state == "unsent")):
            for some in rows.chunks(group, TOGETHER):
                ready = [row for row in some if row.job not in self._held_up]
                for row, result in self._schedule(queue, ready) if unsent else self._change(queue, ready):
                    self.results[row.key] = result
                    if result.outcome in (RowOutcome.LATER, RowOutcome.FREE, RowOutcome.UNSENT):
                        self._held_up.add(row.job)

    def _due(self, row: Row) -> DueTime:
        """Return the due time to send now.

        That of an overdue job is in the past, so that its lateness and its expiry are counted from there.
        """
        if row.due_ms is not None:
            return DueTime(due_ms=row.due_ms, delay_ms=None)
        now = time.monotonic()
        left_ms = row.left_ms - int((now - self._read_at) * 1000)
        if left_ms > 0:
            return DueTime(due_ms=None, delay_ms=left_ms)
        return DueTime(due_ms=int(now * 1000 + self._offset_ms) + left_ms, delay_ms=None)

    def _schedule(self, queue: str, mine: Sequence[Row]) -> Iterator[tuple[Row, RowResult]]:
        """Schedule jobs of one queue."""
        jobs: list[tuple[Row, NewJob]] = []
        for row in mine:
            try:
                new = self.jobs[row.key] if row.key in self.jobs else rows.unpack_job(bytes(row.record))
            except Exception as error:  # any error of the reader affects only this row
                yield row, _refuse(row, f"the record cannot be read: {type(error).__name__}: {error}", row.tries)
                continue
            due = self._due(row)
            new.due_ms, new.delay_ms = due["due_ms"], due["delay_ms"]
            new.room_ms = 0  # nobody waits for room: the row is sent again
            if row.sent_at and new.payload is None:  # Redis has lost it; what is older, or came back, gives way
                new.on_conflict = "ignore" if row.pk in self._overtaken else "replace"
                new.due_policy, new.reset_retries = "replace", True
            jobs.append((row, new))
        yield from self._offer(self.broker.queue(queue), jobs) if jobs else ()

    def _offer(self, queue: Queue, jobs: list[tuple[Row, NewJob]]) -> Iterator[tuple[Row, RowResult]]:
        unconfirmed: Iterable[int] = ()
        outcomes: Sequence[ScheduleOutcome]
        try:
            outcomes = queue.schedule_many([new for _, new in jobs], not_after_ms=self.deadline_ms)
        except NotConfirmed as error:
            outcomes, unconfirmed = error.outcomes, error.unconfirmed
        except QueueFull:  # Redis is out of memory
            outcomes = [ScheduleOutcome.FULL] * len(jobs)
        except Exception as error:
            if classify(error) is not Fault.BUG:
                raise
            if len(jobs) == 1:
                yield jobs[0][0], self._result_of_error(jobs[0][0], error)
            for job in jobs if len(jobs) > 1 else ():  # one of them is the cause and must not affect the others
                if job[0].job not in self._held_up:
                    yield from self._offer(queue, [job])
            return
        for place, ((row, _), outcome) in enumerate(zip(jobs, outcomes, strict=True)):
            if place in unconfirmed:
                yield row, self._later(row, UNCONFIRMED)
            else:
                yield row, self._result_of_reply(row, outcome)

    def _result_of_error(self, row: Row, error: Exception) -> RowResult:
        text = f"{type(error).__name__}: {error}"
        tries = row.tries + 1 if row.error not in FOR_NOW else 1
        if isinstance(error, InvalidJob) or tries >= MAX_TRIES:
            return _refuse(row, text, tries)
        logger.error("%s of queue %s was not sent and is tried again", row.job_id, row.queue, exc_info=error)
        return RowResult(RowOutcome.LATER, text, tries)

    def _result_of_reply(self, row: Row, outcome: ScheduleOutcome) -> RowResult:
        if outcome in LATER:
            return self._later(row, LATER[outcome])
        if outcome is ScheduleOutcome.TAKEN and row.sent_at:  # brought back by an older copy of Redis
            return _refuse(row, NEVER[outcome], row.tries)
        if outcome in NEVER or outcome is ScheduleOutcome.IGNORED:
            return RowResult(RowOutcome.GONE, reply=outcome)
        return RowResult(RowOutcome.SENT, reply=outcome) if outcome.is_stored else FREE

    def _later(self, row: Row, why: str) -> RowResult:
        """Return the result for a row that is retried without limit, at growing intervals: the row is not at fault."""
        return RowResult(RowOutcome.LATER, why, row.tries + 1 if row.error == why else 1)

    def _change(self, queue: str, mine: Sequence[Row]) -> Iterator[tuple[Row, RowResult]]:
        """Cancel and move jobs of one queue."""
        opened = self.broker.existing(queue)
        for row in mine:
            yield row, self._correct(opened, row) if not self.is_over else FREE

    def _correct(self, queue: Queue | None, row: Row) -> RowResult:
        """Cancel or move a job in Redis as its row says."""
        which: dict[str, Any] = {"task": row.task, "generation": Generation((row.key.bytes,), rows.payload_digest(row))}
        if row.state != "cancelled":
            return self._move(queue, row, which)
        if queue is None:
            return RowResult(RowOutcome.GONE)
        which["not_after_ms"] = self.deadline_ms
        try:
            reply = change_job(queue, row.job_id, None, **which)
            others = rows.table(self.alias).filter(queue=row.queue, job_id=row.job_id).exclude(pk=row.pk)
            if reply == "" and not row.sent_at and not others.exists():
                # What it was to replace has no row any more.
                reply = change_job(queue, row.job_id, None, **which | {"generation": None})
        except IdTaken as error:  # the id belongs to a job of another task by now
            return RowResult(RowOutcome.GONE, reply=error)
        return FREE if reply == ScheduleOutcome.LATE else RowResult(RowOutcome.GONE, reply=reply)

    def _move(self, queue: Queue | None, row: Row, which: dict[str, Any]) -> RowResult:
        due = self._due(row)
        if queue is None:
            return RowResult(RowOutcome.UNSENT)
        wanted_now = row.due_ms is None and row.delay_ms == 0 and row.left_ms > -1000
        try:
            if change_job(queue, row.job_id, rows.NOW if wanted_now else due, **which):
                return RowResult(RowOutcome.SENT, reply=MOVED)
        except IdTaken as error:
            return RowResult(RowOutcome.SENT, reply=error)
        # It runs, or has ended; or Redis never had it, or has lost it.
        (is_known,) = queue.knows([(row.job_id, row.key.bytes, rows.payload_digest(row))])
        return RowResult(RowOutcome.BEGUN) if is_known else RowResult(RowOutcome.UNSENT)

    # -- settling in the database --------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Write the results to the rows that were not changed meanwhile, and release those that were.

        A relay releases rows without a result, too. Rows that a transaction has locked stay claimed.
        """
        results = {
            row.pk: self.results.get(row.key, FREE) for row in self.taken if self.limit or row.key in self.results
        }
        groups: dict[RowResult, list[int]] = {}
        with rows.locking(self.alias) if self.limit else nullcontext():
            mine: Iterable[int] = results
            if self.limit:
                mine = rows.unlocked(self.held(pk__in=results)).order_by("id").values_list("id", flat=True)
            for pk in mine:
                groups.setdefault(results[pk], []).append(pk)
            count = sum(write(self.held(pk__in=some), result) for result, some in groups.items())
        if count < len(results) and not self.is_over:  # later another process may have claimed them
            rows.table(self.alias).filter(pk__in=results, claim=rows.CHANGED).update(claimed_until=None)

    # -- reports -------------------------------------------------------------------------------------------------------

    def report(self) -> Counter[str]:
        """Report the results to the log, the counters and the signals: no caller waits for them. Return counts."""
        for row in self.taken:
            if row.key in self.results:
                _report(row, self.results[row.key])
        return Counter(str(result.outcome) for result in self.results.values() if result is not FREE)


def _refuse(row: Row, error: str, tries: int) -> RowResult:
    """Return the result of a row that is kept for a person, and report it."""
    _give_up(row, "refused", "is refused and stays in the outbox", DelayQError(error))
    return RowResult(RowOutcome.REFUSED, error, tries)


def _report(row: Row, result: RowResult) -> None:
    task, job, reply = registry.get(row.task), {"id": row.job_id, "queue": row.queue}, result.reply
    if row.state == "cancelled":
        if reply in ("cancelled", "stopping"):
            emit(job_cancelled, task, **job, outcome=reply)
    elif isinstance(reply, ScheduleOutcome) and reply in NEVER:
        _give_up(row, reply, "was not scheduled", IdTaken(NEVER[reply]))
    elif isinstance(reply, ScheduleOutcome) and reply != ScheduleOutcome.KNOWN and not row.sent_at:
        due_ms = time.time() * 1000 + row.left_ms if row.due_ms is None else row.due_ms
        emit(job_scheduled, task, **job, outcome=reply, due=datetime_of(int(due_ms)))


def _give_up(row: Row, outcome: str, what: str, error: DelayQError) -> None:
    """Count, log and signal a job that is not scheduled."""
    not_sent[outcome] += 1
    extra = {"verb": "schedule", "job_id": row.job_id, "queue": row.queue}
    logger.error("%s of queue %s %s: %s", row.job_id, row.queue, what, error, extra=extra)
    emit(job_not_sent, registry.get(row.task), verb="schedule", id=row.job_id, queue=row.queue, error=error)
