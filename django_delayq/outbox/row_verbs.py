"""Cancel, reschedule and run_now of jobs with rows: first the rows, in the caller's transaction, then Redis.

So a cancelled job stays cancelled even if Redis is unavailable or loses its data. A process that is sending the row at
the same moment finds the change when it writes its result (:mod:`.push`). A job without a row is changed in Redis only.

There are three forms: of one job (:func:`apply`), of many jobs of a queue by their ids (:func:`change_many`), and of
all waiting jobs of a queue (:func:`cancel_all`, :func:`run_all_now`). The latter two look into every outbox, because
the rows may be those of other processes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast

from django.db import DEFAULT_DB_ALIAS, transaction

from ..core import bulk
from ..core.bulk import Progress, Verb
from ..core.errors import IdTaken
from ..core.job import Generation
from ..core.outcomes import ScheduleOutcome
from ..core.queue import Queue
from ..core.task import Task
from ..signals import emit, job_cancelled
from ..transactions import ON_COMMIT, CallDescription, OnCommit, in_transaction, now_or_on_commit
from . import durability, rows
from .producer import call_briefly, call_patiently, push_briefly
from .push import MOVED, NOT_WAITING, Address, RowOutcome, RowResult
from .rows import NOW, DueTime

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..models import OutboxJob
    from ..scheduling.verbs import JobHandle, Left

Cancelled = Literal["cancelled", "stopping", False]
R = TypeVar("R")

CANCELLED: Final = "cancelled"
STOPPING: Final = "stopping"
GONE: Final = "gone"


@dataclass(slots=True)
class Target:
    """Job to change.

    Attributes:
        queue, id: queue and id of the job.
        task: the task, if the caller named it.
        task_name: name of the task that the job must have; "" = any.
        using: alias of the database whose transaction to wait for.
        durable: True if the job is known to have a row.
        request: request id for the call to Redis; None = a new one.
        handle: the handle of the job, if the caller has one; it identifies one job of the id.
    """

    queue: str
    id: str
    task: Task | None
    task_name: str
    using: str | None
    durable: bool = False
    request: bytes | None = None
    handle: JobHandle | None = None

    @property
    def alias(self) -> str:
        """Alias of the job's database."""
        return self.using or DEFAULT_DB_ALIAS

    @property
    def generation(self) -> Generation | None:
        """Generation of the job, as far as the handle knows it by now; None = the live job of the id."""
        return None if self.handle is None else self.handle.generation

    @property
    def address(self) -> Address:
        """The way to name the job in a call to Redis."""
        return Address(self.task_name, self.generation, self.request)

    @property
    def rows(self) -> QuerySet[OutboxJob]:
        """Rows of the job, in every state."""
        mine = rows.table(self.alias).filter(queue=self.queue, job_id=self.id)
        mine = mine.filter(task=self.task_name) if self.task_name else mine
        generation = self.generation
        return mine if generation is None else mine.filter(key__in=[uuid.UUID(bytes=key) for key in generation.keys])


@dataclass(slots=True)
class Change(Generic[R]):
    """Change of a job that was requested by a verb.

    Attributes:
        target: the job.
        verb: cancel, reschedule or run_now.
        when: the new due time; None = the job is cancelled. A delay counts from now on.
        unsent: rows that were changed, by key; True = Redis did not have the job.
    """

    target: Target
    verb: str
    when: DueTime | None
    unsent: dict[uuid.UUID, bool] = field(default_factory=dict)
    called_at: float = field(default_factory=time.monotonic)

    def call(self, live: Queue | None) -> str:
        """Change the job in Redis; return the outcome."""
        job, which = self.target, self.target.address._asdict()
        if live is None:
            return self.nothing
        if self.when is None:
            return live.cancel(job.id, **which) or GONE
        if self.verb == "run_now":
            return MOVED if live.run_now(job.id, **which) else NOT_WAITING
        due_ms, delay_ms = self.when["due_ms"], self.when["delay_ms"]
        if delay_ms is not None:  # the due time is fixed at the call, so the wait for the commit is part of the delay
            delay_ms = max(0, delay_ms - int((time.monotonic() - self.called_at) * 1000))
        return MOVED if live.reschedule(job.id, due_ms=due_ms, delay_ms=delay_ms, **which) else NOT_WAITING

    @property
    def done(self) -> str:
        """Outcome of a job that Redis did not have, and that is changed all the same."""
        return CANCELLED if self.when is None else MOVED

    @property
    def nothing(self) -> str:
        """Outcome if there is no such job."""
        return GONE if self.when is None else NOT_WAITING

    def change_rows(self) -> None:
        """Change the rows of the job, and remember their keys."""
        self.unsent = _change_rows(self.target.rows, self.when)

    def send(self, *, patiently: bool) -> str:
        """Send the change to Redis; return the outcome.

        Raises:
            IdTaken: the live job of the id belongs to another task.
            QueueUnavailable: Redis is unavailable, and the job has no row.
        """
        job = self.target
        if self.unsent:
            (answer,) = _push(job.alias, [self])
            if isinstance(answer, IdTaken):
                raise answer
            return str(answer)
        call = call_patiently if patiently else call_briefly
        outcome = call(lambda broker: self.call(broker.existing(job.queue)))
        self.notify(outcome)
        return outcome

    def notify(self, outcome: object) -> None:
        """Send the signal of a cancelled job."""
        if outcome in (CANCELLED, STOPPING):
            emit(job_cancelled, self.target.task, id=self.target.id, queue=self.target.queue, outcome=outcome)


