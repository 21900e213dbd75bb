"""Storable binary form of a requested job, without its due time.

Layout: version u8, then a map in MessagePack. A field with its default value is left out, so the record of an older
release is read with the values that it meant. A new field that an old release must not ignore takes a new version; one
that it may ignore takes a name that begins with ``_``.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from ..job import NewJob, Payload, Undecodable

VERSION: Final = 1
_FIELDS: Final = (
    "id",
    "task",
    "args",
    "priority",
    "options",
    "key",
    "on_conflict",
    "due_policy",
    "reset_retries",
    "score_policy",
    "payloads",
    "max_payloads",
    "fresh",
)
_USUAL: Final = NewJob("", "")
_PAYLOAD: Final = (bytes, str, bytes)


def pack_job(new: NewJob) -> bytes:
    """Return the record of a job, without its due time."""
    values = {name: getattr(new, name) for name in _FIELDS}
    fields: dict[str, Any] = {name: value for name, value in values.items() if value != getattr(_USUAL, name)}
    if new.payload is not None:
        fields["payload"] = (new.payload.data, new.payload.score, new.payload.key)
    return bytes((VERSION,)) + bytes(msgpack.packb(fields))


def unpack_job(record: bytes) -> NewJob:
    """Return the job of a record; it is due now, unless the caller changes that.

    Raises:
        Undecodable: the bytes are not a record of a supported version.
    """
    if not record or record[0] != VERSION:
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
        if name not in _FIELDS:
            raise Undecodable(f"this release cannot read field {name!r} of a record; upgrade django_delayq here")
        if type(value) is not type(getattr(_USUAL, name)):
            raise Undecodable(f"a record cannot be read: its field {name} is a {type(value).__name__}")
    if parts is not None and (not isinstance(parts, list) or tuple(map(type, parts)) != _PAYLOAD):
        raise Undecodable("a record cannot be read: its payload is none")
    return NewJob(**{"id": "", "task": "", **fields}, payload=Payload(*parts) if parts else None)
