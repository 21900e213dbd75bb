"""Body of a job: the part that is fixed when the job is scheduled.

Layout as stored: priority (3 bits), merged (8), options (16), version (32), parked (64), quarantine (128) u8 | number
of the task in its shard u16 | key 16 bytes | [options length u16 | options JSON] | arguments to the end. The name of
the task would cost more than all the rest, so the shard stores each name once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..job import Undecodable

BODY_VERSION: Final = 1
#: bits of byte 1
BODY_MERGED: Final = 8
BODY_OPTIONS: Final = 16
_PARKED: Final = 64
_QUARANTINE: Final = 128
_HEAD: Final = 19


def unpack_body(body: bytes, tasks: Mapping[int, str]) -> tuple[int, bool, bytes, str, bytes, bytes]:
    """Return ``(priority, merged, key, task, options JSON, args)`` of a stored body.

    Args:
        body: the stored bytes.
        tasks: number -> name of the tasks of the shard.

    Raises:
        Undecodable: the bytes are not a body of a supported version.
    """
    if len(body) < _HEAD:
        raise Undecodable(f"a body of {len(body)} bytes is too short to be one")
    flags = body[0]
    if flags >> 5 & 1 != BODY_VERSION:
        raise Undecodable(f"body version {flags >> 5 & 1} is not known here; was it written by a newer release?")
    task = tasks.get(body[1] | body[2] << 8)
    if task is None:
        raise Undecodable("the body's task has no name in its shard")
    if not flags & BODY_OPTIONS:
        return flags & 7, bool(flags & BODY_MERGED), body[3:_HEAD], task, b"", body[_HEAD:]
    end = _HEAD + 2 + int.from_bytes(body[_HEAD : _HEAD + 2], "little")
    if end > len(body):
        raise Undecodable("the body is cut off inside its options")
    return flags & 7, bool(flags & BODY_MERGED), body[3:_HEAD], task, body[_HEAD + 2 : end], body[end:]


def is_quarantined(body: bytes) -> bool:
    """Return True if the body marks its job as waiting for quarantine."""
    return _has_mark(body, _QUARANTINE)


def is_parked(body: bytes) -> bool:
    """Return True if the body marks its job as waiting behind a limit of its task."""
    return _has_mark(body, _PARKED)


def _has_mark(body: bytes, mark: int) -> bool:
    return body != b"" and body[0] >> 5 & 1 == BODY_VERSION and bool(body[0] & mark)
