"""Layout of a queue in the registry, and the transitions between layouts. Pure functions on a dict.

================= ================================================================================================
field             meaning
================= ================================================================================================
shards, epoch     the present epoch and its number of shards, for new jobs
kind              ``python`` or ``pull``
old               ``[[epoch, shards], ...]``: closed epochs that may still hold jobs or morgue records, oldest first
past              the same for retired epochs: tombstones, needed if Redis loses them
next              ``[epoch, shards]`` while a reshard is in progress
leaving           ``"empty"`` or ``"force"`` while the queue is being deleted
deleted           true: a tombstone. ``old`` then lists epochs whose keys are still to be removed
paused, limits    policy set by an operator; every shard has it as its rules (``lua/rule.lua``)
until             ``{"in": ms, "out": ms}``: when a pause in this direction ends by itself, Unix ms on Redis's clock
================= ================================================================================================
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

from .keys import number_of

Layout: TypeAlias = dict[str, Any]
Epochs: TypeAlias = tuple[tuple[int, int], ...]

#: bits of ``paused``
PAUSED_IN: Final = 1
PAUSED_OUT: Final = 2
_LONGEST_PAST: Final = 64


def new_layout(shards: int, kind: str, epoch: int = 0) -> Layout:
    """Return the layout of a new queue."""
    return {"shards": shards, "epoch": epoch, "kind": kind}


def encode(layout: Layout) -> bytes:
    """Return a layout as the registry stores it."""
    return json.dumps(layout).encode()


def decode(stored: bytes) -> Layout:
    """Return the layout from its stored form."""
    layout: Layout = json.loads(stored)
    return layout


def epochs_of(layout: Layout) -> Epochs:
    """Return ``(epoch, shards)`` of every epoch that may hold jobs, the oldest first; none for a deleted queue."""
    if is_deleted(layout):
        return ()
    return (*((epoch, shards) for epoch, shards in layout.get("old", ())), (layout["epoch"], layout["shards"]))


def shard_numbers(epoch: int, shards: int) -> list[int]:
    """Return the numbers of the shards of an epoch."""
    return [number_of(epoch, place) for place in range(shards)]


def all_numbers(epochs: Epochs) -> list[int]:
    """Return the numbers of the shards of several epochs."""
    return [number for epoch, shards in epochs for number in shard_numbers(epoch, shards)]


def is_deleted(layout: Layout) -> bool:
    """Return True if the layout is the tombstone of a queue."""
    return bool(layout.get("deleted"))


def is_pending(layout: Layout) -> bool:
    """Return True if a change of several steps is in progress."""
    return "next" in layout or "leaving" in layout


def with_next(layout: Layout, shards: int) -> Layout:
    """Return the layout after the start of a reshard."""
    return {**_without(layout, "leaving"), "next": [layout["epoch"] + 1, shards]}


def with_leaving(layout: Layout, *, force: bool) -> Layout:
    """Return the layout after the start of a deletion."""
    return {**layout, "leaving": "force" if force else "empty"}


def published(layout: Layout) -> Layout:
    """Return the layout in which the next epoch is the present one, and the present one is old."""
    epoch, shards = layout["next"]
    old = sorted([*layout.get("old", ()), [layout["epoch"], layout["shards"]]])
    return {**_without(layout, "next"), "shards": shards, "epoch": epoch, "old": old}


def with_lost(layout: Layout, shards: int) -> Layout:
    """Return the layout for a next epoch that was used before: it becomes old, and the epoch after it is the next."""
    epoch, shards_of_next = layout["next"]
    return {**layout, "old": [*layout.get("old", ()), [epoch, shards]], "next": [epoch + 1, shards_of_next]}


def without_epoch(layout: Layout, epoch: int) -> Layout:
    """Return the layout in which an old epoch is retired."""
    old = [pair for pair in layout.get("old", ()) if pair[0] != epoch]
    retired = [pair for pair in layout.get("old", ()) if pair[0] == epoch]
    rest = {**_without(layout, "old"), "past": [*layout.get("past", ()), *retired][-_LONGEST_PAST:]}
    return {**rest, "old": old} if old else rest


def restored(layout: Layout) -> Layout:
    """Return the layout after Redis lost it and all tombstones: former epochs have to be closed and checked again."""
    rest = _without(layout, "old", "past", "next", "leaving", "deleted")
    former = [*layout.get("past", ()), *layout.get("old", ())]
    return {**rest, "old": former} if former else rest


def put_back(known: Layout, found: Layout) -> Layout:
    """Return the layout to store where the registry went back from ``known`` to ``found``, which has an earlier epoch.

    Jobs may wait in each epoch that ``found`` names: Redis went back to them, or a process that knew no better made the
    queue anew. So these epochs are drained, with all former ones, and a deleted queue that has come back continues.
    """
    if is_deleted(known) and is_deleted(found):
        return known
    present = {**found, **again(known, found["shards"], found["kind"])} if is_deleted(known) else known
    epochs = [pair for one in (known, found) for name in ("past", "old") for pair in one.get(name, ())]
    former = {epoch: shards for epoch, shards in (*epochs, *epochs_of(found)) if epoch < present["epoch"]}
    rest = _without(present, "past", *(("next", "leaving") if is_deleted(known) else ()))
    old = [list(pair) for pair in sorted(former.items())]
    return {**rest, "old": old} if old else rest


def tombstone(layout: Layout, *, wiped: bool) -> Layout:
    """Return the tombstone of a deleted queue."""
    stone = {**new_layout(layout["shards"], layout["kind"], layout["epoch"]), "deleted": True}
    past = layout.get("past", [])
    if wiped:
        return {**stone, "past": [*past, *layout.get("old", ())][-_LONGEST_PAST:]}
    return {**stone, "past": past, "old": [list(pair) for pair in epochs_of(layout)]}


def again(stone: Layout, shards: int = 0, kind: str = "") -> Layout:
    """Return the layout of a re-created queue; shards and kind are as before unless given."""
    fresh = new_layout(shards or stone["shards"], kind or stone["kind"], stone["epoch"] + 1)
    return {**fresh, "past": stone.get("past", [])}


def revived(layout: Layout) -> Layout:
    """Return the layout after a loss of the registry only, where the shards show that the present epoch is closed."""
    former = restored(layout)
    old = [*former.get("old", ()), [layout["epoch"], layout["shards"]]]
    return {**former, "epoch": layout["epoch"] + 1, "old": old}


def rules_of(layout: Layout, shards: int, *, producers_paused: bool = False) -> dict[str, Any]:
    """Return the rules of each of ``shards`` shards, without those that have no effect.

    They are the limits, ``paused_in`` and ``paused_out`` (when that pause ends, Unix ms; 0 = not by itself) and
    ``producers_paused``. Every shard knows the whole ``max_length``, its part of it is its quota
    (:mod:`..quotas`). ``morgue_max`` is divided among the shards, rounded up.
    """
    rules = {name: limit for name, limit in (layout.get("limits") or {}).items() if limit}
    if "morgue_max" in rules:
        rules["morgue_max"] = -(-rules["morgue_max"] // shards)
    ends = layout.get("until") or {}
    for direction, flag in (("in", PAUSED_IN), ("out", PAUSED_OUT)):
        if layout.get("paused", 0) & flag:
            rules[f"paused_{direction}"] = ends.get(direction, 0)
    return {**rules, "producers_paused": True} if producers_paused else rules


def describe(layout: Layout) -> str:
    """Return a short description of a layout for logs."""
    if is_deleted(layout):
        return "deleted, keys still to be removed" if "old" in layout else "deleted"
    old = "".join(f", epoch {epoch} with {shards} shards is being drained" for epoch, shards in layout.get("old", ()))
    return f"{layout['shards']} shards in epoch {layout['epoch']}{old}"


def _without(layout: Layout, *names: str) -> Layout:
    return {name: value for name, value in layout.items() if name not in names}
