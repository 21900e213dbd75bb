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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

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
from .push import FREE, MOVED, NOT_WAITING, RowOutcome, RowResult
from .rows import NOW, DueTime

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..models import OutboxJob
    from ..scheduling.verbs import JobHandle

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
        handle: the handle of the job, if the caller has one; it identifies one job of the id, as far as it knows it by
            now.
        request: request id for the call to Redis; None = a new one.
        is_repeated: the same request has changed rows before, so no job is changed again.
        rows: keys of the rows that were changed; True = Redis did not have the job.
        outcome: of the change, or IdTaken; "" = it was not sent yet.
    """

    verb: str
    queue: str
    id: str
    when: DueTime | None
    task: Task | None = None
    handle: JobHandle | None = None
    request: bytes | None = None
    is_repeated: bool = False
    rows: dict[uuid.UUID, bool] = field(default_factory=dict)
    outcome: str | IdTaken = ""
    called_at: float = field(default_factory=time.monotonic)

    @property
    def address(self) -> dict[str, Any]:
        """The way to name the job in a call to Redis."""
        # Jobs of a renamed task also have the old name, so the live job may have any.
        name = "" if self.task is None or self.task.options.aliases else self.task.name
        generation = None if self.handle is None else self.handle.generation
        return {"task": name, "generation": _NO_JOB if self.is_repeated else generation, "request": self.request}

    @property
    def nothing(self) -> str:
        """Outcome if there is no such job."""
        return GONE if self.when is None else NOT_WAITING

    def call(self, live: Queue | None) -> None:
        """Change a job without rows in Redis."""
        which, when, done = self.address, self.when, ""
        if live is not None and when is None:
            done = live.cancel(self.id, **which)
        elif live is not None and self.verb == "run_now":
            done = MOVED if live.run_now(self.id, **which) else ""
        elif live is not None and when is not None:
            due_ms, delay_ms = when["due_ms"], when["delay_ms"]
            # The due time is fixed at the call, so the wait for the commit is part of the delay.
            if delay_ms is not None:
                delay_ms = max(0, delay_ms - int((time.monotonic() - self.called_at) * 1000))
            done = MOVED if live.reschedule(self.id, due_ms=due_ms, delay_ms=delay_ms, **which) else ""
        self.end(done or (ScheduleOutcome.OUTBOX if self.is_repeated else self.nothing))

    def end(self, outcome: str | IdTaken) -> None:
        """Store the outcome, and send the signal of a cancelled job."""
        self.outcome = outcome
        if outcome in (CANCELLED, STOPPING):
            emit(job_cancelled, self.task, id=self.id, queue=self.queue, outcome=outcome)


def apply(change: Change, using: str | None, *, durable: bool) -> Any:
    """Change the rows of a job, then Redis, now or after the commit.

    Args:
        using: alias of the database whose transaction to wait for.
        durable: True if the job is known to have a row.

    Returns:
        Of a cancellation: cancelled, stopping or False; of a movement: True or False; of both: on_commit or outbox.

    Raises:
        IdTaken: the live job of the id belongs to another task.
        QueueUnavailable: Redis is unavailable, and the job has no row.
    """
    alias = using or DEFAULT_DB_ALIAS
    call = call_briefly if in_transaction(using) else call_patiently
    if durable or durability.in_use(alias, change.queue, change.task):
        mine, which = rows.table(alias).filter(queue=change.queue, job_id=change.id), change.address
        if which["task"]:
            mine = mine.filter(task=which["task"])
        if which["generation"] is not None:
            mine = mine.filter(key__in=[uuid.UUID(bytes=key) for key in which["generation"].keys])
        change.rows = {row.key: is_unsent for row, is_unsent in _change_rows(mine, change.when)}

    def send() -> object:
        if change.rows:
            _push(alias, [change])
        else:
            call(lambda broker: change.call(broker.existing(change.queue)))
        if isinstance(change.outcome, IdTaken):
            raise change.outcome
        return _RESULTS.get(change.outcome, change.outcome)

    return now_or_on_commit(send, CallDescription(change.verb, change.queue, change.id, change.task), using=using)


def _change_rows(mine: QuerySet[OutboxJob], when: DueTime | None) -> list[tuple[OutboxJob, bool]]:
    """Cancel or move rows. Return them, with True for those that are not known to have been sent."""
    states = mine.model.CANCELLABLE if when is None else mine.model.LIVE
    found = list(mine.filter(state__in=states).only("key", "job_id", "task", "state"))
    for some in rows.chunks(found):
        rows.change(mine.filter(pk__in=[row.pk for row in some], state__in=states), when)
    return [(row, row.state in ("unsent", "refused")) for row in found]


def _push(alias: str, changes: Sequence[Change]) -> None:
    """Push the changed rows of jobs, and store the outcomes."""
    keys = [key for change in changes for key in change.rows]
    results = push_briefly(alias, keys, addresses={(change.queue, change.id): change.address for change in changes})
    missing = [key for key in keys if key not in results]
    unsent = rows.table(alias).filter(key__in=missing, state="unsent").values_list("key", flat=True) if missing else ()
    results.update(dict.fromkeys(unsent, RowResult(RowOutcome.UNSENT)))  # they are sent as they were changed
    for change in changes:
        change.end(_outcome_of(change, next((results[key] for key in change.rows if key in results), FREE)))


def _outcome_of(change: Change, result: RowResult) -> str | IdTaken:
    """Return the outcome of a change, given the result of its rows."""
    was_unsent = any(change.rows.values())
    if result.outcome is RowOutcome.FREE or (result.outcome is RowOutcome.UNSENT and not was_unsent):
        return ScheduleOutcome.OUTBOX  # Redis did not receive the change from here, or has lost the job
    if result.reply not in ("", NOT_WAITING):
        return result.reply
    return change.nothing if not was_unsent else CANCELLED if change.when is None else MOVED


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
    for alias in durability.outboxes(queue.kind):
        mine = _change_many_rows(alias, queue.name, [change for change in changes if not change.outcome])
        for change in mine:
            change.outcome = ON_COMMIT
        if mine:
            now_or_on_commit(partial(_push, alias, mine), CallDescription(verb, queue.name, ""), using=alias)
    for change in changes:
        if not change.outcome:
            change.call(queue)
    return [str(change.outcome) for change in changes]


def _change_many_rows(alias: str, queue: str, changes: Sequence[Change]) -> list[Change]:
    """Change the rows of jobs, and record the requests in the same transaction, with the tasks of changed rows.

    Returns:
        The changes of jobs that have rows.
    """
    from ..models import InboxEntry

    entries = InboxEntry.objects.using(alias)
    requests = {uuid.UUID(bytes=change.request): change for change in changes if change.request}
    tasks: dict[str, str] = {}
    with transaction.atomic(using=alias):
        for keys in rows.chunks(list(requests)):
            for key, task in entries.filter(pk__in=keys).values_list("pk", "task"):
                change = requests.pop(key)
                change.is_repeated |= task != ""
        by_id = {change.id: change for change in changes if not change.request} | {
            change.id: change for change in requests.values()
        }
        for ids in rows.chunks(by_id):
            mine = rows.table(alias).filter(queue=queue, job_id__in=ids)
            for row, is_unsent in _change_rows(mine, changes[0].when):
                tasks[row.job_id] = row.task
                by_id[row.job_id].rows[row.key] = is_unsent
        new = [
            InboxEntry(key=key, queue=queue, job_id=change.id, task=tasks.get(change.id, ""))
            for key, change in requests.items()
        ]
        entries.bulk_create(new, batch_size=rows.CHUNK, ignore_conflicts=True)
    return [change for change in changes if change.rows]


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
    for mine in _rows(queue):  # a due time that was not sent yet must not undo it
        rows.change(mine.filter(state="moved"), NOW)
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
        found = list(mine.filter(state__in=states).order_by("pk").values_list("pk", flat=True))
        for pks in rows.chunks(found, rows.CHUNK):
            done += rows.change(mine.filter(pk__in=pks, state__in=states), when)
            if progress:
                progress(done, done + 1)  # Redis comes next

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
