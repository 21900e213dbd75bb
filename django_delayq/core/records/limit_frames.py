"""Frames of the limits that a reserve names, and of the numbers of parked jobs in its reply (``lua/lib/park.lua``)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .fields import pack_u8

_LIMIT: Final = struct.Struct("<HBB")
_MOVED: Final = struct.Struct("<H")
_MOST: Final = 65535


@dataclass(frozen=True, slots=True)
class Allowance:
    """Number of jobs of a task that a reserve may hand out.

    Args:
        tasks: the name of the task, and its aliases.
        left: that number.
        local: the limit is one of each process, so that another consumer may have room.
    """

    tasks: tuple[str, ...]
    left: int
    local: bool = False


def pack_allowances(allowances: Sequence[Allowance]) -> bytes:
    """Return the allowances as an argument of the script."""
    parts = []
    for one in allowances:
        names = [task.encode() for task in one.tasks[:255]]
        parts.append(_LIMIT.pack(min(max(one.left, 0), _MOST), one.local, len(names)))
        parts.append(pack_u8(names))
    return b"".join(parts)


def unpack_parked(frame: bytes) -> tuple[int, tuple[int, ...]]:
    """Return how many jobs the reserve parked, and how many are parked now for each allowance."""
    if not frame:
        return 0, ()
    (moved,) = _MOVED.unpack_from(frame)
    return moved, struct.unpack_from(f"<{(len(frame) - _MOVED.size) // 4}I", frame, _MOVED.size)
