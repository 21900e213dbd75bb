"""The writers' statements on the outbox table. All times are those of the database."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.db import transaction
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

from ..core.job import Generation, NewJob
from ..core.records.packed import pack_job
from .due import DueTime, RowDue, delay_age

if TYPE_CHECKING:
    from ..models import OutboxJob

#: seconds for which a writer claims its rows after the commit
CLAIM: Final = 2.0
#: rows of one statement
CHUNK: Final = 500
#: jobs that travel together: no more than one call of a script takes, so that those of one id keep their order
TOGETHER: Final = 250

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Claimed:
    """A row that is ours for a while, as it was at ``read_at`` (``time.monotonic()``)."""

    state: str
    due: RowDue
    moved_by: uuid.UUID | None
    read_at: float


def table(alias: str) -> QuerySet[OutboxJob]:
    """All rows of one database."""
    from ..models import OutboxJob  # the models are not there yet when task modules are imported

    return OutboxJob.objects.using(alias)


def free() -> Q:
    """Rows that nobody is telling Redis right now."""
    return Q(claim=None) | Q(claimed_until__lte=Now())


def ahead(seconds: float) -> Combinable:
    """The database's clock in ``seconds``."""
    return Now() + timedelta(seconds=seconds)


def key_of(new: NewJob) -> uuid.UUID:
    """The key of a job's row: that of its generation, of a merged job that of its payload."""
    return uuid.UUID(bytes=new.key if new.payload is None else new.payload.key)


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """``items`` in lists of at most ``size``."""
    chunk: list[T] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def insert(alias: str, queue: str, news: Sequence[NewJob], *, supersede: bool = True) -> None:
    """Writes a row for each job. A delay counts from now on, by the database's clock.

    Arguments:
        supersede: durable plain jobs that replace push earlier rows of their ids out. False: these go when Redis says
            that their jobs have ended.
    """
    from ..models import OutboxJob

    made = [
        OutboxJob(
            key=key_of(new),
            queue=queue,
            job_id=new.id,
            task=new.task,
            due_ms=new.due_ms,
            delay_ms=new.delay_ms or 0,
            record=pack_job(new),
        )
        for new in news
    ]
    replacing = [new for new in news if not new.fresh and new.payload is None and new.on_conflict == "replace"]
    # Together, or a job that Redis has might lose its row to one that was never written.
    with transaction.atomic(using=alias, savepoint=False) if supersede and replacing else nullcontext():
        for chunk in chunks(replacing if supersede else ()):
            _supersede(alias, queue, chunk)  # before they are there themselves
        if len(made) == 1:
            made[0].save(using=alias, force_insert=True)
        else:
            table(alias).bulk_create(made, batch_size=CHUNK)


def _supersede(alias: str, queue: str, news: Sequence[NewJob]) -> None:
    """What these jobs replace is not to be sent (again). What is on its way right now is sent before them."""
    states = table(alias).model.State
    mine = table(alias).filter(queue=queue, task=news[0].task)
    mine.filter(state=states.SENT, job_id__in=[new.id for new in news]).delete()
    # One that leaves something of its forerunner, the due time or the failures, needs it in Redis.
    whole = [new.id for new in news if new.due_policy == "replace" and new.reset_retries]
    if whole:
        mine.filter(free(), state__in=[states.UNSENT, states.MOVED], job_id__in=whole).delete()


def claim(alias: str, token: uuid.UUID, keys: Sequence[uuid.UUID], *, ordered: bool) -> dict[uuid.UUID, Claimed]:
    """Makes unsent rows ours for :data:`CLAIM` seconds.

    Arguments:
        token: what the claim is called.
        ordered: some of the ids were given by the caller, so that an earlier row of the same id may still wait; rows
            behind such a one are left alone, unless it is among ``keys``.

    Returns:
        What is ours now. What is missing was taken by somebody else, or is not wanted any more.
    """
    rows = table(alias)
    mine = rows.filter(key__in=keys, state=rows.model.State.UNSENT).filter(free())
    if ordered:
        mine = mine.exclude(key__in=_blocked(alias, keys))
    mine.update(claim=token, claimed_until=ahead(CLAIM))
    held = claimed(alias, token, keys)
    changed = [key for key, row in held.items() if row.state != "unsent"]
    if changed:  # in this very moment; not by us
        release(alias, token, changed)
    return {key: row for key, row in held.items() if key not in changed}


def _blocked(alias: str, keys: Sequence[uuid.UUID]) -> list[uuid.UUID]:
    # A query of its own: MySQL does not look into a table that it is updating.
    rows = table(alias)
    earlier = rows.filter(
        queue=OuterRef("queue"), job_id=OuterRef("job_id"), pk__lt=OuterRef("pk"), state__in=rows.model.WAITING
    ).exclude(key__in=keys)
    return list(rows.filter(Exists(earlier), key__in=keys).values_list("key", flat=True))


