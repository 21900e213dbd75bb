"""Morgue records as ``lua/lib/grave.lua`` stores them, and the frames of many of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ..job import KEY_BYTES
from .fields import take_u8, take_u16, take_u32, unpack_names

_HEAD: Final = struct.Struct("<ddHHH8s")
_U32: Final = struct.Struct("<I")


class MorgueRecord(NamedTuple):
    """Fields of a record."""

    due_us: float
    buried_us: float
    failures: int
    reserves: int
    crashes: int
    #: packed :class:`~..job.JobCounts`
    counts: bytes
    outcome: bytes
    reason: bytes
    error_class: bytes
    error: bytes
    body: bytes
    #: of a merged job: their number, u32, and the payload records with their lengths; b"" of a plain one
    payloads: bytes


def record_name(ident: bytes, key: bytes) -> bytes:
    """Return the name of the record of a generation."""
    return ident + b"\0" + key


def split_name(name: bytes) -> tuple[bytes, bytes]:
    """Return id and key in the name of a record."""
    return name[: -KEY_BYTES - 1], name[-KEY_BYTES:]


def unpack_record(record: bytes) -> MorgueRecord:
    """Return the fields of a stored record.

    Raises:
        struct.error, IndexError: the bytes are not a record.
    """
    due_us, buried_us, failures, reserves, crashes, counts = _HEAD.unpack_from(record)
    outcome, at = take_u8(record, _HEAD.size)
    reason, at = take_u8(record, at)
    error_class, at = take_u8(record, at)
    error, at = take_u16(record, at)
    body, at = take_u32(record, at)
    return MorgueRecord(
        due_us, buried_us, failures, reserves, crashes, counts, outcome, reason, error_class, error, body, record[at:]
    )


def unpack_records(frame: bytes) -> tuple[dict[int, str], Iterator[tuple[bytes, int, MorgueRecord]]]:
    """Return the content of a reply of ``graves.lua``.

    Returns:
        Number -> name of the tasks; and name, number of bytes left out and fields of each record.
    """
    tasks, at = unpack_names(frame, 0)
    return tasks, _unpack_each(frame, at)


def _unpack_each(frame: bytes, at: int) -> Iterator[tuple[bytes, int, MorgueRecord]]:
    while at < len(frame):
        name, at = take_u16(frame, at)
        (left_out,) = _U32.unpack_from(frame, at)
        record, at = take_u32(frame, at + _U32.size)
        yield name, left_out, unpack_record(record)
