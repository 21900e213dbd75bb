"""SQL statements of the writers on the outbox table. All times are those of the database."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.db import IntegrityError, transaction
from django.db.models import Case, Exists, OuterRef, Q, QuerySet, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

from ..core.job import Generation, NewJob, request_for
from .due import DueTime, RowDue, delay_age
from .records import pack_job

if TYPE_CHECKING:
    from ..models import OutboxJob

#: seconds for which a writer claims its rows after the commit
CLAIM: Final = 2.0
#: rows of one statement
CHUNK: Final = 500
#: number of jobs sent together: no more than one script call takes, so that jobs of one id keep their order
TOGETHER: Final = 250
#: condition of a subquery: rows of the same job
SAME_JOB: Final = {"queue": OuterRef("queue"), "job_id": OuterRef("job_id")}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UnsentRow:
    """Row that its writer sends, as it was at ``read_at`` (``time.monotonic()``)."""

    pk: int
    state: str
    moved_by: uuid.UUID | None
    due: RowDue
    read_at: float


def table(alias: str) -> QuerySet[OutboxJob]:
    """Return all rows of one database."""
    from ..models import OutboxJob  # the models are not loaded yet when task modules are imported

    return OutboxJob.objects.using(alias)


def free() -> Q:
    """Return the condition for rows without a current claim."""
    return Q(claim=None) | Q(claimed_until__lte=Now())


def ahead(seconds: float) -> Combinable:
    """Return the expression for the database's time in ``seconds``."""
    return Now() + timedelta(seconds=seconds)


