"""Cancel, reschedule and run_now of jobs with rows: first the rows, in the caller's transaction, then Redis.

So a cancelled job stays cancelled even if Redis is unavailable or loses its data. A sender that has claimed the row
finds the change when it marks the row as sent. A job without rows is changed in Redis only.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from django.db import DEFAULT_DB_ALIAS, DatabaseError, IntegrityError, transaction

from ..core.errors import DelayQError, IdTaken, QueueUnavailable
from ..core.job import Generation
from ..core.task import Task
from ..signals import emit, job_cancelled
from ..transactions import CallDescription, OnCommit, in_transaction, now_or_on_commit
from . import durability, rows
from .due import DueTime
from .producer import brief_claim, call_briefly, call_patiently
from .records import digest_of

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..connections import DjangoBroker
    from ..models import OutboxJob
    from ..scheduling.verbs import JobHandle, Left

Cancelled = Literal["cancelled", "stopping", False]
A = TypeVar("A")
R = TypeVar("R")

logger: Final = logging.getLogger("django_delayq.outbox")


class TooLate(DelayQError):
    """Raised if the claim on the rows ended before Redis was updated."""


class NotInRedis(DelayQError):
    """Raised if Redis has lost the job of a row."""


@dataclass(slots=True)
class Target:
    """Job to change.

    Attributes:
        queue, id: queue and id of the job.
        task: the task, if the caller named it.
        task_name: name of the task that the job must have; "" = any.
        using: alias of the database whose transaction to wait for.
        durable: True if the job is known to have a row.
        request: request id for the call to Redis; None = a new one. Rows are changed once for a request id: an inbox
            entry records that, with the task of the rows ("" = there were none).
        handle: the handle of the job, if the caller has one; it identifies one job of the id.
        row_keys: keys of the job's rows, with True for rows that were not sent yet.
    """

    queue: str
    id: str
    task: Task | None
    task_name: str
    using: str | None
    durable: bool = False
    request: bytes | None = None
    handle: JobHandle | None = None
    row_keys: dict[uuid.UUID, bool] = field(default_factory=dict)

    @property
    def alias(self) -> str:
        """Alias of the job's database."""
        return self.using or DEFAULT_DB_ALIAS

    @property
    def generation(self) -> Generation | None:
        """Generation of the job, as far as the handle knows it by now; None = the live job of the id."""
        return None if self.handle is None else self.handle.generation

    @property
    def may_have_rows(self) -> bool:
        """True if the job may have rows, as far as the settings and the tasks determine it."""
        return self.durable or durability.is_expected(self.alias, self.queue, self.task)

    @property
    def unsent(self) -> bool:
        """True if a row was changed before it was sent."""
        return any(self.row_keys.values())

    @property
    def rows(self) -> QuerySet[OutboxJob]:
        """Rows of the job, in every state."""
        return rows.of_job(self.alias, self.queue, self.id, self.task_name, self.generation)

    def change(self, states: Sequence[str], change: Callable[[QuerySet[OutboxJob]], int]) -> bool:
        """Change the rows of the job that are in one of ``states``; return True if it has any."""
        if self.durable or durability.in_use(self.alias, self.queue, self.task):
            if self.request is None:
                self._change(states, change)
            else:
                self._change_once(uuid.UUID(bytes=self.request), states, change)
        return bool(self.row_keys)

    def _change(self, states: Sequence[str], change: Callable[[QuerySet[OutboxJob]], int]) -> str:
        """Change the rows. Return their task if there is a request id; "" without one, or if there are no rows."""
        job_rows = self.rows.filter(state__in=states)
        self.row_keys = rows.unsent_by_key(job_rows)
        if not self.row_keys:
            return ""
        mine = job_rows.filter(key__in=list(self.row_keys))
        task = "" if self.request is None else mine.values_list("task", flat=True).first() or ""
        change(mine)
        return task

    def _change_once(self, key: uuid.UUID, states: Sequence[str], change: Callable[[QuerySet[OutboxJob]], int]) -> None:
        from ..models import InboxEntry  # the models are not loaded yet when task modules are imported

        try:
            with transaction.atomic(using=self.alias):
                task = self._change(states, change)
                entry = InboxEntry(key=key, queue=self.queue, job_id=self.id, task=task)
                entry.save(using=self.alias, force_insert=True)
        except IntegrityError:
            self.row_keys = {}
            if not InboxEntry.objects.using(self.alias).filter(pk=key).exists():
                raise


@dataclass(frozen=True, slots=True)
class Change(Generic[A, R]):
    """Change of a job that was requested by a verb.

    Attributes:
        target: the job.
        verb: name of the operation for the log.
        states: states of the rows that it applies to.
        rows: changes the rows of the job.
        call: calls Redis and returns its reply.
        result_of: converts Redis's reply into the caller's result.
        update_rows: updates the rows; called with the reply, or with None if the id belongs to another task.
    """

    target: Target
    verb: str
    states: Sequence[str]
    rows: Callable[[QuerySet[OutboxJob]], int]
    call: Callable[[DjangoBroker], A]
    result_of: Callable[[A], R]
    update_rows: Callable[[A | None], None]


