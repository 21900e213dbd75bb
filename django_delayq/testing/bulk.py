"""Implementations of the scripts that :mod:`django_delayq.core.bulk` and the searches call by name."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from ..core.records.frames import take_u8
from ..core.sending.chunks import CHUNK
from . import indexes, operators
from .inspector import stats
from .shard import Shard


def _ids(frame: bytes) -> Iterator[str]:
    at = 0
    while at < len(frame):
        ident, at = take_u8(frame, at)
        yield ident.decode()


def _graves(frame: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at < len(frame):
        ident, at = take_u8(frame, at)
        key, at = take_u8(frame, at)
        yield ident.decode(), key


def _page(shard: Shard, key_number: int, backwards: bytes, limit: int, score: Any, member: bytes) -> list[bytes]:
    name = indexes.name_of(key_number)
    text = score.decode() if isinstance(score, bytes) else score
    found = indexes.page(shard, name, backwards=backwards == b"1", limit=limit, score=text, member=member)
    return [word for score, member in found for word in (member, indexes.text_of(name, score).encode())]


def _kick_many(shard: Shard, frame: bytes, ms: float, relative: bytes, step: float, again: bytes) -> bytes:
    ms += shard.now_ms if relative == b"1" else 0
    letters = []
    for ident, key in _graves(frame):
        outcome = operators.kick(shard, ident, key, int(ms), replacing=again == b"1")
        ms += step if outcome == "kicked" else 0
        letters.append({"kicked": "k", "live": "l"}.get(outcome, "n"))
    return "".join(letters).encode()


def _discard_many(shard: Shard, frame: bytes) -> bytes:
    return b"".join(b"d" if operators.discard(shard, *grave) else b"n" for grave in _graves(frame))


def _remove_many(shard: Shard, frame: bytes, verb: str, moment: str) -> bytes:
    return b"".join(b"d" if operators.remove(shard, ident, verb, float(moment)) else b"n" for ident in _ids(frame))


def _run_now_many(shard: Shard, class_number: int, last: str, until: object, limit: int) -> bytes:
    moved = operators.run_all_now(shard, class_number - 1)
    return struct.pack("<dII", float(last), min(moved, CHUNK - 1), moved)


def _living(shard: Shard, frame: bytes) -> bytes:
    return b"".join(b"1" if ident in shard.lives else b"0" for ident in _ids(frame))


CALLS: Final[dict[str, Callable[..., Any]]] = {
    "stats": stats,
    "page": _page,
    "kick_many": _kick_many,
    "discard_many": _discard_many,
    "remove_many": _remove_many,
    "run_now_many": _run_now_many,
    "living": _living,
}