def claimed(alias: str, token: uuid.UUID, keys: Sequence[uuid.UUID]) -> dict[uuid.UUID, Claimed]:
    """What a claim holds now."""
    mine = table(alias).filter(key__in=keys, claim=token).annotate(age=delay_age())
    found = list(mine.values_list("key", "state", "moved_by", "due_ms", "delay_ms", "age"))
    now = time.monotonic()
    return {
        key: Claimed(state, RowDue.of(due_ms, delay_ms, age), moved_by, now)
        for key, state, moved_by, due_ms, delay_ms, age in found
    }


def states(alias: str, keys: Sequence[uuid.UUID]) -> dict[uuid.UUID, str]:
    """The states of those that are there."""
    return dict(table(alias).filter(key__in=keys).values_list("key", "state"))


def sent(alias: str, token: uuid.UUID, keys: Sequence[uuid.UUID], *, moved_by: uuid.UUID | None = None) -> int:
    """Redis has them.

    Arguments:
        moved_by: of a row that was moved, the reschedule that Redis got last.

    Returns:
        How many of our rows are still as they were told.
    """
    mine = table(alias).filter(key__in=keys, claim=token)
    mine = mine.filter(state="unsent") if moved_by is None else mine.filter(state="moved", moved_by=moved_by)
    return mine.update(state="sent", claim=None, claimed_until=None, sent_at=Now(), checked_at=Now(), tries=0, error="")


def drop(alias: str, token: uuid.UUID, keys: Sequence[uuid.UUID]) -> None:
    """They need no row any more."""
    table(alias).filter(key__in=keys, claim=token).delete()


def release(alias: str, token: uuid.UUID, keys: Sequence[uuid.UUID]) -> None:
    """Redis surely has not taken them: somebody else may try at once."""
    states = table(alias).model.State
    moved_back = Case(When(state=states.MOVED, then=Value(states.UNSENT)), default=F("state"))
    table(alias).filter(key__in=keys, claim=token).update(claim=None, claimed_until=None, state=moved_back)


# -- what is said about an id that may have rows ---------------------------------------------------------------------


def of_job(alias: str, queue: str, job_id: str, task: str, generation: Generation | None = None) -> QuerySet[OutboxJob]:
    """Return the rows of an id that are still to run.

    Arguments:
        task: of this task only; "" = of any.
        generation: of this job only; None = of all.
    """
    rows = table(alias)
    states = rows.model.State
    found = rows.filter(queue=queue, job_id=job_id, state__in=[states.UNSENT, states.SENT, states.MOVED])
    found = found.filter(task=task) if task else found
    if generation is None:
        return found
    return found.filter(key__in=[uuid.UUID(bytes=key) for key in generation.keys])


def look(found: QuerySet[OutboxJob]) -> dict[uuid.UUID, bool]:
    """Keys of rows, and whether they were not known to have been sent."""
    return {key: state == "unsent" for key, state in found.values_list("key", "state")}


def take_back(found: QuerySet[OutboxJob]) -> None:
    """They are to be cancelled, wherever they are."""
    found.update(state=found.model.State.CANCELLED)


def move(found: QuerySet[OutboxJob], when: DueTime, moved_by: uuid.UUID) -> None:
    """They are due at another time. One that is on its way may arrive with the old time, so Redis is told again.

    Arguments:
        when: the new due time; a delay counts from now on, by the database's clock.
        moved_by: names this reschedule.
    """
    states = found.model.State
    state = Case(When(Q(state=states.UNSENT) & free(), then=Value(states.UNSENT)), default=Value(states.MOVED))
    due: dict[str, Any] = {"due_ms": when["due_ms"], "delay_ms": when["delay_ms"] or 0, "delay_from": Now()}
    found.update(state=state, moved_by=moved_by, **due)


def claim_cancelled(alias: str, token: uuid.UUID, keys: Sequence[uuid.UUID]) -> None:
    """Makes those that nobody has in hand ours for :data:`CLAIM` seconds: what comes for their ids waits so long."""
    for chunk in chunks(keys):
        rows = table(alias)
        mine = rows.filter(free(), key__in=chunk, state=rows.model.State.CANCELLED)
        mine.update(claim=token, claimed_until=ahead(CLAIM))


def told_cancelled(alias: str, token: uuid.UUID, keys: Sequence[uuid.UUID]) -> None:
    """Redis knows that they are cancelled. A row that somebody else has in hand is left to the relay."""
    for chunk in chunks(keys):
        rows = table(alias)
        rows.filter(free() | Q(claim=token), key__in=chunk, state=rows.model.State.CANCELLED).delete()


def told_moved(alias: str, keys: Sequence[uuid.UUID], moved_by: uuid.UUID) -> None:
    """Redis knows their due time. A row that somebody else has in hand is left to the relay."""
    for chunk in chunks(keys):
        rows = table(alias)
        states = rows.model.State
        rows.filter(free(), key__in=chunk, state=states.MOVED, moved_by=moved_by).update(
            state=states.SENT, sent_at=Now(), checked_at=Now()
        )
