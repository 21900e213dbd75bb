"""Cancel, reschedule and run_now of jobs with rows: first the rows, in the caller's transaction, then Redis.

So a cancelled job stays cancelled even if Redis is unavailable or loses its data. A sender that has claimed the row
finds the change when it marks the row as sent. A job without rows is changed in Redis only.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from django.db import DEFAULT_DB_ALIAS, DatabaseError, IntegrityError, transaction

from ..core.errors import DelayQError, IdTaken, QueueUnavailable
from ..core.job import Generation
from ..core.task import Task
from ..signals import emit, job_cancelled
from ..transactions import CallDescription, OnCommit, in_transaction, now_or_on_commit
from . import durability, rows
from .due import DueTime
from .producer import SendingTime, ask, call_patiently

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..connections import DjangoBroker
    from ..models import OutboxJob
    from ..scheduling.handle import JobHandle, Left

Cancelled = Literal["cancelled", "stopping", False]
A = TypeVar("A")
R = TypeVar("R")

logger: Final = logging.getLogger("django_delayq.outbox")


class TooLate(DelayQError):
    """Raised if the claim on the rows ended before Redis was updated."""


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
        found: keys of the job's rows, with True for rows that were not sent yet.
    """

    queue: str
    id: str
    task: Task | None
    task_name: str
    using: str | None
    durable: bool = False
    request: bytes | None = None
    handle: JobHandle | None = None
    found: dict[uuid.UUID, bool] = field(default_factory=dict)

    @property
    def alias(self) -> str:
        """Alias of the job's database."""
        return self.using or DEFAULT_DB_ALIAS

    @property
    def generation(self) -> Generation | None:
        """Generation of the job, as far as the handle knows it by now; None = the live job of the id."""
        return None if self.handle is None else self.handle.generation

    @property
    def unsent(self) -> bool:
        """True if a row was changed before it was sent."""
        return any(self.found.values())

    def change(self, change: Callable[[QuerySet[OutboxJob]], None]) -> bool:
        """Change the rows of the job; return True if it has any."""
        if self.durable or durability.in_use(self.alias, self.queue, self.task):
            if self.request is None:
                self._change(change)
            else:
                self._change_once(uuid.UUID(bytes=self.request), change)
        return bool(self.found)

    def _change(self, change: Callable[[QuerySet[OutboxJob]], None]) -> str:
        """Change the rows. Return their task if there is a request id; "" without one, or if there are no rows."""
        there = rows.of_job(self.alias, self.queue, self.id, self.task_name, self.generation)
        self.found = rows.look(there)
        if not self.found:
            return ""
        mine = there.filter(key__in=list(self.found))
        task = "" if self.request is None else mine.values_list("task", flat=True).first() or ""
        change(mine)
        return task

    def _change_once(self, key: uuid.UUID, change: Callable[[QuerySet[OutboxJob]], None]) -> None:
        from ..models import InboxEntry  # the models are not loaded yet when task modules are imported

        try:
            with transaction.atomic(using=self.alias):
                task = self._change(change)
                entry = InboxEntry(key=key, queue=self.queue, job_id=self.id, task=task)
                entry.save(using=self.alias, force_insert=True)
        except IntegrityError:
            self.found = {}
            if not InboxEntry.objects.using(self.alias).filter(pk=key).exists():
                raise

    def what(self, verb: str) -> CallDescription:
        """For the log."""
        return CallDescription(verb, self.queue, self.id, self.task)


def cancel(target: Target) -> Cancelled | OnCommit | Left:
    """Cancel a job; see :func:`django_delayq.cancel`."""

    token = uuid.uuid4()

    def tell(broker: DjangoBroker) -> str:
        live = broker.existing(target.queue)
        if live is None:
            return ""
        if not target.found:
            return live.cancel(target.id, task=target.task_name, generation=target.generation, request=target.request)
        # Who sleeps from here on must not cancel what is scheduled under this id later.
        sending_time = SendingTime(broker)
        rows.claim_cancelled(target.alias, token, list(target.found))
        answer = live.cancel(
            target.id,
            task=target.task_name,
            not_after_ms=sending_time.deadline_ms(),
            generation=target.generation,
            request=target.request,
        )
        if answer == "late":
            sending_time.distrust_clock()
            raise TooLate(f"{target.id} was to be cancelled, but the process slept or Redis's clock was changed")
        return answer

    def heard(answer: str) -> Cancelled:
        outcome: Cancelled = "cancelled" if answer == "cancelled" else "stopping" if answer == "stopping" else False
        if target.unsent:
            outcome = outcome or "cancelled"
        if outcome:
            emit(job_cancelled, target.task, id=target.id, queue=target.queue, outcome=outcome)
        return outcome

    in_transaction(target.using)  # refuses an unknown alias
    target.change(rows.take_back)

    def note(answer: str | None) -> None:
        rows.told_cancelled(target.alias, token, list(target.found))

    return _tell(target, "cancel", tell, heard, note)


def move(target: Target, verb: str, when: DueTime, tell: Callable[[DjangoBroker], bool]) -> bool | OnCommit | Left:
    """Set another due time, for :func:`django_delayq.reschedule` and :func:`django_delayq.run_now`.

    Args:
        target: the job.
        verb: name of the operation for the log.
        when: the new due time of the rows; a delay counts from this call on.
        tell: moves the job in Redis; returns False if it does not wait there.
    """
    in_transaction(target.using)
    moved_by = uuid.uuid4()
    target.change(lambda there: rows.move(there, when, moved_by))

    def heard(answer: bool) -> bool:
        return answer or target.unsent

    def note(answer: bool | None) -> None:
        if answer is not False:  # otherwise Redis may have lost the job: left to the relay
            rows.told_moved(target.alias, list(target.found), moved_by)

    return _tell(target, verb, tell, heard, note)


def _tell(
    target: Target,
    verb: str,
    tell: Callable[[DjangoBroker], A],
    heard: Callable[[A], R],
    note: Callable[[A | None], None],
) -> R | OnCommit | Left:
    """Send the change to Redis, now or after the commit, and record in the rows that it was sent.

    Args:
        target: the job.
        verb: name of the operation for the log.
        tell: calls Redis and returns its reply.
        heard: converts Redis's reply into the caller's result.
        note: updates the rows; called with the reply, or with None if the id belongs to another task.
    """
    patiently = not (target.found or in_transaction(target.using))

    def send() -> R | Left:
        try:
            answer = call_patiently(tell) if patiently else ask(tell, kept=bool(target.found))
        except IdTaken:
            _note(target, lambda: note(None))  # the live job of this id is of another task
            raise
        except (QueueUnavailable, DatabaseError, TooLate) as error:
            if not target.found:
                raise
            logger.info("%s of %s in queue %s is left to the relay: %s", verb, target.id, target.queue, error)
            return "outbox"
        _note(target, lambda: note(answer))
        return heard(answer)

    return now_or_on_commit(send, target.what(verb), using=target.using)


def _note(target: Target, note: Callable[[], None]) -> None:
    if target.found:
        try:
            note()
        except DatabaseError as error:
            logger.warning("the outbox of database %s is left to the relay: %s", target.alias, error)
