"""The indexes of a shard, as pages of them are read: waiting by due time, failed by moment, and so on."""

from __future__ import annotations

from itertools import islice
from typing import Final

from ..core.records.keys import DUE_KEYS, SHARD_KEYS
from .shard import Shard
from .state import ms_of

Entry = tuple[int, bytes]

_PLACES: Final = ("failed", "morgue")


def entries(shard: Shard, name: str) -> list[Entry]:
    """Score and member of everything in an index, in order."""
    if name in DUE_KEYS:
        found = [(place, ident.encode()) for place, ident in shard.waiting(DUE_KEYS.index(name))]
    elif name == "lease":
        found = [(live.lease.deadline_ms, ident.encode()) for ident, live in shard.lives.items() if live.lease]
    elif name == "failed":
        found = [(live.failed_at, ident.encode()) for ident, live in shard.lives.items() if live.failures]
    elif name == "failures":
        found = [(live.failures, ident.encode()) for ident, live in shard.lives.items() if live.failures]
    else:
        by_id = name == "morgue_id"
        found = [
            (0 if by_id else grave.buried, ident.encode() + b"\0" + key) for (ident, key), grave in shard.graves.items()
        ]
    return sorted(found)


def text_of(name: str, score: int) -> str:
    """A score as it is written: µs with decimals where it is a place, so that operators can compare it."""
    return f"{score // 1000}.{score % 1000:03d}" if _is_place(name) else str(score)


def score_of(name: str, text: str) -> int:
    """The score that was written so."""
    if not _is_place(name):
        return int(float(text))
    whole, _, rest = text.partition(".")
    return int(whole) * 1000 + int((rest or "0").ljust(3, "0")[:3])


def page(shard: Shard, name: str, *, backwards: bool, limit: int | None, score: str, member: bytes) -> list[Entry]:
    """The first entries (all of them if ``limit`` is None) behind the one with this score and member (empty = none)."""
    found = entries(shard, name)
    if backwards:
        found.reverse()
    if score or member:
        after = (score_of(name, score), member)
        found = [entry for entry in found if (entry < after if backwards else entry > after)]
    return list(islice(found, limit))


def value_of(name: str, score: int, member: bytes) -> int | str:
    """What an entry is ordered by, as a bound of a range names it: ms, a number, or an id."""
    if name == "morgue_id":
        return member[:-17].decode()
    return ms_of(score) if _is_place(name) else score


def name_of(key_number: int) -> str:
    """The index with this number among the keys of a script."""
    return SHARD_KEYS[key_number - 1]


def _is_place(name: str) -> bool:
    return name in DUE_KEYS or name in _PLACES
