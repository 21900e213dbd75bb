"""Cancel, reschedule and run_now of jobs with rows: first the rows, in the caller's transaction, then Redis.

So a cancelled job stays cancelled even if Redis is unavailable or loses its data. A process that is sending the row at
the same moment finds the change when it writes its result (:mod:`.push`). A job without a row is changed in Redis only.

There are three forms: of one job (:func:`apply`), of many jobs of a queue by their ids (:func:`change_many`), and of
all waiting jobs of a queue (:func:`cancel_all`, :func:`run_all_now`). The latter two look into every outbox, because
the rows may be those of other processes.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django.db import DEFAULT_DB_ALIAS, transaction

from .. import connections
from ..core import bulk
from ..core.bulk import Changed, Progress, Verb
from ..core.errors import IdTaken
from ..core.outcomes import ScheduleOutcome
from ..core.queue import Queue
from ..signals import emit, job_cancelled
from ..transactions import ON_COMMIT, CallDescription, in_transaction, now_or_on_commit
from . import durability, inbox, rows
from .producer import call_briefly, push_briefly
from .push import FREE, MOVED, RowOutcome, RowResult, change_job
from .rows import NOW, DueTime

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..models import OutboxJob
    from ..scheduling.verbs import JobHandle

CANCELLED: Final = "cancelled"
STOPPING: Final = "stopping"
GONE: Final = "gone"
NOT_WAITING: Final = "not_waiting"


#: results of the functions of :mod:`django_delayq` that differ from the outcomes
_RESULTS: Final[dict[object, bool]] = {MOVED: True, GONE: False, NOT_WAITING: False}


@dataclass(slots=True)
class Change:
    """Change of a job that was requested by a verb.

    Attributes:
        what: verb, queue, id and, if the caller named it, the task.
        when: the new due time; None = the job is cancelled. A delay counts from now on.
        handle: the handle of the job, if the caller has one; it identifies one job of the id, as far as it knows it by
            now.
        request: request id for the call to Redis; None = a new one.
        rows: keys of the rows that were changed; True = Redis did not have the job.
        outcome: of the change, or IdTaken; "" = it was not sent yet.
    """

    what: CallDescription
    when: DueTime | None
    handle: JobHandle | None = None
    request: bytes | None = None
    rows: dict[uuid.UUID, bool] = field(default_factory=dict)
    outcome: str | IdTaken = ""
    called_at: float = field(default_factory=time.monotonic)

    @property
    def task_name(self) -> str:
        """Name of the task that the job must have; "" = any, because jobs of a renamed task also have its old name."""
        task = self.what.task
        return "" if task is None or task.options.aliases else task.name

    def call(self, live: Queue | None) -> None:
        """Change a job without rows in Redis."""
        due, done = self.when, ""
        # The due time is fixed at the call, so the wait for the commit is part of the delay.
        if due is not None and due["delay_ms"]:
            waited_ms = int((time.monotonic() - self.called_at) * 1000)
            due = DueTime(due_ms=None, delay_ms=max(0, due["delay_ms"] - waited_ms))
        if live is not None:
            generation = None if self.handle is None else self.handle.generation
            done = change_job(live, self.what.id, due, task=self.task_name, generation=generation, request=self.request)
        self.end(done or (GONE if due is None else NOT_WAITING))

    def pushed(self, results: Mapping[uuid.UUID, RowResult]) -> None:
        """Store the outcome, given the results of the rows that were pushed."""
        mine = [results[key] for key in self.rows]
        replies = [result.reply for result in mine if result.reply]
        was_unsent = any(self.rows.values())
        # Redis did not receive the change from here, or has lost the job.
        left = [RowOutcome.FREE] if was_unsent else [RowOutcome.FREE, RowOutcome.UNSENT]
        if replies:
            self.end(replies[0])
        elif any(result.outcome in left for result in mine):
            self.end(ScheduleOutcome.OUTBOX)
        elif self.when is None:
            self.end(CANCELLED if was_unsent else GONE)
        else:
            self.end(MOVED if was_unsent else NOT_WAITING)

    def end(self, outcome: str | IdTaken) -> None:
        """Store the outcome, and send the signal of a cancelled job."""
        self.outcome = outcome
        if outcome in (CANCELLED, STOPPING):
            emit(job_cancelled, self.what.task, id=self.what.id, queue=self.what.queue, outcome=outcome)


def apply(what: CallDescription, when: DueTime | None, job: JobHandle, using: str | None) -> Any:
    """Change the rows of a job, then Redis, now or after the commit.

    Args:
        what, when: see :class:`Change`.
        job: the handle of the job, or of the live job of an id.
        using: alias of the database whose transaction to wait for.

    Returns:
        Of a cancellation: cancelled, stopping or False; of a movement: True or False; of both: on_commit or outbox.

    Raises:
        IdTaken: the live job of the id belongs to another task.
        QueueUnavailable: Redis is unavailable, and the job has no row.
    """
    alias, change, waits = using or DEFAULT_DB_ALIAS, Change(what, when, job), in_transaction(using)
    if job.durable or durability.in_use(alias, what.queue, what.task):
        mine = rows.table(alias).filter(queue=what.queue, job_id=what.id)
        if change.task_name:
            mine = mine.filter(task=change.task_name)
        if job.generation is not None:
            mine = mine.filter(key__in=[uuid.UUID(bytes=key) for key in job.generation.keys])
        change.rows = {row.key: is_unsent for row, is_unsent in _change_rows(mine, when)}

    def send() -> object:
        if change.rows:
            _push(alias, [change])
        elif waits:
            call_briefly(lambda broker: change.call(broker.existing(what.queue)))
        else:  # the caller prefers a longer wait to no reply
            change.call(connections.existing_queue(what.queue))
        if isinstance(change.outcome, IdTaken):
            raise change.outcome
        return _RESULTS.get(change.outcome, change.outcome)

    return now_or_on_commit(send, what, using=using)


def _change_rows(mine: QuerySet[OutboxJob], when: DueTime | None) -> list[tuple[OutboxJob, bool]]:
    """Cancel or move rows. Return them, with True for those that are not known to have been sent."""
    states = mine.model.CANCELLABLE if when is None else mine.model.LIVE
    found = list(mine.filter(state__in=states).only("key", "job_id", "task", "state").order_by("pk"))
    for some in rows.chunks(found):
        rows.change(mine.filter(pk__in=[row.pk for row in some], state__in=states), when)
    return [(row, row.state in ("unsent", "refused")) for row in found]


def _push(alias: str, changes: Sequence[Change]) -> None:
    """Push the changed rows of jobs, and store the outcomes."""
    keys = [key for change in changes for key in change.rows]
    results = push_briefly(alias, keys)
    missing = [key for key in keys if key not in results]  # sent as they were changed, or in other hands
    unsent = rows.table(alias).filter(key__in=missing, state="unsent").values_list("key", flat=True) if missing else ()
    results |= dict.fromkeys(missing, FREE) | dict.fromkeys(unsent, RowResult(RowOutcome.UNSENT))
    for change in changes:
        change.pushed(results)


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
            request id, because another job may have taken the id when it is executed again.

    Returns:
        For each job: cancelled, stopping (it is running and will not be retried) or gone; moved or not_waiting; outbox.

    Raises:
        QueueUnavailable: Redis is unavailable; durable jobs are changed in the outbox all the same.
    """
    changes = [
        Change(CallDescription(verb, queue.name, ident), when, request=request)
        for ident, request in zip(idents, requests, strict=True)
    ]
    for alias in durability.outboxes(queue.kind):
        mine = _change_many_rows(alias, queue.name, [change for change in changes if not change.outcome])
        if mine:
            now_or_on_commit(partial(_push, alias, mine), CallDescription(verb, queue.name, ""), using=alias)
    for change in changes:
        if not change.outcome:
            change.call(queue)
    return [str(change.outcome) for change in changes]


