"""Payloads of one id: merging, selection of the kept ones, and the number that one attempt takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ..core.job import NewJob, is_durable
from .state import Item

#: limits of one attempt, as in the scripts: payloads, bytes, and the size of the pieces in which they are read
TAKE_MOST: Final = 250
TAKE_BYTES: Final = 4 << 20
READ_AT_ONCE: Final = 25

Items = dict[bytes, Item]


def ordered(items: Iterable[Item]) -> list[Item]:
    """Return the payloads by score, and by arrival for equal scores."""
    return sorted(items, key=lambda item: item.order)


def better(old: Item, new: Item, policy: str) -> Item:
    """Return the one of two equal payloads that is kept, with the other's durable key if it has none itself."""
    before, after = old.order[0], new.order[0]
    wins = {"min": after < before, "max": after > before, "first": False, "last": True}[policy]
    stays, goes = (new, old) if wins else (old, new)
    if is_durable(goes.payload.key) and not is_durable(stays.payload.key):
        return replace(stays, payload=replace(stays.payload, key=goes.payload.key))
    return stays


def add(items: Items, new: Item, policy: str = "min") -> None:
    """Add a payload, or keep the better one of two equal ones."""
    old = items.get(new.payload.data)
    items[new.payload.data] = new if old is None else better(old, new, policy)


def admit(items: Items, new: Item, job: NewJob) -> Items | str:
    """Return the waiting payloads after one more arrived under the job's policies; or the outcome of a rejection."""
    united = dict(items)
    add(united, new, job.score_policy)
    if len(united) <= job.max_payloads:
        return united
    if job.payloads == "all":
        return united if new.payload.data in items else "full"
    line = ordered(united.values())
    kept = line[-job.max_payloads :] if job.payloads == "last" else line[: job.max_payloads]
    return {item.payload.data: item for item in kept} if united[new.payload.data] in kept else "ignored"


def take(items: Items, room: int) -> tuple[Items, int]:
    """Remove and return the payloads for one attempt, with their size in bytes.

    Args:
        room: number of bytes left in the reply.
    """
    taken: Items = {}
    size = 0
    for piece in _pieces(ordered(items.values())[:TAKE_MOST]):
        if taken and size >= room:
            break
        for item in piece:
            taken[item.payload.data] = items.pop(item.payload.data)
            size += len(item.payload.data) + len(item.payload.score) + 33
    return taken, size


def _pieces(items: list[Item]) -> Iterator[list[Item]]:
    for start in range(0, len(items), READ_AT_ONCE):
        yield items[start : start + READ_AT_ONCE]
