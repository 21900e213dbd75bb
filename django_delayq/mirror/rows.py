"""Conversion of jobs in Redis to rows, without their secrets. Any job becomes a row that every database accepts.

Arguments, options and errors are masked as on all pages (:mod:`..masking`), because a table is read, copied and backed
up by more people than Redis. What cannot be searched for secrets is not stored: bytes that are no JSON, and positional
arguments of a task that this process does not know, whose names might be sensitive.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Final, TypeAlias
from uuid import UUID

from django.conf import settings
from django.db import connections
from django.utils import timezone

from ..core.codec import as_json, decode_args
from ..core.job import MAX_ID_BYTES, Job
from ..core.job_view import JobView
from ..core.task import registry
from ..masking import MOST_CHARACTERS
from ..models import NAME_LENGTH, FailedJob, MorgueJob
from ..settings.conf import mask

Model: TypeAlias = type[FailedJob] | type[MorgueJob]
Row: TypeAlias = FailedJob | MorgueJob

#: larger arguments are not copied
MOST_ARGS: Final = 64 * 1024
MOST_TEXT: Final = 64 * 1024
#: characters of an error that are searched for secrets; the mask reads one more to see that a text is longer
_MOST_ERROR: Final = 4 * MOST_CHARACTERS
KEY_BYTES: Final = 16
#: above this value a double is no longer an exact integer, so no script has written such a score
LAST_SCORE: Final = 1 << 53
FIRST_SCORE: Final = -LAST_SCORE
#: start of the last day of the calendar, in every time zone
_LATEST: Final = 253_402_128_000
_NO_KEY: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Entry:
    """Member of an index, with its score (µs)."""

    member: bytes
    score: int

    @property
    def name(self) -> tuple[str, UUID]:
        """``(id, key)`` of the row; a zero key if the index has only ids."""
        ident, key = split(self.member)
        return text(ident, NAME_LENGTH), key


@dataclass(frozen=True, slots=True)
class Place:
    """One of the two indexes, and the table that it is copied to."""

    name: str
    model: Model
    #: fields that identify a row
    unique: tuple[str, ...]
    #: the field with the time of the failure or burial
    moment: str

    def named(self, row: Row) -> tuple[Any, ...]:
        """Return the values that identify a row within its queue: the id, and in the morgue the key too."""
        return tuple(getattr(row, name) for name in self.unique[1:])


FAILED: Final = Place("failed", FailedJob, ("queue", "job_id"), "failed_at")
MORGUE: Final = Place("morgue", MorgueJob, ("queue", "job_id", "key"), "buried_at")
PLACES: Final = {place.name: place for place in (FAILED, MORGUE)}


def place_of(model: Model) -> Place:
    """Return the place that a table mirrors."""
    return MORGUE if issubclass(model, MorgueJob) else FAILED


def split(member: bytes) -> tuple[bytes, UUID]:
    """Return id and key of a member of either index. A member of the failed index is an id without a key."""
    ident, zero, key = member.partition(b"\0")
    if not zero:
        return ident, _NO_KEY
    return ident, UUID(bytes=key[:KEY_BYTES].ljust(KEY_BYTES, b"\0"))


def member_of(row: Row) -> bytes:
    """Return the member of the index that a row mirrors."""
    ident = row.job_id.encode()
    return ident + b"\0" + row.key.bytes if isinstance(row, MorgueJob) else ident


def is_readable(member: bytes) -> bool:
    """Return True if the member identifies a job: an id in UTF-8, followed by a whole key or none."""
    ident, zero, key = member.partition(b"\0")
    if not 0 < len(ident) <= MAX_ID_BYTES or (zero and len(key) != KEY_BYTES):
        return False
    try:
        ident.decode()
    except UnicodeDecodeError:
        return False
    return True


def row_of(place: Place, view: JobView, score: int) -> Row:
    """Return the row of a job."""
    job, error = view.job, _error_of(view)
    fields: dict[str, Any] = {
        "task": text(job.task, NAME_LENGTH),
        "key": UUID(bytes=job.key[:KEY_BYTES].ljust(KEY_BYTES, b"\0")),
        "priority": job.priority,
        "merged": job.merged,
        "failures": job.failures,
        "crashes": job.crashes,
        "due_at": moment(job.due_ms),
        "error_class": text(view.error_class or error.get("class", ""), NAME_LENGTH),
        "error_message": _masked_text(error.get("message", "")),
        "error_traceback": text(mask().traceback(text(error.get("traceback", ""), _MOST_ERROR))),
        "args": _masked_args(job),
        "options": _masked_options(job.options_json),
        "payload_count": view.payload_count,
    }
    if place is MORGUE:
        fields |= {
            "reason": _masked_text(view.reason)[:NAME_LENGTH],
            "outcome": _masked_text(view.outcome)[:NAME_LENGTH],
        }
    return _build_row(place, job.queue, job.shard, text(job.id, NAME_LENGTH), score, fields)


def _masked_text(value: object) -> str:
    return text(mask().text(text(value, _MOST_ERROR)))


def _masked_args(job: Job) -> bytes | None:
    """Return the arguments without secrets, as JSON; None if they are too large or cannot be searched for them."""
    if not job.args:
        return b""
    if len(job.args) > MOST_ARGS:
        return None
    try:
        value = json.loads(as_json(job.args))
        try:
            args, kwargs = decode_args(job.args, lambda stored: value)
        except ValueError:
            return _json(mask().value(value))  # of a pull queue
        task = registry.get(job.task)
        if args and task is None and job.task:
            return None
        args, kwargs = mask().arguments(args, kwargs, () if task is None else list(task.argument_names))
        return _json({"a": args, "k": kwargs} if kwargs else args)
    except (ValueError, RecursionError):
        return None


def _masked_options(stored: bytes) -> bytes:
    """Return a job's own options without secrets; of what is no JSON the masked text."""
    try:
        return _json(mask().value(json.loads(stored))) if stored else b""
    except (ValueError, RecursionError):
        return _masked_text(stored).encode()


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")