def key_of(new: NewJob) -> uuid.UUID:
    """Return the key of a job's row: the key of its generation, or for a merged job of its payload."""
    return uuid.UUID(bytes=new.key if new.payload is None else new.payload.key)


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Yield ``items`` in lists of at most ``size``."""
    chunk: list[T] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def insert(alias: str, queue: str, news: Sequence[NewJob], *, supersede: bool = True) -> None:
    """Insert a row for each job. A delay counts from now on, by the database's clock.

    Args:
        supersede: durable plain jobs with "replace" delete earlier rows of their ids. False: those rows are deleted
            when Redis reports that their jobs have ended.
    """
    from ..models import OutboxJob

    new_rows = [
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
    # In one transaction; otherwise a job in Redis might lose its row to one that was never written.
    with transaction.atomic(using=alias, savepoint=False) if supersede and replacing else nullcontext():
        for chunk in chunks(replacing if supersede else ()):
            _supersede(alias, queue, chunk)  # before the new rows exist
        if len(new_rows) == 1:
            new_rows[0].save(using=alias, force_insert=True)
        else:
            table(alias).bulk_create(new_rows, batch_size=CHUNK)


def insert_once(alias: str, queue: str, news: Sequence[NewJob]) -> bool:
    """Insert a row for each job; return False if the same repeatable request has inserted them before."""
    from ..models import InboxEntry

    if not news[0].repeatable:
        insert(alias, queue, news)
        return True
    key = uuid.UUID(bytes=request_for(news))
    entry = InboxEntry(key=key, queue=queue, job_id=news[0].id, task=news[0].task)
    try:
        with transaction.atomic(using=alias):
            entry.save(using=alias, force_insert=True)
            insert(alias, queue, news)
    except IntegrityError:
        if not InboxEntry.objects.using(alias).filter(pk=key).exists():
            raise
        return False
    return True


def _supersede(alias: str, queue: str, news: Sequence[NewJob]) -> None:
    """Delete rows that these jobs replace, so that they are not sent (again).

    Rows that are being sent now arrive before them.
    """
    states = table(alias).model.State
    mine = table(alias).filter(queue=queue, task=news[0].task)
    mine.filter(state__in=[states.SENT, states.REFUSED], job_id__in=[new.id for new in news]).delete()
    # A job that keeps its predecessor's due time or failures needs the predecessor in Redis.
    whole = [new.id for new in news if new.due_policy == "replace" and new.reset_retries]
    if whole:
        mine.filter(free(), state__in=[states.UNSENT, states.MOVED], job_id__in=whole).delete()


def unsent(alias: str, keys: Sequence[uuid.UUID], *, ordered: bool) -> QuerySet[OutboxJob]:
    """Return the unsent rows of ``keys`` that may be sent now.

    Args:
        ordered: some ids were given by the caller, so that an earlier row of the same id may still wait. Rows behind
            such a row are left out, unless it is among ``keys``.
    """
    rows = table(alias)
    sendable = rows.filter(key__in=keys, state=rows.model.State.UNSENT)
    if ordered:
        # Evaluated by itself, because MySQL cannot read a table that it is updating.
        blocked = behind(alias, Q(key__in=keys), rows.model.WAITING, ~Q(key__in=keys))
        sendable = sendable.exclude(key__in=list(blocked.values_list("key", flat=True)))
    return sendable


def behind(alias: str, condition: Q, states: Iterable[str], blocking: Q | None = None) -> QuerySet[OutboxJob]:
    """Return rows that have an earlier row of the same job in one of ``states``.

    Args:
        condition: condition for the rows.
        blocking: condition for the earlier rows.
    """
    earlier = table(alias).filter(blocking or Q(), **SAME_JOB, id__lt=OuterRef("id"), state__in=list(states))
    return table(alias).filter(Exists(earlier), condition)


def read(rows: QuerySet[OutboxJob]) -> dict[uuid.UUID, UnsentRow]:
    """Return the fields of rows that their writer needs, by key."""
    values = list(
        rows.annotate(age=delay_age()).values_list("key", "id", "state", "moved_by", "due_ms", "delay_ms", "age")
    )
    now = time.monotonic()
    return {
        key: UnsentRow(pk, state, moved_by, RowDue.of(due_ms, delay_ms, age), now)
        for key, pk, state, moved_by, due_ms, delay_ms, age in values
    }


def states(alias: str, keys: Sequence[uuid.UUID]) -> dict[uuid.UUID, str]:
    """Return the states of the rows that exist."""
    return dict(table(alias).filter(key__in=keys).values_list("key", "state"))


# -- rows of one id --------------------------------------------------------------------------------------------------


def of_job(alias: str, queue: str, job_id: str, task: str, generation: Generation | None = None) -> QuerySet[OutboxJob]:
    """Return the rows of an id, in every state.

    Args:
        task: only rows of this task; "" = any task.
        generation: only rows of this job; None = all jobs.
    """
    mine = table(alias).filter(queue=queue, job_id=job_id)
    mine = mine.filter(task=task) if task else mine
    if generation is None:
        return mine
    return mine.filter(key__in=[uuid.UUID(bytes=key) for key in generation.keys])


def unsent_by_key(mine: QuerySet[OutboxJob]) -> dict[uuid.UUID, bool]:
    """Return the keys of rows, with True for rows that are not known to have been sent."""
    return {key: state in ("unsent", "refused") for key, state in mine.values_list("key", "state")}


def mark_cancelled(mine: QuerySet[OutboxJob]) -> int:
    """Mark rows as cancelled in every state. Return their number."""
    return mine.update(state=mine.model.State.CANCELLED)


def move(mine: QuerySet[OutboxJob], when: DueTime, moved_by: uuid.UUID) -> int:
    """Set another due time for rows; return their number. A row that is being sent is sent again, as it may be late.

    Args:
        when: the new due time; a delay counts from now on, by the database's clock.
        moved_by: identifies this reschedule.
    """
    states = mine.model.State
    state = Case(When(Q(state=states.UNSENT) & free(), then=Value(states.UNSENT)), default=Value(states.MOVED))
    due: dict[str, Any] = {"due_ms": when["due_ms"], "delay_ms": when["delay_ms"] or 0, "delay_from": Now()}
    return mine.update(state=state, moved_by=moved_by, **due)


def cancelled(alias: str, keys: Sequence[uuid.UUID]) -> QuerySet[OutboxJob]:
    """Return the cancelled rows of ``keys``."""
    rows = table(alias)
    return rows.filter(key__in=keys, state=rows.model.State.CANCELLED)


def delete_cancelled(alias: str, token: uuid.UUID | None, keys: Sequence[uuid.UUID]) -> None:
    """Delete cancelled rows after Redis was updated. Rows claimed by others are left to the relay."""
    for chunk in chunks(keys):
        cancelled(alias, chunk).filter(free() | Q(claim=token)).delete()


def mark_moved_sent(alias: str, keys: Sequence[uuid.UUID], moved_by: uuid.UUID, *, moved: bool = True) -> None:
    """Mark moved rows as sent after Redis was updated. Rows claimed by others are left to the relay.

    Args:
        moved: False = the jobs do not wait (any more), so that Redis did not move them. If Redis loses one of them, it
            is due at once.
    """
    due: dict[str, Any] = {} if moved else {"due_ms": None, "delay_ms": 0, "delay_from": Now()}
    for chunk in chunks(keys):
        rows = table(alias)
        states = rows.model.State
        rows.filter(free(), key__in=chunk, state=states.MOVED, moved_by=moved_by).update(
            state=states.SENT, sent_at=Now(), checked_at=Now(), **due
        )