def _change_many_rows(alias: str, queue: str, changes: Sequence[Change]) -> list[Change]:
    """Change the rows of jobs, and record the requests, with the tasks of changed rows, in one transaction.

    Returns:
        The changes of jobs that have rows. Their outcome is on_commit; that of repeated requests which have changed
        rows is outbox.
    """
    repeated = inbox.done([change.request for change in changes if change.request], alias)
    for change in changes:
        change.outcome = ScheduleOutcome.OUTBOX if repeated.get(change.request or b"") else ""
    by_id = {change.what.id: change for change in changes if change.request not in repeated}
    tasks: dict[str, str] = {}
    with transaction.atomic(using=alias):
        for ids in rows.chunks(by_id):
            mine = rows.table(alias).filter(queue=queue, job_id__in=ids)
            for row, is_unsent in _change_rows(mine, when=changes[0].when):
                tasks[row.job_id] = row.task
                by_id[row.job_id].rows[row.key] = is_unsent
                by_id[row.job_id].outcome = ON_COMMIT
        requests = [(change.request, change.what.id) for change in by_id.values()]
        inbox.enter(((key, queue, ident, tasks.get(ident, "")) for key, ident in requests if key), alias)
    return [change for change in by_id.values() if change.rows]


# -- all waiting jobs of a queue ---------------------------------------------------------------------------------------