def cancellation(target: Target) -> Change[Cancelled]:
    """Return the change of :func:`django_delayq.cancel`."""
    return Change(target, "cancel", None)


def movement(target: Target, verb: str, when: DueTime) -> Change[bool]:
    """Return the change of :func:`django_delayq.reschedule` or :func:`django_delayq.run_now`."""
    return Change(target, verb, when)


def apply(change: Change[R]) -> R | OnCommit | Left:
    """Change the rows of a job, then Redis, now or after the commit.

    Returns:
        Of a cancellation: cancelled, stopping or False; of a movement: True or False; of both: on_commit or outbox.

    Raises:
        IdTaken, QueueUnavailable: see :meth:`Change.send`.
    """
    job = change.target
    waits = in_transaction(job.using)
    if job.durable or durability.in_use(job.alias, job.queue, job.task):
        change.change_rows()

    def send() -> R | Left:
        outcome = change.send(patiently=not waits)
        answers: dict[str, Any] = {MOVED: True, GONE: False, NOT_WAITING: False}
        return cast("R | Left", answers.get(outcome, outcome))

    description = CallDescription(change.verb, job.queue, job.id, job.task)
    return now_or_on_commit(send, description, using=job.using)


def _change_rows(mine: QuerySet[OutboxJob], when: DueTime | None) -> dict[uuid.UUID, bool]:
    """Cancel or move rows. Return their keys, with True for those that are not known to have been sent."""
    states = mine.model.CANCELLABLE if when is None else mine.model.LIVE
    found = mine.filter(state__in=states).values_list("key", "state")
    unsent = {key: state in ("unsent", "refused") for key, state in found}
    for keys in rows.chunks(unsent):
        rows.change(mine.filter(key__in=keys, state__in=states), when)
    return unsent


def _push(alias: str, changes: Sequence[Change[Any]]) -> list[Any]:
    """Push the changed rows of jobs. Return for each job the outcome, or IdTaken."""
    keys = [key for change in changes for key in change.unsent]
    addresses = {(change.target.queue, change.target.id): change.target.address for change in changes}
    results = push_briefly(alias, keys, addresses=addresses)
    missing = [key for key in keys if key not in results]
    left = rows.states(alias, missing) if missing else {}
    outcomes = [_outcome_of(change, results, left) for change in changes]
    for change, outcome in zip(changes, outcomes, strict=True):
        change.notify(outcome)
    return outcomes


def _outcome_of(change: Change[Any], results: Mapping[uuid.UUID, RowResult], left: Mapping[uuid.UUID, str]) -> Any:
    """Return the outcome of a change, given the results of its rows, and the states of rows that were not pushed."""
    was_unsent = any(change.unsent.values())
    result = next((results[key] for key in change.unsent if key in results), None)
    if result is None:  # what is still to be sent is sent as it was changed; the rest is gone, or in other hands
        if any(left.get(key, "unsent") != "unsent" for key in change.unsent):
            return ScheduleOutcome.OUTBOX
    elif result.outcome is RowOutcome.FREE or (result.outcome is RowOutcome.UNSENT and not was_unsent):
        return ScheduleOutcome.OUTBOX  # Redis did not receive the change, or has lost the job
    elif result.reply not in ("", NOT_WAITING):
        return result.reply
    return change.done if was_unsent else change.nothing


# -- many jobs by their ids --------------------------------------------------------------------------------------------


def change_many(
    queue: Queue, idents: Sequence[str], verb: str, when: DueTime | None, requests: Sequence[bytes | None]
) -> list[str]:
    """Cancel jobs, or set a new due time for waiting ones.

    Jobs without rows are changed in Redis directly, with one short call each, after those with rows.

    Args:
        verb: cancel, reschedule or run_now.
        when: the new due time; a delay counts from now on, by Redis's clock. None = cancel.
        requests: for each job the request id of its call to Redis; None = a random one. Rows are changed once for a
            request id, because other jobs may have taken the ids when it is executed again.

    Returns:
        For each job: cancelled, stopping (it is running and will not be retried) or gone; moved or not_waiting; outbox.

    Raises:
        QueueUnavailable: Redis is unavailable; durable jobs are changed in the outbox all the same.
    """
    changes: list[Change[Any]] = [
        Change(Target(queue.name, ident, None, "", None, request=request), verb, when)
        for ident, request in zip(idents, requests, strict=True)
    ]
    outcomes: dict[int, str] = {}
    for alias in durability.outboxes(queue.kind):
        _change_many_rows(alias, queue.name, [change for change in changes if not change.unsent])
        mine = [change for change in changes if change.unsent and change.target.using is None]
        for change in mine:
            change.target.using = alias
        description = CallDescription(verb, queue.name, "")
        found = now_or_on_commit(partial(_push, alias, mine), description, using=alias) if mine else ()
        found = [found] * len(mine) if found == ON_COMMIT else found
        outcomes.update(zip(map(id, mine), found, strict=True))
    for change in changes:
        if not change.unsent:
            outcomes[id(change)] = change.call(queue)
            change.notify(outcomes[id(change)])
    return [str(outcomes[id(change)]) for change in changes]


