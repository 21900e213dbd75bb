"""Cancel, reschedule and run_now of many jobs of a queue by their ids, including the rows of durable jobs.

Jobs with rows are handled like in :func:`django_delayq.cancel`: first the row, then Redis (:mod:`.row_verbs`). The rows
of all jobs of a call are looked up together, and not at all where durable jobs are not in use. Jobs without rows are
changed in Redis directly, with one short call each.

A call with request ids changes rows once. When it is executed again, other jobs may have taken the ids. So the inbox
records for each id that its rows were changed, in the transaction that changes them. For an id without rows it records
that there were none, before Redis is called.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..core.job import Generation
from ..core.outcomes import ScheduleOutcome
from ..core.queue import Queue
from ..models import InboxEntry
from ..signals import emit, job_cancelled
from . import durability, row_verbs, rows
from .due import NOW, DueTime

if TYPE_CHECKING:
    from ..connections import DjangoBroker

GONE: Final = "gone"
MOVED: Final = "moved"
NOT_WAITING: Final = "not_waiting"
#: for each job the request id of its call to Redis; None = a random one
Requests = Sequence[bytes | None]
#: a generation that no job has: a call with it gets the reply that Redis has stored for the request, or changes nothing
_NO_JOB: Final = Generation((bytes(16),))


@dataclass(slots=True)
class _Rows:
    """Rows of the jobs in a request.

    Attributes:
        homes: the database of each id with rows whose jobs have not ended.
        changed: request ids of the jobs whose rows were changed by an earlier execution of the request.
        plain: request ids of the jobs that had no rows then.
    """

    homes: dict[str, str] = field(default_factory=dict)
    changed: set[bytes] = field(default_factory=set)
    plain: set[bytes] = field(default_factory=set)

    def home(self, ident: str, request: bytes | None) -> str | None:
        """Return the database whose rows must be changed first; None = no rows, or none to change for this request."""
        return None if request in self.changed or request in self.plain else self.homes.get(ident)

    def generation(self, request: bytes | None) -> Generation | None:
        """Return the job that Redis may change; None = the live job of the id.

        After a change of rows it is a generation that no job has, because the relay sends that change to Redis.
        """
        return _NO_JOB if request in self.changed else None


def cancel(queue: Queue, idents: Sequence[str], requests: Requests) -> list[str]:
    """Cancel jobs; return for each: cancelled, stopping (it is running and will not be retried), gone or outbox.

    Raises:
        QueueUnavailable: Redis is unavailable; durable jobs are cancelled in the outbox all the same.
    """

    def one(ident: str, request: bytes | None, job_rows: _Rows) -> str:
        home = job_rows.home(ident, request)
        if home is not None:
            return row_verbs.apply(row_verbs.cancellation(_target(queue, ident, home, request))) or GONE
        outcome = queue.cancel(ident, generation=job_rows.generation(request), request=request)
        if outcome:
            emit(job_cancelled, None, id=ident, queue=queue.name, outcome=outcome)
        return outcome or (ScheduleOutcome.OUTBOX if request in job_rows.changed else GONE)

    return _change_each(queue, idents, requests, one)


def reschedule(queue: Queue, idents: Sequence[str], when: DueTime, requests: Requests) -> list[str]:
    """Set a new due time for waiting jobs; return for each: moved, not_waiting or outbox.

    Args:
        when: the due time; a delay counts from now on, by Redis's clock.

    Raises:
        QueueUnavailable: see :func:`cancel`.
    """

    def move(live: Queue, ident: str, request: bytes | None, generation: Generation | None) -> bool:
        return live.reschedule(ident, **when, generation=generation, request=request)

    return _move(queue, idents, "reschedule", when, requests, move)


def run_now(queue: Queue, idents: Sequence[str], requests: Requests) -> list[str]:
    """Make waiting jobs due now; return for each: moved, not_waiting or outbox.

    Raises:
        QueueUnavailable: see :func:`cancel`.
    """

    def move(live: Queue, ident: str, request: bytes | None, generation: Generation | None) -> bool:
        return live.run_now(ident, generation=generation, request=request)

    return _move(queue, idents, "run_now", NOW, requests, move)


def _move(
    queue: Queue,
    idents: Sequence[str],
    verb: str,
    when: DueTime,
    requests: Requests,
    move: Callable[[Queue, str, bytes | None, Generation | None], bool],
) -> list[str]:
    def one(ident: str, request: bytes | None, job_rows: _Rows) -> str:
        home = job_rows.home(ident, request)
        if home is None:
            if move(queue, ident, request, job_rows.generation(request)):
                return MOVED
            return ScheduleOutcome.OUTBOX if request in job_rows.changed else NOT_WAITING

        def send(broker: DjangoBroker) -> bool:
            live = broker.existing(queue.name)
            return live is not None and move(live, ident, request, None)

        answer = row_verbs.apply(row_verbs.movement(_target(queue, ident, home, request), verb, when, send))
        return answer if isinstance(answer, str) else MOVED if answer else NOT_WAITING

    return _change_each(queue, idents, requests, one)


def _change_each(
    queue: Queue, idents: Sequence[str], requests: Requests, one: Callable[[str, bytes | None, _Rows], str]
) -> list[str]:
    job_rows = _find_rows(queue, idents, requests)
    # Durable jobs first: their rows are then changed before a call for another job raises QueueUnavailable.
    order = sorted(range(len(idents)), key=lambda place: idents[place] not in job_rows.homes)
    outcomes = {place: one(idents[place], requests[place], job_rows) for place in order}
    return [outcomes[place] for place in range(len(idents))]


def _target(queue: Queue, ident: str, home: str, request: bytes | None) -> row_verbs.Target:
    return row_verbs.Target(queue.name, ident, None, "", home, durable=True, request=request)


def _databases_of(queue: Queue, idents: Sequence[str]) -> dict[str, str]:
    """Return the database of each id that has rows whose jobs have not ended."""
    databases: dict[str, str] = {}
    for alias in durability.outboxes(queue.kind):
        table = rows.table(alias)
        unfinished = table.filter(queue=queue.name, state__in=table.model.CANCELLABLE)
        for chunk in rows.chunks(idents):
            stored = unfinished.filter(job_id__in=chunk).values_list("job_id", flat=True)
            databases.update(dict.fromkeys(stored, alias))
    return databases


def _find_rows(queue: Queue, idents: Sequence[str], requests: Requests) -> _Rows:
    """Find the rows of these ids and the earlier executions of these requests; record the ids without rows."""
    job_rows = _Rows(_databases_of(queue, idents))
    keyed = {uuid.UUID(bytes=request): ident for ident, request in zip(idents, requests, strict=True) if request}
    aliases = list(durability.outboxes(queue.kind)) if keyed else []
    for alias in aliases:
        for chunk in rows.chunks(keyed):
            for key, task in InboxEntry.objects.using(alias).filter(pk__in=chunk).values_list("pk", "task"):
                (job_rows.changed if task else job_rows.plain).add(key.bytes)
    changed_before = job_rows.changed | job_rows.plain
    fresh = [
        InboxEntry(key=key, queue=queue.name, job_id=ident)
        for key, ident in keyed.items()
        if ident not in job_rows.homes and key.bytes not in changed_before
    ]
    if aliases and fresh:
        InboxEntry.objects.using(aliases[0]).bulk_create(fresh, batch_size=rows.CHUNK, ignore_conflicts=True)
    return job_rows