def cancel_all(queue: Queue, **limits: Any) -> Changed:
    """Cancel every waiting job, also those that Redis has refused; see :data:`..core.bulk.CANCEL`.

    Args:
        limits: ``seconds`` after which no further chunk is changed, so that another call continues; ``progress``.

    Raises:
        QueueUnavailable: Redis is unavailable; jobs that were never sent are cancelled all the same.
    """
    return _on_all(queue, bulk.CANCEL, None, **limits)


def run_all_now(queue: Queue, **limits: Any) -> Changed:
    """Make every waiting job due now; see :data:`..core.bulk.RUN_NOW`, and :func:`cancel_all` for ``limits``.

    Raises:
        QueueUnavailable: Redis is unavailable; jobs that were never sent are due as soon as it is back.
    """
    for mine in _rows(queue):  # a due time that was not sent yet must not undo it
        rows.change(mine.filter(state="moved"), NOW)
    return _on_all(queue, bulk.RUN_NOW, NOW, **limits)


def count_unsent(queue: Queue) -> int:
    """Return the number of durable jobs of the queue that were not sent to Redis yet."""
    return sum(mine.filter(state="unsent").count() for mine in _rows(queue))


def forget_queue(aliases: Sequence[str], queue: str) -> int:
    """Delete the outbox rows of a queue that was deleted with all its jobs. Return their number."""
    return sum(rows.purge(rows.table(alias).filter(queue=queue)) for alias in aliases if durability.has_table(alias))


def _on_all(
    queue: Queue, verb: Verb, when: DueTime | None, seconds: float = math.inf, progress: Progress | None = None
) -> Changed:
    """Change the rows of jobs that Redis does not have, then the jobs that it has.

    Jobs that Redis has are changed there only, because running ones are left alone.

    Args:
        when: see :func:`.rows.change`.
    """
    # States of rows whose jobs Redis certainly does not have, unless they are being sent.
    states, outcome = (("unsent", "refused"), CANCELLED) if when is None else (("unsent",), MOVED)
    give_up, done = time.monotonic() + seconds, 0
    for mine in _rows(queue):  # first what needs no Redis
        found = list(mine.filter(state__in=states).order_by("pk").values_list("pk", flat=True))
        for pks in rows.chunks(found, rows.CHUNK):
            done += rows.change(mine.filter(pk__in=pks, state__in=states), when)
            if time.monotonic() >= give_up:
                return Changed(Counter({outcome: done}), done, done + 1, cursor="rows")
    changed = bulk.change(queue, verb, seconds=give_up - time.monotonic(), progress=progress)
    changed.counts += Counter({outcome: done})
    changed.examined += done
    changed.total += done
    return changed


def _rows(queue: Queue) -> Iterator[QuerySet[OutboxJob]]:
    """Yield the rows of a queue in each database."""
    for alias in durability.outboxes(queue.kind):
        yield rows.table(alias).filter(queue=queue.name)