def _change_many_rows(alias: str, queue: str, changes: Sequence[Change[Any]]) -> None:
    """Change the rows of jobs, and record the requests in the same transaction."""
    from ..models import InboxEntry

    keyed = {uuid.UUID(bytes=change.target.request): change for change in changes if change.target.request}
    with transaction.atomic(using=alias):
        seen: set[uuid.UUID] = set()
        for keys in rows.chunks(keyed):
            seen.update(InboxEntry.objects.using(alias).filter(pk__in=keys).values_list("pk", flat=True))
        done = {id(keyed[key]) for key in seen}
        by_id = {change.target.id: change for change in changes if id(change) not in done}
        for ids in rows.chunks(by_id):
            mine = rows.table(alias).filter(queue=queue, job_id__in=ids)
            owners = dict(mine.values_list("key", "job_id"))
            for key, unsent in _change_rows(mine, changes[0].when).items():
                by_id[owners[key]].unsent[key] = unsent
        entries = [InboxEntry(key=key, queue=queue, job_id=keyed[key].target.id) for key in keyed.keys() - seen]
        InboxEntry.objects.using(alias).bulk_create(entries, batch_size=rows.CHUNK, ignore_conflicts=True)


# -- all waiting jobs of a queue ---------------------------------------------------------------------------------------


def cancel_all(queue: Queue, *, progress: Progress | None = None) -> dict[str, int]:
    """Cancel every waiting job, also those that Redis has refused; see :data:`..core.bulk.CANCEL`.

    Raises:
        QueueUnavailable: Redis is unavailable; jobs that were never sent are cancelled all the same.
    """
    return _on_all(queue, bulk.CANCEL, CANCELLED, ("unsent", "refused"), None, progress)


def run_all_now(queue: Queue, *, progress: Progress | None = None) -> dict[str, int]:
    """Make every waiting job due now; see :data:`..core.bulk.RUN_NOW`.

    Raises:
        QueueUnavailable: Redis is unavailable; jobs that were never sent are due as soon as it is back.
    """
    return _on_all(queue, bulk.RUN_NOW, MOVED, ("unsent",), NOW, progress)


def count_unsent(queue: Queue) -> int:
    """Return the number of durable jobs of the queue that were not sent to Redis yet."""
    return sum(mine.filter(state="unsent").count() for mine in _rows(queue))


def forget_queue(aliases: Sequence[str], queue: str) -> int:
    """Delete the outbox rows of a queue that was deleted with all its jobs. Return their number."""
    return sum(rows.purge(rows.table(alias).filter(queue=queue)) for alias in aliases if durability.has_table(alias))


def _on_all(
    queue: Queue,
    verb: Verb,
    outcome: str,
    states: Sequence[str],
    when: DueTime | None,
    progress: Progress | None,
) -> dict[str, int]:
    """Change the rows of jobs that Redis does not have, then the jobs that it has. Return the number by outcome.

    Jobs that Redis has are changed there only, because running ones are left alone.

    Args:
        states: states of rows whose jobs Redis certainly does not have, unless they are being sent.
        when: see :func:`.rows.change`.
    """
    done = 0
    for mine in _rows(queue):  # first what needs no Redis
        for pks in _pages(mine.filter(state__in=states)):
            done += rows.change(mine.filter(pk__in=pks, state__in=states), when)
            if progress:
                progress(done, done + 1)  # Redis comes next
    if when is not None:  # a due time that was not sent yet must not undo it
        for mine in _rows(queue):
            rows.change(mine.filter(state="moved"), when)

    def advance(seen: int, total: int) -> None:
        if progress:
            progress(done + seen, done + total)

    counts = dict(bulk.change(queue, verb, progress=advance).counts)
    changed = done + counts.get(outcome, 0)
    return counts | {outcome: changed} if changed else counts


def _rows(queue: Queue) -> Iterator[QuerySet[OutboxJob]]:
    """Yield the rows of a queue in each database."""
    for alias in durability.outboxes(queue.kind):
        yield rows.table(alias).filter(queue=queue.name)


def _pages(mine: QuerySet[OutboxJob]) -> Iterator[list[int]]:
    """Yield the keys of rows that are there now, page by page, each row once."""
    last = mine.order_by("-pk").values_list("pk", flat=True).first() or 0
    after = 0
    while pks := list(
        mine.filter(pk__gt=after, pk__lte=last).order_by("pk").values_list("pk", flat=True)[: rows.CHUNK]
    ):
        yield pks
        after = pks[-1]
