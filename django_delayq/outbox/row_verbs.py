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
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.db import DEFAULT_DB_ALIAS, transaction

from ..core import bulk
from ..core.bulk import Progress, Verb
from ..core.errors import IdTaken
from ..core.job import Generation
from ..core.outcomes import ScheduleOutcome
from ..core.queue import Queue
from ..core.task import Task
from ..signals import emit, job_cancelled
from ..transactions import ON_COMMIT, CallDescription, in_transaction, now_or_on_commit
from . import durability, rows
from .producer import call_briefly, call_patiently, push_briefly
from .push import MOVED, NOT_WAITING, Address, RowOutcome, RowResult
from .rows import NOW, DueTime

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..models import OutboxJob
    from ..scheduling.verbs import JobHandle

R = TypeVar("R")

CANCELLED: Final = "cancelled"
STOPPING: Final = "stopping"
GONE: Final = "gone"


#: generation that no job has: Redis may know the reply to a request, and otherwise changes nothing
_NO_JOB: Final = Generation((bytes(16),))
#: results of the functions of :mod:`django_delayq` that differ from the outcomes
_RESULTS: Final[dict[object, bool]] = {MOVED: True, GONE: False, NOT_WAITING: False}


@dataclass(slots=True)
class Change:
    """Change of a job that was requested by a verb.

    Attributes:
        verb: cancel, reschedule or run_now.
        queue, id: queue and id of the job.
        when: the new due time; None = the job is cancelled. A delay counts from now on.
        task: the task, if the caller named it.
        using: alias of the database whose transaction to wait for.
        durable: True if the job is known to have a row.
        handle: the handle of the job, if the caller has one; it identifies one job of the id, as far as it knows it by
            now.
        request: request id for the call to Redis; None = a new one.
        is_repeated: the same request has changed rows before, so no job is changed again.
        unsent: rows that were changed, by key; True = Redis did not have the job.
    """

    verb: str
    queue: str
    id: str
    when: DueTime | None
    task: Task | None = None
    using: str | None = None
    durable: bool = False
    handle: JobHandle | None = None
    request: bytes | None = None
    is_repeated: bool = False
    unsent: dict[uuid.UUID, bool] = field(default_factory=dict)
    called_at: float = field(default_factory=time.monotonic)

    @property
    def alias(self) -> str:
        """Alias of the job's database."""
        return self.using or DEFAULT_DB_ALIAS

    @property
    def address(self) -> Address:
        """The way to name the job in a call to Redis."""
        # Jobs of a renamed task also have the old name, so the live job may have any.
        name = "" if self.task is None or self.task.options.aliases else self.task.name
        generation = None if self.handle is None else self.handle.generation
        return Address(name, _NO_JOB if self.is_repeated else generation, self.request)

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
        address = self.address
        mine = rows.table(self.alias).filter(queue=self.queue, job_id=self.id)
        if address.task:
            mine = mine.filter(task=address.task)
        if address.generation is not None:
            mine = mine.filter(key__in=[uuid.UUID(bytes=key) for key in address.generation.keys])
        self.unsent = _change_rows(mine, self.when)

    def send(self, *, patiently: bool) -> str:
        """Send the change to Redis; return the outcome.

        Raises:
            IdTaken: the live job of the id belongs to another task.
            QueueUnavailable: Redis is unavailable, and the job has no row.
        """
        if self.unsent:
            (answer,) = _push(self.alias, [self])
            if isinstance(answer, IdTaken):
                raise answer
            return str(answer)
        call = call_patiently if patiently else call_briefly
        return self.notify(call(lambda broker: self.call(broker.existing(self.queue))))

    def call(self, live: Queue | None) -> str:
        """Change the job in Redis; return the outcome."""
        which = self.address._asdict()
        if live is None:
            return self.nothing
        if self.when is None:
            return live.cancel(self.id, **which) or GONE
        if self.verb == "run_now":
            return MOVED if live.run_now(self.id, **which) else NOT_WAITING
        due_ms, delay_ms = self.when["due_ms"], self.when["delay_ms"]
        if delay_ms is not None:  # the due time is fixed at the call, so the wait for the commit is part of the delay
            delay_ms = max(0, delay_ms - int((time.monotonic() - self.called_at) * 1000))
        return MOVED if live.reschedule(self.id, due_ms=due_ms, delay_ms=delay_ms, **which) else NOT_WAITING

    def notify(self, outcome: R) -> R:
        """Send the signal of a cancelled job; return the outcome."""
        if outcome in (CANCELLED, STOPPING):
            emit(job_cancelled, self.task, id=self.id, queue=self.queue, outcome=outcome)
        return outcome