def _error_of(view: JobView) -> dict[str, Any]:
    try:
        return view.error
    except RecursionError:
        return {"message": view.job.error}


def broken_row(place: Place, queue: str, shard: int, entry: Entry, why: str) -> Row:
    """Return the row of an unreadable record, with its identity and the error only."""
    ident, key = entry.name
    fields: dict[str, Any] = {
        "key": key,
        "priority": 0,
        "failures": 0,
        "crashes": 0,
        "due_at": moment(0),
        "error_class": "Undecodable",
        "error_message": _masked_text(why),
    }
    return _build_row(place, queue, shard, ident, entry.score, fields)


def _build_row(place: Place, queue: str, shard: int, ident: str, score: int, fields: dict[str, Any]) -> Row:
    fields[place.moment] = moment(score / 1000)
    return place.model(queue=queue, shard=shard, job_id=ident, updated_us=score, seen_at=timezone.now(), **fields)


def store(place: Place, rows: Iterable[Row], using: str) -> None:
    """Insert rows, or overwrite those with the same identity, in one statement."""
    # Always in the same order, so that two processes that store the same rows wait for each other instead of
    # deadlocking.
    ordered = sorted(rows, key=lambda row: (row.job_id, row.key))
    if ordered:
        manager: Any = place.model._default_manager.using(using)
        manager.bulk_create(
            ordered,
            update_conflicts=True,
            unique_fields=unique_fields(place.unique, using),
            update_fields=_changing(place),
        )


def unique_fields(names: Sequence[str], using: str) -> list[str] | None:
    """Return the fields that decide if a row exists, or None for MySQL, which always checks every unique index."""
    return list(names) if connections[using].features.supports_update_conflicts_with_target else None


def _changing(place: Place) -> list[str]:
    fixed = {"id", *place.unique}
    return [field.name for field in place.model._meta.concrete_fields if field.name not in fixed]


def text(value: object, most: int = MOST_TEXT) -> str:
    """Return any text in a form that every database accepts.

    Zero characters and unpaired surrogates are replaced by visible characters.
    """
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    elif not isinstance(value, str):
        value = "" if value is None else str(value)
    if not value.isascii():
        value = value.encode(errors="backslashreplace").decode()
    return value.replace("\0", "\u2400")[:most]


def moment(ms: float) -> datetime:
    """Return Unix ms as the project's databases store it. Values outside the calendar become its nearest day."""
    seconds = 0.0 if math.isnan(ms) else min(max(ms / 1000, 0.0), _LATEST)
    zone: tzinfo = UTC if settings.USE_TZ else timezone.get_default_timezone()
    local = datetime.fromtimestamp(seconds, zone)
    return local if settings.USE_TZ else local.replace(tzinfo=None)


def score_of(score: bytes | float) -> int:
    """Return a score from Redis in µs. A score that no script has written becomes the nearest valid one."""
    try:
        number = float(score)
    except ValueError:
        return 0
    return 0 if math.isnan(number) else int(min(max(number, FIRST_SCORE), LAST_SCORE))
