"""Conversion of jobs in Redis to rows, without their secrets. Any job becomes a row that every database accepts.

Arguments, options and errors are masked as on all pages (:mod:`..masking`), because a table is read, copied and backed
up by more people than Redis. What cannot be searched for secrets is not stored: bytes that are no JSON, and positional
arguments of a task that this process does not know, whose names might be sensitive.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Final, TypeAlias
from uuid import UUID

from django.conf import settings
from django.db import connections, router
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
#: start of the last day of the calendar, in every time zone
_LATEST: Final = 253_402_128_000


@dataclass(frozen=True, slots=True)
class Place:
    """One of the two indexes, and the table that it is copied to."""

    name: str
    model: Model
    #: fields that identify a row
    unique: tuple[str, ...]
    #: the field with the time of the failure or burial
    moment: str

    @property
    def table(self) -> Any:
        """Return a queryset over all rows."""
        return self.model._default_manager.using(router.db_for_write(self.model))

    def member(self, ident: str, key: UUID) -> bytes:
        """Return the member of the index that a row mirrors: its id, in the morgue with the key."""
        return ident.encode() if self is FAILED else ident.encode() + b"\0" + key.bytes


FAILED: Final = Place("failed", FailedJob, ("queue", "job_id"), "failed_at")
MORGUE: Final = Place("morgue", MorgueJob, ("queue", "job_id", "key"), "buried_at")
PLACES: Final = {place.name: place for place in (FAILED, MORGUE)}


def place_of(model: Model) -> Place:
    """Return the place that a table mirrors."""
    return MORGUE if issubclass(model, MorgueJob) else FAILED


def is_readable(member: bytes) -> bool:
    """Return True if a member of an index is an id in UTF-8, followed by a whole key or none."""
    ident, zero, key = member.partition(b"\0")
    try:
        return 0 < len(ident.decode().encode()) <= MAX_ID_BYTES and len(key) == (KEY_BYTES if zero else 0)
    except UnicodeDecodeError:
        return False


def row_of(place: Place, view: JobView, member: bytes, score: int) -> Row:
    """Return the row of a member of an index, with its score. A job that cannot be read has its name and the reason."""
    job, error = view.job, {"class": view.error_class} | view.error
    if view.broken:
        error = {"class": "Undecodable", "message": f"its record cannot be read: {view.broken}"}
    end = {"reason": view.reason, "outcome": view.outcome} if place is MORGUE else {}
    return place.model(
        queue=job.queue,
        shard=job.shard,
        job_id=job.id,
        key=UUID(bytes=(member.partition(b"\0")[2] or job.key)[:KEY_BYTES].ljust(KEY_BYTES, b"\0")),
        task=text(job.task, NAME_LENGTH),
        priority=job.priority,
        merged=job.merged,
        failures=job.failures,
        crashes=job.crashes,
        due_at=moment(job.due_ms),
        error_class=text(error.get("class", ""), NAME_LENGTH),
        error_message=_masked_text(error.get("message", "")),
        error_traceback=text(mask().traceback(text(error.get("traceback", ""), _MOST_ERROR))),
        args=_masked_args(job),
        options=_masked_options(job.options_json),
        payload_count=view.payload_count,
        updated_us=score,
        seen_at=timezone.now(),
        **{place.moment: moment(score / 1000)},
        **{name: _masked_text(value)[:NAME_LENGTH] for name, value in end.items()},
    )


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


def store(place: Place, rows: Iterable[Row]) -> None:
    """Insert rows, or overwrite those with the same identity, in one statement."""
    # Always in the same order, so that two processes that store the same rows wait for each other instead of
    # deadlocking.
    ordered = sorted(rows, key=lambda row: (row.job_id, row.key))
    table, fixed = place.table, {"id", *place.unique}
    # MySQL takes no target: it always checks every unique index.
    has_target = connections[table.db].features.supports_update_conflicts_with_target
    table.bulk_create(
        ordered,
        update_conflicts=True,
        unique_fields=place.unique if has_target else None,
        update_fields=[field.name for field in place.model._meta.concrete_fields if field.name not in fixed],
    )


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
    zone: tzinfo = UTC if settings.USE_TZ else timezone.get_default_timezone()
    local = datetime.fromtimestamp(min(max(ms / 1000, 0.0), _LATEST), zone)
    return local if settings.USE_TZ else local.replace(tzinfo=None)
