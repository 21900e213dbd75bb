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


def _entries(frame: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at < len(frame):
        ident, at = take_u8(frame, at)
        keys, at = take_u8(frame, at)
        _, at = take_u8(frame, at)
        yield ident.decode(), keys


def _set_of(keys: bytes) -> operators.Keys:
    return frozenset(keys[at : at + 16] for at in range(0, len(keys), 16))


_CANCELLED: Final = {"cancelled": b"c", "stopping": b"s", "taken": b"t"}


def _cancel(shard: Shard, frame: bytes, task: bytes, not_after: bytes, mode: bytes) -> bytes:
    if not_after and shard.now_ms > int(not_after):
        return b"x"
    if mode == b"waiting":
        return b"".join(b"c" if operators.remove(shard, ident, "cancelled") else b"n" for ident, _ in _entries(frame))
    return b"".join(
        _CANCELLED.get(operators.cancel(shard, ident, task.decode(), _set_of(keys)), b"n")
        for ident, keys in _entries(frame)
    )


def _reschedule(shard: Shard, frame: bytes, task: bytes, ms: int, how: bytes, failed: bytes) -> bytes:
    ms += shard.now_ms if how in (b"1", b"now") else 0
    return b"".join(
        {"moved": b"m", "taken": b"t"}.get(
            operators.reschedule(shard, ident, task.decode(), ms, to_now=how == b"now", keys=_set_of(keys)), b"n"
        )
        for ident, keys in _entries(frame)
    )


def _page(shard: Shard, key_number: int, backwards: bytes, limit: int, score: Any, member: bytes) -> list[bytes]:
    name = indexes.name_of(key_number)
    text = score.decode() if isinstance(score, bytes) else score
    found = indexes.page(shard, name, backwards=backwards == b"1", limit=limit, score=text, member=member)
    return [word for score, member in found for word in (member, indexes.text_of(name, score).encode())]


def _kick(shard: Shard, frame: bytes, ms: float, relative: bytes, step: float, again: bytes) -> bytes:
    ms += shard.now_ms if relative == b"1" else 0
    letters = []
    for ident, key in _entries(frame):
        outcome = operators.kick(shard, ident, key, int(ms), replacing=again == b"1")
        ms += step if outcome == "kicked" else 0
        letters.append({"kicked": "k", "live": "l"}.get(outcome, "n"))
    return "".join(letters).encode()


def _discard(shard: Shard, frame: bytes) -> bytes:
    return b"".join(b"d" if operators.discard(shard, *grave) else b"n" for grave in _entries(frame))


def _end_failed(shard: Shard, frame: bytes, verb: str, moment: str) -> bytes:
    return b"".join(
        b"d" if operators.remove(shard, ident, verb, float(moment)) else b"n" for ident, _ in _entries(frame)
    )


def _run_now(shard: Shard, class_number: int, last: str, until: object, limit: int) -> bytes:
    moved = operators.run_all_now(shard, class_number - 1)
    return struct.pack("<dII", float(last), min(moved, CHUNK - 1), moved)


def _locate(shard: Shard, frame: bytes) -> bytes:
    places = [operators.locate(shard, ident, _set_of(keys)) for ident, keys in _entries(frame)]
    return b"".join(place[:1].encode() or b"n" for place in places)


CALLS: Final[dict[str, Callable[..., Any]]] = {
    "stats": stats,
    "page": _page,
    "cancel": _cancel,
    "reschedule": _reschedule,
    "kick": _kick,
    "discard": _discard,
    "end_failed": _end_failed,
    "run_now": _run_now,
    "locate": _locate,
}
