"""Layout of a queue in the registry: its epochs and its policy. Pure functions on a dict; :mod:`.registry` stores it.

================= ================================================================================================
field             meaning
================= ================================================================================================
shards, epoch     the present epoch and its number of shards, for new jobs
kind              ``python`` or ``pull``
old               ``[[epoch, shards], ...]``: closed epochs that may still hold jobs or morgue records, oldest first
past              the same for retired epochs: tombstones, needed if Redis loses them
next              ``[epoch, shards]`` while a reshard is in progress
leaving           ``"empty"`` or ``"force"`` while the queue is being deleted
deleted           true: a tombstone
paused            ``{"in": ms, "out": ms}``: the paused directions, and when the pause ends by itself, Unix ms on
                  Redis's clock; 0 = it does not
limits            see :class:`QueueLimits`. Every shard has pauses and limits as its rules (``lua/rule.lua``)
================= ================================================================================================
"""

from __future__ import annotations

import json
import time
from typing import Any, Final, TypeAlias, TypedDict

from .errors import InvalidJob
from .inputs import check_choice, check_known, check_number
from .records.keys import number_of

Layout: TypeAlias = dict[str, Any]
Epochs: TypeAlias = tuple[tuple[int, int], ...]

_LONGEST_PAST: Final = 64


def new_layout(shards: int, kind: str, former: Layout | None = None) -> Layout:
    """Return the layout of a new queue; it continues behind the tombstone of a deleted one of its name."""
    if former is None:
        return {"shards": shards, "epoch": 0, "kind": kind}
    return {"shards": shards, "epoch": former["epoch"] + 1, "kind": kind, "past": former.get("past", [])}


def encode(layout: Layout) -> bytes:
    """Return a layout as the registry stores it."""
    return json.dumps(layout).encode()


def decode(stored: bytes) -> Layout:
    """Return the layout from its stored form."""
    layout: Layout = json.loads(stored)
    return layout


# -- epochs ----------------------------------------------------------------------------------------------------------


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
    return _with(_with(layout, "past", [*layout.get("past", ()), *retired][-_LONGEST_PAST:]), "old", old)


def recovered(known: Layout, found: Layout | None = None, *, is_closed: bool = False) -> Layout:
    """Return the layout to store where the registry has lost a known one, or went back to one of an earlier epoch.

    Tombstones may be lost, too, so all former epochs have to be closed and drained again. Jobs may wait in each epoch
    of ``found``: Redis went back to them, or a process that knew no better made the queue anew. A deleted queue that
    came back so continues.

    Args:
        known: what this process has read last.
        found: what the registry has instead; None = nothing.
        is_closed: the present epoch of ``known`` is closed, so the queue continues in another one.
    """
    was_deleted = is_deleted(known)
    if found is not None and was_deleted and is_deleted(found):
        return known
    all_found = [one for one in (known, found) if one is not None]
    former = [tuple(pair) for one in all_found for name in ("past", "old") for pair in one.get(name, ())]
    former += [pair for one in all_found for pair in epochs_of(one)]
    present = found if was_deleted and found is not None else known
    epoch = known["epoch"] + (was_deleted or is_closed)
    old = [[number, shards] for number, shards in sorted(dict(former).items()) if number < epoch]
    unfinished = ("next", "leaving") if was_deleted or is_closed or found is None else ()
    return _with({**_without(present, "past", "deleted", *unfinished), "epoch": epoch}, "old", old)


def tombstone(layout: Layout) -> Layout:
    """Return the tombstone of a deleted queue."""
    past = [*layout.get("past", ()), *map(list, epochs_of(layout))][-_LONGEST_PAST:]
    return {**{name: layout[name] for name in ("shards", "epoch", "kind")}, "deleted": True, "past": past}


def _without(layout: Layout, *names: str) -> Layout:
    return {name: value for name, value in layout.items() if name not in names}


def _with(layout: Layout, name: str, value: Any) -> Layout:
    """Return the layout with another value in a field; an empty one removes it."""
    return {**_without(layout, name), **({name: value} if value else {})}


# -- pauses ----------------------------------------------------------------------------------------------------------

#: words for the paused directions of a queue: in refuses new jobs, out reserves none
DIRECTIONS: Final = {"in": ("in",), "out": ("out",), "both": ("in", "out")}


def directions_of(word: str) -> tuple[str, ...]:
    """Return the directions that a word means.

    Raises:
        InvalidJob: there is no such word.
    """
    if word not in DIRECTIONS:
        raise InvalidJob(f"a queue is paused in one of {', '.join(DIRECTIONS)}, not in {word!r}")
    return DIRECTIONS[word]


def pauses_of(layout: Layout) -> dict[str, int]:
    """Return the paused directions, with the end of each, Unix ms; 0 = it does not end by itself."""
    return dict(layout.get("paused") or {})


def paused(layout: Layout, directions: tuple[str, ...], end: int) -> Layout:
    """Return the layout with pauses in these directions, which end by themselves at ``end``; 0 = never."""
    pauses = {**pauses_of(layout), **dict.fromkeys(directions, end)}
    return _with(layout, "paused", dict(sorted(pauses.items())))