def apply(change: Change) -> Any:
    """Change the rows of a job, then Redis, now or after the commit.

    Returns:
        Of a cancellation: cancelled, stopping or False; of a movement: True or False; of both: on_commit or outbox.

    Raises:
        IdTaken, QueueUnavailable: see :meth:`Change.send`.
    """
    waits = in_transaction(change.using)
    if change.durable or durability.in_use(change.alias, change.queue, change.task):
        change.change_rows()
    description = CallDescription(change.verb, change.queue, change.id, change.task)
    outcome = now_or_on_commit(lambda: change.send(patiently=not waits), description, using=change.using)
    return _RESULTS.get(outcome, outcome)


def _change_rows(mine: QuerySet[OutboxJob], when: DueTime | None) -> dict[uuid.UUID, bool]:
    """Cancel or move rows. Return their keys, with True for those that are not known to have been sent."""
    states = mine.model.CANCELLABLE if when is None else mine.model.LIVE
    found = mine.filter(state__in=states).values_list("key", "state")
    unsent = {key: state in ("unsent", "refused") for key, state in found}
    for keys in rows.chunks(unsent):
        rows.change(mine.filter(key__in=keys, state__in=states), when)
    return unsent


def _push(alias: str, changes: Sequence[Change]) -> list[Any]:
    """Push the changed rows of jobs. Return for each job the outcome, or IdTaken."""
    keys = [key for change in changes for key in change.unsent]
    results = push_briefly(alias, keys, addresses={(change.queue, change.id): change.address for change in changes})
    missing = [key for key in keys if key not in results]
    left = rows.states(alias, missing) if missing else {}
    return [change.notify(_outcome_of(change, results, left)) for change in changes]


def _outcome_of(change: Change, results: Mapping[uuid.UUID, RowResult], left: Mapping[uuid.UUID, str]) -> Any:
    """Return the outcome of a change, given the results of its rows, and the states of rows that were not pushed."""
    was_unsent = any(change.unsent.values())
    result = next((results[key] for key in change.unsent if key in results), None)
    if result is None:
        # Unsent rows are sent as they were changed. Other rows are in other hands, and so was a cancelled one that is
        # gone by now: that process has cancelled the job. A moved row that is gone belongs to a job that has ended.
        is_gone = change.when is None and not was_unsent
        if is_gone or any(left.get(key, "unsent") != "unsent" for key in change.unsent):
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
    changes = [
        Change(verb, queue.name, ident, when, request=request) for ident, request in zip(idents, requests, strict=True)
    ]
    outcomes: dict[int, str] = {}
    for alias in durability.outboxes(queue.kind):
        _change_many_rows(alias, queue.name, [change for change in changes if not change.unsent])
        mine = [change for change in changes if change.unsent and change.using is None]
        for change in mine:
            change.using = alias
        description = CallDescription(verb, queue.name, "")
        found = now_or_on_commit(partial(_push, alias, mine), description, using=alias) if mine else ()
        found = [found] * len(mine) if found == ON_COMMIT else found
        outcomes.update(zip(map(id, mine), found, strict=True))
    for change in changes:
        if not change.unsent:
            outcome = change.notify(change.call(queue))
            is_sent = change.is_repeated and outcome == change.nothing  # long ago, or a relay sends it
            outcomes[id(change)] = ScheduleOutcome.OUTBOX if is_sent else outcome
    return [str(outcomes[id(change)]) for change in changes]


def _change_many_rows(alias: str, queue: str, changes: Sequence[Change]) -> None:
    """Change the rows of jobs, and record the requests in the same transaction, with the tasks of changed rows."""
    from ..models import InboxEntry

    keyed = {uuid.UUID(bytes=change.request): change for change in changes if change.request}
    with transaction.atomic(using=alias):
        seen: dict[uuid.UUID, str] = {}
        for keys in rows.chunks(keyed):
            seen.update(InboxEntry.objects.using(alias).filter(pk__in=keys).values_list("pk", "task"))
        for key, task in seen.items():
            keyed[key].is_repeated |= task != ""
        done = {id(keyed[key]) for key in seen}
        by_id = {change.id: change for change in changes if id(change) not in done}
        tasks: dict[str, str] = {}
        for ids in rows.chunks(by_id):
            mine = rows.table(alias).filter(queue=queue, job_id__in=ids)
            owners = {key: (ident, task) for key, ident, task in mine.values_list("key", "job_id", "task")}
            for key, unsent in _change_rows(mine, changes[0].when).items():
                ident, task = owners[key]
                tasks[ident] = task
                by_id[ident].unsent[key] = unsent
        entries = [
            InboxEntry(key=key, queue=queue, job_id=keyed[key].id, task=tasks.get(keyed[key].id, ""))
            for key in keyed.keys() - seen.keys()
        ]
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
