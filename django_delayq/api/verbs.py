"""Cancel, reschedule and run now, for one job or many, the rows of durable jobs included.

Jobs that have rows in the outbox go the way of :func:`django_delayq.cancel`: first the row, then Redis. Which of them
have any is asked once for all of a request, and not at all where durable jobs are not in use. All others are told to
Redis directly, one short call each.

A request with a key changes rows once. When it is carried out once more, other jobs may have taken the ids. So the
inbox remembers for each id that its rows were changed, in the transaction that changes them; of an id without rows it
remembers before Redis is asked that there were none.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..core import bulk
from ..core.job import Generation
from ..core.operations.sweep import Progress
from ..core.queue import Queue
from ..models import InboxEntry
from ..outbox import durability, rows, verbs
from ..outbox.due import NOW, DueTime
from ..outbox.fast_path import OUTBOX
from ..repair.sweeping import Sweep
from ..settings.conf import conf
from ..signals import emit, job_cancelled
from . import idempotency

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..connections import DjangoBroker
    from ..models import OutboxJob
    from .idempotency import Kept

#: seconds that a verb for all jobs of a queue may take
LONGEST: Final = 10.0
GONE: Final = "gone"
MOVED: Final = "moved"
NOT_WAITING: Final = "not_waiting"
#: a generation that no job has: a call that names it gets the reply that Redis remembers, or changes nothing
_NO_JOB: Final = Generation((bytes(16),))


@dataclass(slots=True)
class _Rows:
    """Rows of the jobs that a request names.

    Attributes:
        homes: the database of each id that has rows which are still to run.
        changed: request ids of the jobs whose rows were changed when the request was carried out before.
        plain: request ids of the jobs that had no rows then.
    """

    homes: dict[str, str] = field(default_factory=dict)
    changed: set[bytes] = field(default_factory=set)
    plain: set[bytes] = field(default_factory=set)

    def home(self, ident: str, request: bytes | None) -> str | None:
        """Return the database whose rows are to be changed first; None = there are none, or not for this request."""
        return None if request in self.changed or request in self.plain else self.homes.get(ident)

    def generation(self, request: bytes | None) -> Generation | None:
        """Return which job Redis may change: none if rows of an earlier one were changed, which the relay tells it."""
        return _NO_JOB if request in self.changed else None


def cancel(queue: Queue, idents: Sequence[str], kept: Kept | None = None) -> list[str]:
    """Takes jobs back; for each: cancelled, stopping (it runs, and will not be tried again), gone or outbox.

    Args:
        queue: where they are.
        idents: the jobs.
        kept: of a request with a key: what it did before is recognised.

    Raises:
        QueueUnavailable: Redis is away; the durable jobs among them are noted in the outbox.
    """

    def one(ident: str, request: bytes | None, there: _Rows) -> str:
        home = there.home(ident, request)
        if home is not None:
            return verbs.cancel(_target(queue, ident, home, request)) or GONE
        outcome = queue.cancel(ident, generation=there.generation(request), request=request)
        if outcome:
            emit(job_cancelled, None, id=ident, queue=queue.name, outcome=outcome)
        return outcome or (OUTBOX if request in there.changed else GONE)

    return _each(queue, idents, kept, one)


def reschedule(
    queue: Queue, idents: Sequence[str], due_ms: int | None, delay_ms: int | None, kept: Kept | None = None
) -> list[str]:
    """Gives waiting jobs a new due time; for each: moved, not_waiting or outbox.

    Args:
        due_ms: Unix ms; or
        delay_ms: from now, on Redis's clock.
        kept: see :func:`cancel`.

    Raises:
        QueueUnavailable: see :func:`cancel`.
    """
    when = DueTime(due_ms=due_ms, delay_ms=delay_ms)

    def move(live: Queue, ident: str, request: bytes | None, generation: Generation | None) -> bool:
        return live.reschedule(ident, **when, generation=generation, request=request)

    return _move(queue, idents, "reschedule", when, kept, move)


def run_now(queue: Queue, idents: Sequence[str], kept: Kept | None = None) -> list[str]:
    """Makes waiting jobs due now; for each: moved, not_waiting or outbox.

    Args:
        queue, idents, kept: see :func:`cancel`.

    Raises:
        QueueUnavailable: see :func:`cancel`.
    """

    def move(live: Queue, ident: str, request: bytes | None, generation: Generation | None) -> bool:
        return live.run_now(ident, generation=generation, request=request)

    return _move(queue, idents, "run_now", NOW, kept, move)


def cancel_all(queue: Queue) -> dict[str, Any]:
    """Takes every waiting job out, and back what the outbox has not sent yet; see :func:`swept`."""
    counts = _unsent(queue, "cancelled", rows.take_back)
    return swept(lambda progress: bulk.cancel_all(queue, progress=progress), counts)


def run_all_now(queue: Queue) -> dict[str, Any]:
    """Makes every waiting job due now, those that the outbox has not sent yet as well; see :func:`swept`."""
    counts = _unsent(queue, MOVED, lambda unsent: rows.move(unsent, NOW, uuid.uuid4()))
    return swept(lambda progress: bulk.run_all_now(queue, progress=progress), counts)


def swept(act: Callable[[Progress], dict[str, int]], before: dict[str, int] | None = None) -> dict[str, Any]:
    """An answer about all jobs of a queue. If it was not complete in time, the same call goes on with the rest.

    Returns:
        ``counts`` by outcome (of a call that was not complete only what ``before`` says), ``complete``, and how many of
        ``total`` were ``seen``.
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
            return OUTBOX if request in there.changed else NOT_WAITING

        def tell(broker: DjangoBroker) -> bool:
            live = broker.existing(queue.name)
            return live is not None and move(live, ident, request, None)

        answer = verbs.move(_target(queue, ident, home, request), verb, when, tell)
        return answer if isinstance(answer, str) else MOVED if answer else NOT_WAITING

    return _each(queue, idents, kept, one)


def _each(
    queue: Queue, idents: Sequence[str], kept: Kept | None, one: Callable[[str, bytes | None, _Rows], str]
) -> list[str]:
    requests = idempotency.calls(kept, len(idents))
    there = _look(queue, idents, requests)
    # Durable jobs first: if Redis is away they are noted before the first of the others says so.
    order = sorted(range(len(idents)), key=lambda place: idents[place] not in there.homes)
    outcomes = {place: one(idents[place], requests[place], there) for place in order}
    return [outcomes[place] for place in range(len(idents))]


def _target(queue: Queue, ident: str, home: str, request: bytes | None) -> verbs.Target:
    return verbs.Target(queue.name, ident, None, "", home, durable=True, request=request)


def _outboxes(queue: Queue) -> Iterable[str]:
    if queue.kind != "pull":
        for alias in conf().outbox.databases:
            if durability.in_use(alias, queue.name, None):
                yield alias


def _with_rows(queue: Queue, idents: Sequence[str]) -> dict[str, str]:
    """Which of them have rows that are still to run: id → database."""
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
    """Find the rows of these ids, and what was done for these requests before; remember which ids have no rows."""
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
    """Does something to the rows of which Redis has not heard yet; how many there were."""
    number = 0
    for alias in _outboxes(queue):
        table = rows.table(alias)
        unsent = table.filter(queue=queue.name, state=table.model.State.UNSENT)
        number += unsent.count()
        change(unsent)
    return {outcome: number} if number else {}
