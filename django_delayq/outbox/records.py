"""Record of a requested job, as a row stores it: all of the job but its due time, which is a column."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import msgpack

from ..core.job import Generation, NewJob, Payload, Undecodable
from ..core.records.frames import digest

if TYPE_CHECKING:
    from ..models import OutboxJob

# Record of a requested job outside Redis, without its due time: version u8, then a map. A field with its default value
# is left out, so the record of an older release is read with the values that it meant. A new field that an old release
# must not ignore takes a new version; one that it may ignore takes a name that begins with ``_``.
RECORD_VERSION: Final = 1
_USUAL: Final = NewJob("", "")
_NOT_RECORDED: Final = {"due_ms", "delay_ms", "payload", "repeatable", "room_ms", "confirmed", "joined"}
_RECORD_FIELDS: Final = tuple(one.name for one in fields(NewJob) if one.name not in _NOT_RECORDED)
_PAYLOAD_PARTS: Final = (bytes, str, bytes)


def pack_job(new: NewJob) -> bytes:
    """Return the record of a job, without its due time."""
    values = {name: getattr(new, name) for name in _RECORD_FIELDS}
    fields: dict[str, Any] = {name: value for name, value in values.items() if value != getattr(_USUAL, name)}
    if new.payload is not None:
        fields["payload"] = (new.payload.data, new.payload.score, new.payload.key)
    return bytes((RECORD_VERSION,)) + bytes(msgpack.packb(fields))


def unpack_job(record: bytes) -> NewJob:
    """Return the job of a record; it is due now, unless the caller changes that.

    Raises:
        Undecodable: the bytes are not a record of a supported version.
    """
    if not record or record[0] != RECORD_VERSION:
        raise Undecodable(
            f"this release cannot read record version {record[0]}; upgrade django_delayq here"
            if record
            else "an empty record is no job"
        )
    try:
        found = msgpack.unpackb(record[1:])
        fields = {name: value for name, value in found.items() if not name.startswith("_")}
        parts = fields.pop("payload", None)
    except (AttributeError, TypeError, ValueError) as error:
        raise Undecodable(f"a record cannot be read: {error}") from None
    for name, value in fields.items():
        if name not in _RECORD_FIELDS:
            raise Undecodable(f"this release cannot read field {name!r} of a record; upgrade django_delayq here")
        if type(value) is not type(getattr(_USUAL, name)):
            raise Undecodable(f"a record cannot be read: its field {name} is a {type(value).__name__}")
    if parts is not None and (not isinstance(parts, list) or tuple(map(type, parts)) != _PAYLOAD_PARTS):
        raise Undecodable("a record cannot be read: its payload is none")
    return NewJob(**{"id": "", "task": "", **fields}, payload=Payload(*parts) if parts else None)


def job_of(row: OutboxJob, due_ms: int) -> NewJob:
    """Return the job of a row in the form to send to Redis.

    A job that was sent before and is lost must not replace the content that its id has by now.

    Raises:
        ValueError: the record is invalid.
    """
    job = unpack_job(bytes(row.record))
    job.due_ms, job.delay_ms = due_ms, None
    if row.sent_at is not None and job.payload is None:
        job.on_conflict = "ignore"
    return job


def digest_of(record: bytes | memoryview) -> bytes:
    """Return the digest by which Redis finds a merged job's payload; b"" for a plain job or an invalid record."""
    try:
        payload = unpack_job(bytes(record)).payload
    except Exception:  # any error of the reader; the relay refuses such a record
        return b""
    return b"" if payload is None else digest(payload.data)


def generation_of(row: OutboxJob) -> Generation:
    """Return the generation of the job of a row, or of the job that its payload is in."""
    return Generation((row.key.bytes,), digest_of(row.record))
