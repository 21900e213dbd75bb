"""How payloads of one id unite, which of them are kept, and how many of them one run takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ..core.job import NewJob, is_durable
from .state import Item

#: what one run takes at most, as the scripts have it: payloads, bytes, and the size of the pieces they are read in
TAKE_MOST: Final = 250
TAKE_BYTES: Final = 4 << 20
READ_AT_ONCE: Final = 25

Items = dict[bytes, Item]


def ordered(items: Iterable[Item]) -> list[Item]:
    """In the order of their scores; of equal scores, of their arrival."""
    return sorted(items, key=lambda item: item.order)


def better(old: Item, new: Item, policy: str) -> Item:
    """Return the one of two equal payloads that stays. It bears the durable key of the other, if it has none itself."""
    before, after = old.order[0], new.order[0]
    wins = {"min": after < before, "max": after > before, "first": False, "last": True}[policy]
    stays, goes = (new, old) if wins else (old, new)
    if is_durable(goes.payload.key) and not is_durable(stays.payload.key):
        return replace(stays, payload=replace(stays.payload, key=goes.payload.key))
    return stays


def add(items: Items, new: Item, policy: str = "min") -> None:
    """One more payload, or the better one of two equal ones."""
    old = items.get(new.payload.data)
    items[new.payload.data] = new if old is None else better(old, new, policy)


def admit(items: Items, new: Item, job: NewJob) -> Items | str:
    """What waits when one more payload comes in under the job's policies; or the outcome, when it does not."""
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
    """The payloads that a run takes, and how many bytes they have; they are removed from ``items``.

    Args:
        room: bytes that the reply may still take up.
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