def resumed(layout: Layout, directions: tuple[str, ...]) -> Layout:
    """Return the layout without the pauses in these directions."""
    return _with(layout, "paused", _without(pauses_of(layout), *directions))


def ended_pauses(layout: Layout, now_ms: float) -> tuple[str, ...]:
    """Return the directions of the pauses that have ended by themselves."""
    return tuple([word for word, end in pauses_of(layout).items() if 0 < end <= now_ms])


# -- limits ----------------------------------------------------------------------------------------------------------


#: order in which a queue serves its priorities: a more urgent class always first, or more often first
PRIORITY_MODES: Final = ("strict", "weighted")


class QueueLimits(TypedDict, total=False):
    """Limits of a queue, as settings and requests have them. None or 0 = no limit."""

    #: most live jobs of all shards together; further ones are refused with QueueFull
    max_length: int | None
    #: most jobs in its morgue, divided among the shards; the oldest are removed first
    morgue_max: int | None
    #: how long its morgue keeps a job, seconds
    morgue_ttl: float | None
    #: one of :data:`PRIORITY_MODES`
    priorities: str
    #: due jobs that have waited longer for more urgent ones, seconds, get a quarter of what is reserved
    starve_after: float | None


#: limits of a queue that has none
NO_LIMITS: Final[QueueLimits] = {
    "max_length": None,
    "morgue_max": None,
    "morgue_ttl": None,
    "priorities": "strict",
    "starve_after": None,
}
#: names of the limits of a queue
LIMITS: Final = tuple(NO_LIMITS)


def check_limits(limits: QueueLimits) -> None:
    """Check limits that were requested.

    Raises:
        InvalidJob: there is no such limit, or its value is not valid.
    """
    check_known(limits, LIMITS, "limit")
    for name, value in limits.items():
        if name == "priorities":
            check_choice(name, value, PRIORITY_MODES)
        elif value is not None:
            check_number(name, value, 0, unit="")


def limited(layout: Layout, limits: QueueLimits) -> Layout:
    """Return the layout with other limits; those that are not given stay."""
    merged = {**limits_in_force(layout), **limits}
    return _with(layout, "limits", {name: value for name, value in merged.items() if value not in (None, 0, "strict")})


def limits_in_force(layout: Layout) -> dict[str, Any]:
    """Return all members of :class:`QueueLimits` for a layout."""
    return {**NO_LIMITS, **layout.get("limits", {})}


# -- policy ----------------------------------------------------------------------------------------------------------


def queue_policy(layout: Layout, now_ms: float | None = None) -> dict[str, Any]:
    """Return the policy in readable form.

    ``paused`` ("", "in", "out" or "both"), ``paused_until`` (by direction: when that pause ends, Unix ms) and the
    ``limits`` in force.

    Args:
        now_ms: time on Redis's clock; None = that of this machine.
    """
    pauses = pauses_of(resumed(layout, ended_pauses(layout, time.time() * 1000 if now_ms is None else now_ms)))
    return {
        "paused": next((word for word, directions in DIRECTIONS.items() if directions == tuple(pauses)), ""),
        "paused_until": {word: end for word, end in pauses.items() if end},
        "limits": layout.get("limits", {}),
    }


def rules_of(layout: Layout, shards: int, *, producers_paused: bool = False) -> dict[str, Any]:
    """Return the rules of each of ``shards`` shards, without those that have no effect.

    They are the limits, ``paused_in`` and ``paused_out`` (when that pause ends, Unix ms; 0 = not by itself) and
    ``producers_paused``. The limits have the form of the scripts: ``morgue_ttl_ms``, ``starve_after_ms``, and
    ``weighted`` for these ``priorities``. Every shard knows the whole ``max_length``, its part of it is its quota
    (:mod:`.quotas`). ``morgue_max`` is divided among the shards, rounded up.
    """
    rules = dict(layout.get("limits", {}))
    for name in rules.keys() & {"morgue_ttl", "starve_after"}:
        rules[f"{name}_ms"] = max(1, round(rules.pop(name) * 1000))
    if rules.pop("priorities", None):
        rules["weighted"] = True
    if "morgue_max" in rules:
        rules["morgue_max"] = -(-rules["morgue_max"] // shards)
    rules |= {f"paused_{word}": end for word, end in pauses_of(layout).items()}
    return {**rules, "producers_paused": True} if producers_paused else rules


def rules_of_shard(layout: Layout, number: int, *, producers_paused: bool) -> dict[str, Any]:
    """Return the rules that a layout demands of one of its shards: those of earlier epochs have to be closed."""
    epochs = epochs_of(layout)
    shards = next((shards for epoch, shards in epochs if 0 <= number - number_of(epoch, 0) < shards), 1)
    rules = rules_of(layout, shards, producers_paused=producers_paused)
    return {**rules, "closing": True} if number < number_of(layout["epoch"], 0) else rules
