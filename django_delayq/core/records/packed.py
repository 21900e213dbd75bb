"""Storable binary form of a requested job, without its due time.

Layout: version u8, then fields in any order: tag u8, length u32 (little endian), value. A field with its default value
is left out, so the record of an older release is read with the values that it meant. A new field that an old release
must not ignore takes a new version; one that it may ignore takes a tag from 128 on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..job import NewJob, Payload, Undecodable

VERSION: Final = 1
_MAY_BE_OVERLOOKED: Final = 128
_FIELD: Final = struct.Struct("<BI")


class _Kind(NamedTuple):
    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], Any]


def _unpack_number(value: bytes) -> int:
    return int(value.decode("ascii"))


_BYTES: Final = _Kind(bytes, bytes)
_TEXT: Final = _Kind(str.encode, bytes.decode)
_NUMBER: Final = _Kind(lambda value: b"%d" % value, _unpack_number)
_FLAG: Final = _Kind(lambda value: b"\1" if value else b"\0", lambda value: value == b"\1")

#: tag → name of the field. A tag never changes.
_JOB: Final[dict[int, tuple[str, _Kind]]] = {
    1: ("id", _TEXT),
    2: ("task", _TEXT),
    3: ("args", _BYTES),
    4: ("priority", _NUMBER),
    5: ("options", _BYTES),
    6: ("key", _BYTES),
    7: ("on_conflict", _TEXT),
    8: ("due_policy", _TEXT),
    9: ("reset_retries", _FLAG),
    10: ("score_policy", _TEXT),
    11: ("payloads", _TEXT),
    12: ("max_payloads", _NUMBER),
    13: ("fresh", _FLAG),
}
_PAYLOAD: Final[dict[int, tuple[str, _Kind]]] = {
    32: ("data", _BYTES),
    33: ("score", _TEXT),
    34: ("key", _BYTES),
}
_USUAL: Final = NewJob("", "")


def pack_job(new: NewJob) -> bytes:
    """Return the record of a job, without its due time."""
    parts = [bytes((VERSION,))]
    for tag, (name, kind) in _JOB.items():
        value = getattr(new, name)
        if value != getattr(_USUAL, name):
            parts.append(_pack_field(tag, kind.pack(value)))
    if new.payload is not None:
        parts += [_pack_field(tag, kind.pack(getattr(new.payload, name))) for tag, (name, kind) in _PAYLOAD.items()]
    return b"".join(parts)


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
    fields: dict[str, Any] = {}
    payload: dict[str, Any] = {}
    try:
        for tag, value in _unpack_fields(record):
            if tag in _JOB:
                name, kind = _JOB[tag]
                fields[name] = kind.unpack(value)
            elif tag in _PAYLOAD:
                name, kind = _PAYLOAD[tag]
                payload[name] = kind.unpack(value)
            elif tag < _MAY_BE_OVERLOOKED:
                raise Undecodable(f"this release cannot read field {tag} of a record; upgrade django_delayq here")
        return NewJob(**{"id": "", "task": "", **fields}, payload=Payload(**payload) if payload else None)
    except Undecodable:
        raise
    except (TypeError, ValueError) as error:
        raise Undecodable(f"a record cannot be read: {error}") from None


def _pack_field(tag: int, value: bytes) -> bytes:
    return _FIELD.pack(tag, len(value)) + value


def _unpack_fields(record: bytes) -> list[tuple[int, bytes]]:
    fields, at = [], 1
    while at < len(record):
        if at + _FIELD.size > len(record):
            raise Undecodable("a record is cut off between its fields")
        tag, length = _FIELD.unpack_from(record, at)
        at += _FIELD.size
        if at + length > len(record):
            raise Undecodable("a record is cut off inside a field")
        fields.append((tag, record[at : at + length]))
        at += length
    return fields
