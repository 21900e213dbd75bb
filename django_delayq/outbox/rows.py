"""Rows of the outbox: the record of a job, its due time, and the SQL statements of all that writes rows.

All times are those of the database. The wall clock of the process that schedules or sends is never used: while a row
waits, the database's clock counts; from the moment the row is read, ``time.monotonic()`` counts, until the rest is
added to Redis's clock.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

import msgpack
from django.db import connections, transaction
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

from ..core.job import NewJob, Payload, Undecodable
from ..core.records.frames import digest

if TYPE_CHECKING:
    from ..models import OutboxJob

    Row = OutboxJob

#: rows of one statement
CHUNK: Final = 500
#: claims that no process holds: of a row that was changed while a process was sending it, so that the result must not
#: be written to it; and of a row that rests for a while, although Redis may have its job
CHANGED: Final = uuid.UUID(int=0)
RESTING: Final = uuid.UUID(int=1)
#: condition of a subquery: rows of the same job
_SAME_JOB: Final = {"queue": OuterRef("queue"), "job_id": OuterRef("job_id")}
_MS: Final = timedelta(milliseconds=1)

T = TypeVar("T")


# -- due times ---------------------------------------------------------------------------------------------------------


class DueTime(TypedDict):
    """Due time as the verbs of a queue accept it: one of the two values is None."""

    due_ms: int | None
    delay_ms: int | None


NOW: Final = DueTime(due_ms=None, delay_ms=0)


# -- records -----------------------------------------------------------------------------------------------------------

# Record of a requested job outside Redis, without its due time: version u8, then a map. A field with its default value
# is left out, so the record of an older release is read with the values that it meant. A new field that an old release
# must not ignore takes a new version; one that it may ignore takes a name that begins with ``_``.
RECORD_VERSION: Final = 1
_USUAL: Final = NewJob("", "")
_NOT_RECORDED: Final = {"due_ms", "delay_ms", "payload", "repeatable", "room_ms", "confirmed", "joined"}
_RECORD_FIELDS: Final = tuple(one.name for one in fields(NewJob) if one.name not in _NOT_RECORDED)


def pack_job(new: NewJob) -> bytes:
    """Return the record of a job, without its due time."""
    fields = {name: getattr(new, name) for name in _RECORD_FIELDS if getattr(new, name) != getattr(_USUAL, name)}
    if new.payload is not None:
        fields["payload"] = (new.payload.data, new.payload.score, new.payload.key)
    return bytes((RECORD_VERSION,)) + bytes(msgpack.packb(fields))


def unpack_job(record: bytes) -> NewJob:
    """Return the job of a record; it is due now, unless the caller changes that.

    Raises:
        Undecodable: the bytes are not a record of a supported version.
    """
    if record[:1] != bytes((RECORD_VERSION,)):
        version = record[0] if record else None
        raise Undecodable(f"this release cannot read record version {version}; upgrade django_delayq here")
    try:
        found = msgpack.unpackb(record[1:])
        fields = {name: value for name, value in found.items() if not name.startswith("_")}
        parts = fields.pop("payload", None)
        return NewJob(**{"id": "", "task": "", **fields}, payload=Payload(*parts) if parts else None)
    except (AttributeError, TypeError, ValueError) as error:
        raise Undecodable(f"a record cannot be read ({error}); is it of a newer django_delayq?") from None


def payload_digest(row: Row) -> bytes:
    """Return the digest by which Redis finds a merged job's payload; b"" for a plain job or an invalid record."""
    try:
        payload = unpack_job(bytes(row.record)).payload
    except Exception:  # any error of the reader; the relay refuses such a record
        return b""
    return b"" if payload is None else digest(payload.data)