def cancellation(target: Target) -> Change[str, Cancelled]:
    """Return the change of :func:`django_delayq.cancel`."""
    from ..models import OutboxJob  # the models are not loaded yet when task modules are imported

    token: uuid.UUID | None = None

    def call(broker: DjangoBroker) -> str:
        nonlocal token
        live = broker.existing(target.queue)
        if live is None:
            return ""
        which: dict[str, Any] = {"task": target.task_name, "generation": target.generation, "request": target.request}
        if not target.row_keys:
            return live.cancel(target.id, **which)
        # A process that sleeps from here on must not cancel a job that is scheduled under this id later.
        claim = brief_claim(target.alias, broker)
        token = claim.token
        for keys in rows.chunks(target.row_keys):  # later rows of the id wait
            claim.take(rows.cancelled(target.alias, keys))
        reply = live.cancel(target.id, **which, not_after_ms=claim.deadline_ms)
        if reply == "late":
            claim.clock.forget()
            raise TooLate(f"{target.id} was to be cancelled, but the process slept or Redis's clock was changed")
        return reply

    def result_of(reply: str) -> Cancelled:
        outcome: Cancelled = "cancelled" if reply == "cancelled" else "stopping" if reply == "stopping" else False
        if target.unsent:
            outcome = outcome or "cancelled"
        if outcome:
            emit(job_cancelled, target.task, id=target.id, queue=target.queue, outcome=outcome)
        return outcome

    def update_rows(reply: str | None) -> None:
        rows.delete_cancelled(target.alias, token, list(target.row_keys))

    return Change(target, "cancel", OutboxJob.CANCELLABLE, rows.mark_cancelled, call, result_of, update_rows)


def movement(target: Target, verb: str, when: DueTime, call: Callable[[DjangoBroker], bool]) -> Change[bool, bool]:
    """Return the change to another due time: :func:`django_delayq.reschedule` and :func:`django_delayq.run_now`.

    Args:
        verb: name of the operation for the log.
        when: the new due time of the rows; a delay counts from this call on.
        call: moves the job in Redis; returns False if it does not wait there.
    """
    from ..models import OutboxJob

    moved_by = uuid.uuid4()

    def call_redis(broker: DjangoBroker) -> bool:
        reply = call(broker)
        if not (reply or _has_sent(target, broker)):
            raise NotInRedis(f"Redis has lost {target.id}")
        return reply

    def move_rows(job_rows: QuerySet[OutboxJob]) -> int:
        return rows.move(job_rows, when, moved_by)

    def result_of(reply: bool) -> bool:
        return reply or target.unsent

    def update_rows(reply: bool | None) -> None:
        # A relay must not move a running job later, when it waits for its next attempt.
        rows.mark_moved_sent(target.alias, list(target.row_keys), moved_by, moved=reply is not False)

    return Change(target, verb, OutboxJob.LIVE, move_rows, call_redis, result_of, update_rows)


def _has_sent(target: Target, broker: DjangoBroker) -> bool:
    """Return True if Redis knows all jobs whose rows say so: a job that was not moved runs, or has ended."""
    sent = [key for key, unsent in target.row_keys.items() if not unsent]
    live = broker.existing(target.queue) if sent else None
    records = target.rows.filter(key__in=sent).values_list("key", "record") if sent else ()
    known = [(target.id, key.bytes, digest_of(record)) for key, record in records]
    return not known or (live is not None and all(live.knows(known)))


def apply(change: Change[A, R]) -> R | OnCommit | Left:
    """Change the rows, send the change to Redis, now or after the commit, and record in the rows that it was sent."""
    target, verb, call = change.target, change.verb, change.call
    waits = in_transaction(target.using)
    target.change(change.states, change.rows)
    patiently = not (target.row_keys or waits)

    def send() -> R | Left:
        try:
            reply = call_patiently(call) if patiently else call_briefly(call, in_database=bool(target.row_keys))
        except IdTaken:
            _update_rows(target, lambda: change.update_rows(None))  # the live job of this id is of another task
            raise
        except (QueueUnavailable, DatabaseError, TooLate, NotInRedis) as error:
            if not target.row_keys:
                raise
            logger.info("%s of %s in queue %s is left to the relay: %s", verb, target.id, target.queue, error)
            return "outbox"
        _update_rows(target, lambda: change.update_rows(reply))
        return change.result_of(reply)

    description = CallDescription(verb, target.queue, target.id, target.task)
    return now_or_on_commit(send, description, using=target.using)


def _update_rows(target: Target, update: Callable[[], None]) -> None:
    if target.row_keys:
        try:
            update()
        except DatabaseError as error:
            logger.warning("the outbox of database %s is left to the relay: %s", target.alias, error)
