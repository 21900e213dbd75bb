"""Fields of a frame that have their length in front, in little endian."""

from __future__ import annotations

import struct
from collections.abc import Iterable

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")


def pack_u8(texts: Iterable[bytes]) -> bytes:
    """Return byte strings one after another, each with its 8-bit length in front."""
    return b"".join([bytes((len(text),)) + text for text in texts])


def pack_u16(texts: Iterable[bytes]) -> bytes:
    """Return byte strings one after another, each with its 16-bit length in front."""
    return b"".join([_U16.pack(len(text)) + text for text in texts])


def take_u8(frame: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes that have an 8-bit length in front, and the position after them."""
    size = frame[at]
    return frame[at + 1 : at + 1 + size], at + 1 + size


def take_u16(frame: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes that have a 16-bit length in front, and the position after them."""
    (size,) = _U16.unpack_from(frame, at)
    return frame[at + 2 : at + 2 + size], at + 2 + size


def take_u32(frame: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes that have a 32-bit length in front, and the position after them."""
    (size,) = _U32.unpack_from(frame, at)
    return frame[at + 4 : at + 4 + size], at + 4 + size


def unpack_names(frame: bytes, at: int) -> tuple[dict[int, str], int]:
    """Return number -> name of the tasks in a reply, and the position after them."""
    tasks = {}
    n = frame[at]
    at += 1
    for _ in range(n):
        (number,) = _U16.unpack_from(frame, at)
        name, at = take_u8(frame, at + 2)
        tasks[number] = name.decode()
    return tasks, at
