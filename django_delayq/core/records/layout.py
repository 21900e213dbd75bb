"""What the registry says of a queue, and how one layout follows from another. Pure functions on a dict.

================= ================================================================================================
field             meaning
================= ================================================================================================
shards, epoch     the present epoch and its number of shards: where new jobs go
kind              ``python`` or ``pull``
old               ``[[epoch, shards], ...]``: closed epochs that may still hold jobs or graves, the oldest first
past              the same of epochs that are retired: tombstones, needed if Redis loses them
next              ``[epoch, shards]`` while a change of the number of shards is under way
leaving           ``"empty"`` or ``"force"`` while the queue is being deleted
deleted           true: a tombstone. ``old`` then names epochs whose keys are still to be removed
paused, limits    what an operator ordered; every shard has it as its rules (``lua/rule.lua``)
================= ================================================================================================
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

Layout: TypeAlias = dict[str, Any]
Epochs: TypeAlias = tuple[tuple[int, int], ...]

# flags of a shard's rules, shared with lua/lib/begin.lua and lua/rule.lua
PAUSED_IN: Final = 1
PAUSED_OUT: Final = 2
CLOSING: Final = 4
WEIGHTED: Final = 8
ENDED: Final = 16
_LONGEST_PAST: Final = 64


def new_layout(shards: int, kind: str, epoch: int = 0) -> Layout:
    """The layout of a queue that was not there before."""
    return {"shards": shards, "epoch": epoch, "kind": kind}


def encode(layout: Layout) -> bytes:
    """As the registry stores it."""
    return json.dumps(layout).encode()


def decode(stored: bytes) -> Layout:
    """The stored layout."""
    layout: Layout = json.loads(stored)
    return layout


def epochs_of(layout: Layout) -> Epochs:
    """``(epoch, shards)`` of every epoch that may hold something, the oldest first; none of a deleted queue."""
    if is_deleted(layout):
        return ()
    return (*((epoch, shards) for epoch, shards in layout.get("old", ())), (layout["epoch"], layout["shards"]))


def is_deleted(layout: Layout) -> bool:
    """Whether it is the tombstone of a queue."""
    return bool(layout.get("deleted"))


def is_pending(layout: Layout) -> bool:
    """Whether a change of several steps is under way."""
    return "next" in layout or "leaving" in layout


def with_next(layout: Layout, shards: int) -> Layout:
    """A change of the number of shards has begun."""
    return {**_without(layout, "leaving"), "next": [layout["epoch"] + 1, shards]}


def with_leaving(layout: Layout, *, force: bool) -> Layout:
    """A deletion has begun."""
    return {**layout, "leaving": "force" if force else "empty"}


def published(layout: Layout) -> Layout:
    """The next epoch is the present one; the present one is old."""
    epoch, shards = layout["next"]
    old = sorted([*layout.get("old", ()), [layout["epoch"], layout["shards"]]])
    return {**_without(layout, "next"), "shards": shards, "epoch": epoch, "old": old}


def with_lost(layout: Layout, shards: int) -> Layout:
    """The epoch that was to come has been there already; it is old, and the one behind it comes."""
    epoch, wanted = layout["next"]
    return {**layout, "old": [*layout.get("old", ()), [epoch, shards]], "next": [epoch + 1, wanted]}


def without_epoch(layout: Layout, epoch: int) -> Layout:
    """An old epoch is retired."""
    old = [pair for pair in layout.get("old", ()) if pair[0] != epoch]
    retired = [pair for pair in layout.get("old", ()) if pair[0] == epoch]
    rest = {**_without(layout, "old"), "past": [*layout.get("past", ()), *retired][-_LONGEST_PAST:]}
    return {**rest, "old": old} if old else rest


def restored(layout: Layout) -> Layout:
    """The layout after Redis lost it and all tombstones: former epochs have to be closed and looked at again."""
    rest = _without(layout, "old", "past", "next", "leaving", "deleted")
    former = [*layout.get("past", ()), *layout.get("old", ())]
    return {**rest, "old": former} if former else rest


def tombstone(layout: Layout, *, wiped: bool) -> Layout:
    """What stays of a deleted queue."""
    stone = {**new_layout(layout["shards"], layout["kind"], layout["epoch"]), "deleted": True}
    past = layout.get("past", [])
    if wiped:
        return {**stone, "past": [*past, *layout.get("old", ())][-_LONGEST_PAST:]}
    return {**stone, "past": past, "old": [list(pair) for pair in epochs_of(layout)]}


def again(stone: Layout, shards: int = 0, kind: str = "") -> Layout:
    """The layout under which a deleted queue comes back; as it was, unless something else is given."""
    fresh = new_layout(shards or stone["shards"], kind or stone["kind"], stone["epoch"] + 1)
    return {**fresh, "past": stone.get("past", [])}


def revived(layout: Layout) -> Layout:
    """The layout after the registry was lost, but not the shards, and their present epoch was found closed."""
    former = restored(layout)
    old = [*former.get("old", ()), [layout["epoch"], layout["shards"]]]
    return {**former, "epoch": layout["epoch"] + 1, "old": old}


def rules_of(layout: Layout, shards: int) -> tuple[int, int, int, int]:
    """What the layout orders for each of ``shards`` shards: flags, most live ids, most graves, ms that a grave stays.

    Limits of the queue are divided among its shards, rounded up; 0 = none.
    """
    limits = layout.get("limits") or {}
    flags = int(layout.get("paused", 0)) & (PAUSED_IN | PAUSED_OUT) | (WEIGHTED if limits.get("weighted") else 0)

    def share(name: str) -> int:
        return -(-int(limits.get(name) or 0) // shards)

    return flags, share("max_length"), share("morgue_max"), int(limits.get("morgue_ttl_ms") or 0)


def describe(layout: Layout) -> str:
    """A layout in a few words, for logs."""
    if is_deleted(layout):
        return "deleted, keys still to be removed" if "old" in layout else "deleted"
    old = "".join(f", epoch {epoch} with {shards} shards is being drained" for epoch, shards in layout.get("old", ()))
    return f"{layout['shards']} shards in epoch {layout['epoch']}{old}"


def _without(layout: Layout, *names: str) -> Layout:
    return {name: value for name, value in layout.items() if name not in names}