def read(rows: QuerySet[OutboxJob]) -> list[Row]:
    """Return rows with one query, each with ``left_ms``, the rest of its delay; that of an overdue job is negative.

    SQLite's clock has whole milliseconds, so the last one of a delay's age is not counted. A clock that was set back
    does not make the delay longer.
    """
    found: list[Any] = list(rows.annotate(now=Now()))
    for row in found:
        row.left_ms = row.delay_ms - max(0, (row.now - row.delay_from) // _MS - 1)
    return found


# -- the table ---------------------------------------------------------------------------------------------------------


def table(alias: str) -> QuerySet[OutboxJob]:
    """Return all rows of one database."""
    from ..models import OutboxJob  # the models are not loaded yet when task modules are imported

    return QuerySet(OutboxJob, using=alias)


def waiting(alias: str, unclaimed: Q | None = None, **fields: Any) -> QuerySet[OutboxJob]:
    """Return unclaimed rows that wait to be sent to Redis."""
    rows = table(alias)
    return rows.filter(unclaimed or free(), state__in=rows.model.WAITING, **fields)


def free() -> Q:
    """Return the condition for rows that any process may claim now."""
    return Q(claimed_until=None) | Q(claimed_until__lte=Now())


def ahead(seconds: float) -> Combinable:
    """Return the expression for the database's time in ``seconds``."""
    return Now() + timedelta(seconds=seconds)


def key_of(new: NewJob) -> uuid.UUID:
    """Return the key of a job's row: the key of its generation, or for a merged job of its payload."""
    return uuid.UUID(bytes=new.key if new.payload is None else new.payload.key)


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Yield ``items`` in lists of at most ``size``."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def locking(alias: str) -> AbstractContextManager[Any]:
    """Return a transaction if rows can be locked, else (SQLite) a null context: each statement is guarded."""
    return transaction.atomic(using=alias) if connections[alias].features.has_select_for_update else nullcontext()


def unlocked(rows: QuerySet[OutboxJob]) -> QuerySet[OutboxJob]:
    """Return these rows with locks, without those that another transaction has locked."""
    features = connections[rows.db].features
    if not features.has_select_for_update:
        return rows
    return rows.select_for_update(skip_locked=features.has_select_for_update_skip_locked)


def beside(
    alias: str, pks: Iterable[int], states: Iterable[str] = (), condition: Q | None = None, *, later: bool = False
) -> set[int]:
    """Return those of ``pks`` that have an earlier row of the same job; or a later one.

    Args:
        states: of the other row; default: it waits, or is in Redis.
        condition: for the other row.
    """
    mine = table(alias)
    place = {"id__gt" if later else "id__lt": OuterRef("id")}
    states = states or (*mine.model.WAITING, mine.model.State.SENT)
    other = mine.filter(condition or Q(), **_SAME_JOB, **place, state__in=states)
    return set(mine.filter(Exists(other), pk__in=list(pks)).values_list("pk", flat=True))


def candidates(alias: str, limit: int) -> list[int]:
    """Lock and return up to ``limit`` waiting rows that are not behind a claimed row of their job, the oldest first."""
    states = table(alias).model.WAITING
    stuck = table(alias).filter(**_SAME_JOB, state__in=states, claimed_until__gt=Now(), id__lt=OuterRef("id"))
    locks_passed_rows = connections[alias].vendor == "mysql"
    # One query for each state: each can use the index, and reads no more than it returns.
    pks: list[int] = []
    for state in states:
        rows = table(alias).filter(free(), ~Exists(stuck), state=state)
        rows = (rows if locks_passed_rows else unlocked(rows)).order_by("id")
        pks += rows.values_list("id", flat=True)[:limit]
    pks = sorted(pks)[:limit]
    return list(unlocked(table(alias).filter(pk__in=pks)).values_list("id", flat=True)) if locks_passed_rows else pks


# -- new rows ----------------------------------------------------------------------------------------------------------


def insert(alias: str, queue: str, news: Sequence[NewJob]) -> None:
    """Insert a row for each job. A delay counts from now on, by the database's clock.

    Plain jobs with "replace" delete earlier rows of their ids.
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
    with transaction.atomic(using=alias, savepoint=False) if replacing else nullcontext():
        for chunk in chunks(replacing):
            _supersede(alias, queue, chunk)  # before the new rows exist
        if len(new_rows) == 1:
            new_rows[0].save(using=alias, force_insert=True)
        else:
            table(alias).bulk_create(new_rows, batch_size=CHUNK)


def _supersede(alias: str, queue: str, news: Sequence[NewJob]) -> None:
    """Delete rows that these jobs replace, so that they are not sent (again).

    Rows that are being sent now arrive before them.
    """
    states = table(alias).model.State
    mine = table(alias).filter(queue=queue, task=news[0].task)
    mine.filter(state__in=[states.SENT, states.REFUSED], job_id__in=[new.id for new in news]).delete()
    # A job that keeps its predecessor's due time or failures needs the predecessor in Redis.
    whole = [new.id for new in news if new.due_policy == "replace" and new.reset_retries]
    mine.filter(free(), state__in=[states.UNSENT, states.MOVED], job_id__in=whole).delete()


# -- changes -----------------------------------------------------------------------------------------------------------


def change(mine: QuerySet[OutboxJob], when: DueTime | None) -> int:
    """Cancel rows (None), or set another due time. Return their number.

    What a process that is sending such a row now will find out is not written to it: the row is sent again, because it
    may arrive as it was before. Until then it stays claimed.

    Args:
        when: the new due time; a delay counts from now on, by the database's clock.
    """
    states = mine.model.State
    never_sent = Q(claim=None)
    until = Case(When(never_sent | Q(claim=RESTING), then=None), default=F("claimed_until"))
    if when is None:
        due: Mapping[str, Any] = {"state": states.CANCELLED}
    else:
        state = Case(When(never_sent & Q(state=states.UNSENT), then=Value(states.UNSENT)), default=Value(states.MOVED))
        due = {"state": state, "due_ms": when["due_ms"], "delay_ms": when["delay_ms"] or 0, "delay_from": Now()}
    claim = Case(When(never_sent, then=None), default=Value(CHANGED))
    return mine.update(claimed_until=until, claim=claim, **due)


def purge(rows: QuerySet[Any]) -> int:
    """Delete rows in short transactions. Return their number."""
    count = 0
    while pks := list(rows.order_by("pk").values_list("pk", flat=True)[:CHUNK]):
        count += rows.filter(pk__in=pks).delete()[0]
    return count
