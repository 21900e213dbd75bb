"""Operations of the API on one job or many: cancel, reschedule and run now, including the rows of durable jobs.

Jobs with rows in the outbox are handled like in :func:`django_delayq.cancel`: first the row, then Redis. The rows of
all jobs of a request are looked up together, and not at all where durable jobs are not in use. Jobs without rows are
changed in Redis directly, with one short call each.

A request with an idempotency key changes rows once. When it is executed again, other jobs may have taken the ids. So
the inbox records for each id that its rows were changed, in the transaction that changes them. For an id without rows
it records that there were none, before Redis is called.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..core import bulk
from ..core.job import Generation
from ..core.operations.selection import Progress
from ..core.queue import Queue
from ..core.schedule_outcome import ScheduleOutcome
from ..models import InboxEntry
from ..outbox import durability, row_verbs, rows
from ..outbox.due import NOW, DueTime
from ..repair.sweeping import Sweep
from ..settings.conf import conf
from ..signals import emit, job_cancelled
from . import idempotency

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..connections import DjangoBroker
    from ..models import OutboxJob
    from .idempotency import Kept

#: maximum seconds of an operation on all jobs of a queue
LONGEST: Final = 10.0
GONE: Final = "gone"
MOVED: Final = "moved"
NOT_WAITING: Final = "not_waiting"
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


def cancel(queue: Queue, idents: Sequence[str], kept: Kept | None = None) -> list[str]:
    """Cancel jobs; return for each: cancelled, stopping (it is running and will not be retried), gone or outbox.

    Args:
        queue: the queue of the jobs.
        idents: ids of the jobs.
        kept: stored answer of a request with an idempotency key, so that repeated calls are recognised.

    Raises:
        QueueUnavailable: Redis is unavailable; durable jobs are cancelled in the outbox all the same.
    """

    def one(ident: str, request: bytes | None, there: _Rows) -> str:
        home = there.home(ident, request)
        if home is not None:
            return row_verbs.cancel(_target(queue, ident, home, request)) or GONE
        outcome = queue.cancel(ident, generation=there.generation(request), request=request)
        if outcome:
            emit(job_cancelled, None, id=ident, queue=queue.name, outcome=outcome)
        return outcome or (ScheduleOutcome.OUTBOX if request in there.changed else GONE)

    return _each(queue, idents, kept, one)


def reschedule(
    queue: Queue, idents: Sequence[str], due_ms: int | None, delay_ms: int | None, kept: Kept | None = None
) -> list[str]:
    """Set a new due time for waiting jobs; return for each: moved, not_waiting or outbox.

    Args:
        due_ms: the due time in Unix ms, or None.
        delay_ms: the delay in ms from now on, by Redis's clock, or None.
        kept: see :func:`cancel`.

    Raises:
        QueueUnavailable: see :func:`cancel`.
    """
    when = DueTime(due_ms=due_ms, delay_ms=delay_ms)

    def move(live: Queue, ident: str, request: bytes | None, generation: Generation | None) -> bool:
        return live.reschedule(ident, **when, generation=generation, request=request)

    return _move(queue, idents, "reschedule", when, kept, move)


def run_now(queue: Queue, idents: Sequence[str], kept: Kept | None = None) -> list[str]:
    """Make waiting jobs due now; return for each: moved, not_waiting or outbox.

    Args:
        queue, idents, kept: see :func:`cancel`.

    Raises:
        QueueUnavailable: see :func:`cancel`.
    """

    def move(live: Queue, ident: str, request: bytes | None, generation: Generation | None) -> bool:
        return live.run_now(ident, generation=generation, request=request)

    return _move(queue, idents, "run_now", NOW, kept, move)


def cancel_all(queue: Queue) -> dict[str, Any]:
    """Cancel every waiting job, including rows that the outbox has not sent yet; see :func:`swept`."""
    counts = _unsent(queue, "cancelled", rows.mark_cancelled)
    return swept(lambda progress: bulk.cancel_all(queue, progress=progress), counts)


def run_all_now(queue: Queue) -> dict[str, Any]:
    """Make every waiting job due now, including rows that the outbox has not sent yet; see :func:`swept`."""
    counts = _unsent(queue, MOVED, lambda unsent: rows.move(unsent, NOW, uuid.uuid4()))
    return swept(lambda progress: bulk.run_all_now(queue, progress=progress), counts)


def swept(act: Callable[[Progress], dict[str, int]], before: dict[str, int] | None = None) -> dict[str, Any]:
    """Execute an operation on all jobs of a queue and return the API's answer.

    The operation ends after :data:`LONGEST` seconds. If it is not complete then, the same call resumes with the rest.

    Args:
        act: the operation; called with a progress callback.
        before: counts to include, by outcome.

    Returns:
        ``counts`` by outcome (only those of ``before`` if the operation is not complete), ``complete``, ``total``, and
        the number of jobs processed as ``seen``.
    """
    sweep = Sweep(LONGEST)
    counts = dict(before or {})
    for outcome, number in sweep.run(act).items():
        counts[outcome] = counts.get(outcome, 0) + number
    return {"counts": counts, "complete": not sweep.over, "seen": sweep.seen, "total": sweep.total}


def _move(
    queue: Queue,
    idents: Sequence[str],
    verb: str,
    when: DueTime,
    kept: Kept | None,
    move: Callable[[Queue, str, bytes | None, Generation | None], bool],
) -> list[str]:
    def one(ident: str, request: bytes | None, there: _Rows) -> str:
        home = there.home(ident, request)
        if home is None:
            if move(queue, ident, request, there.generation(request)):
                return MOVED
            return ScheduleOutcome.OUTBOX if request in there.changed else NOT_WAITING

        def tell(broker: DjangoBroker) -> bool:
            live = broker.existing(queue.name)
            return live is not None and move(live, ident, request, None)

        answer = row_verbs.move(_target(queue, ident, home, request), verb, when, tell)
        return answer if isinstance(answer, str) else MOVED if answer else NOT_WAITING

    return _each(queue, idents, kept, one)


def _each(
    queue: Queue, idents: Sequence[str], kept: Kept | None, one: Callable[[str, bytes | None, _Rows], str]
) -> list[str]:
    requests = idempotency.calls(kept, len(idents))
    there = _look(queue, idents, requests)
    # Durable jobs first: their rows are then changed before a call for another job raises QueueUnavailable.
    order = sorted(range(len(idents)), key=lambda place: idents[place] not in there.homes)
    outcomes = {place: one(idents[place], requests[place], there) for place in order}
    return [outcomes[place] for place in range(len(idents))]


def _target(queue: Queue, ident: str, home: str, request: bytes | None) -> row_verbs.Target:
    return row_verbs.Target(queue.name, ident, None, "", home, durable=True, request=request)


def _outboxes(queue: Queue) -> Iterable[str]:
    if queue.kind != "pull":
        for alias in conf().outbox.databases:
            if durability.in_use(alias, queue.name, None):
                yield alias


def _with_rows(queue: Queue, idents: Sequence[str]) -> dict[str, str]:
    """Return the database of each id that has rows whose jobs have not ended."""
    found: dict[str, str] = {}
    for alias in _outboxes(queue):
        table = rows.table(alias)
        states = table.model.State
        mine = table.filter(queue=queue.name, state__in=[states.UNSENT, states.SENT, states.MOVED])
        for some in rows.chunks(idents):
            there = mine.filter(job_id__in=some).values_list("job_id", flat=True)
            found.update(dict.fromkeys(there, alias))
    return found


def _look(queue: Queue, idents: Sequence[str], requests: Sequence[bytes | None]) -> _Rows:
    """Find the rows of these ids and the earlier executions of these requests; record the ids without rows."""
    there = _Rows(_with_rows(queue, idents))
    keyed = {uuid.UUID(bytes=request): ident for ident, request in zip(idents, requests, strict=True) if request}
    aliases = list(_outboxes(queue)) if keyed else []
    for alias in aliases:
        for some in rows.chunks(keyed):
            for key, task in InboxEntry.objects.using(alias).filter(pk__in=some).values_list("pk", "task"):
                (there.changed if task else there.plain).add(key.bytes)
    known = there.changed | there.plain
    fresh = [
        InboxEntry(key=key, queue=queue.name, job_id=ident)
        for key, ident in keyed.items()
        if ident not in there.homes and key.bytes not in known
    ]
    if aliases and fresh:
        InboxEntry.objects.using(aliases[0]).bulk_create(fresh, batch_size=rows.CHUNK, ignore_conflicts=True)
    return there


def _unsent(queue: Queue, outcome: str, change: Callable[[QuerySet[OutboxJob]], None]) -> dict[str, int]:
    """Apply ``change`` to the rows that were not sent to Redis yet; return their number by ``outcome``."""
    number = 0
    for alias in _outboxes(queue):
        table = rows.table(alias)
        unsent = table.filter(queue=queue.name, state=table.model.State.UNSENT)
        number += unsent.count()
        change(unsent)
    return {outcome: number} if number else {}
