"""Policy of a queue: its pause and its limits in the layout, and the rules of its shards that follow from them.

These are pure functions; :mod:`.registry` stores what they return. Also the pauses of recurring tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypedDict, cast

from .deployment import Deployment
from .errors import InvalidJob
from .inputs import check_known
from .records import layout as layouts
from .records.keys import number_of, recurring_key
from .records.layout import PAUSED_IN, PAUSED_OUT, Layout
from .redis.scripts import clear_errors

DIRECTIONS: Final = {"in": PAUSED_IN, "out": PAUSED_OUT, "both": PAUSED_IN | PAUSED_OUT}


class QueueLimits(TypedDict, total=False):
    """Limits of a queue."""

    #: most live jobs of all shards together; further ones are refused with QueueFull. 0 = no limit
    max_length: int | None
    #: most jobs in its morgue, divided among the shards; the oldest are removed first. 0 = no limit
    morgue_max: int | None
    #: how long its morgue keeps a job. 0 = for ever
    morgue_ttl_ms: int | None
    #: serve more urgent classes more often instead of always first
    weighted: bool | None
    #: due jobs that have waited longer for more urgent ones get a quarter of what is reserved. 0 = they wait for as
    #: long as more urgent jobs are due
    starve_after_ms: int | None


class _Limit(NamedTuple):
    """Limit as settings and requests have it."""

    #: its name in :class:`QueueLimits`, in the layout and in the rules of the shards
    stored: str
    #: its value from the stored one, which is 0 if it is not set
    shown: Callable[[Any], Any] = lambda stored: stored or None
    #: the stored value from it
    to_store: Callable[[Any], Any] = lambda given: given or 0


def _in_seconds(name: str) -> _Limit:
    return _Limit(name, lambda ms: ms / 1000 if ms else None, lambda seconds: round((seconds or 0) * 1000))


_TABLE: Final = {
    "max_length": _Limit("max_length"),
    "morgue_max": _Limit("morgue_max"),
    "morgue_ttl": _in_seconds("morgue_ttl_ms"),
    "priorities": _Limit(
        "weighted", lambda weighted: "weighted" if weighted else "strict", lambda given: given == "weighted"
    ),
    "starve_after": _in_seconds("starve_after_ms"),
}
#: names of the limits of a queue in settings and requests
LIMITS: Final = tuple(_TABLE)
#: names of the limits in the layout of a queue
_STORED: Final = tuple(limit.stored for limit in _TABLE.values())


def flags_of(direction: str) -> int:
    """Return the flags of a direction.

    Raises:
        InvalidJob: there is no such direction.
    """
    flags = DIRECTIONS.get(direction)
    if flags is None:
        raise InvalidJob(f"a queue is paused in one of {', '.join(DIRECTIONS)}, not in {direction!r}")
    return flags


def paused(layout: Layout, flags: int, end: int) -> Layout:
    """Return the layout with a pause in the directions of ``flags``, which ends by itself at ``end``; 0 = never."""
    return _with(_with(layout, "paused", int(layout.get("paused", 0)) | flags), "until", _ends(layout, flags, end))


def ended_pauses(layout: Layout, now_ms: float) -> int:
    """Return the flags of the pauses that have ended by themselves."""
    ends = layout.get("until") or {}
    return sum(DIRECTIONS[word] for word, end in ends.items() if end <= now_ms)


def without_ended_pauses(layout: Layout, now_ms: float) -> Layout:
    """Return the layout without the pauses that have ended by themselves."""
    return resumed(layout, ended_pauses(layout, now_ms))


def resumed(layout: Layout, flags: int) -> Layout:
    """Return the layout without the pauses in the directions of ``flags``."""
    changed = _with(layout, "paused", int(layout.get("paused", 0)) & ~flags)
    return _with(changed, "until", _ends(layout, flags, 0))


def _ends(layout: Layout, flags: int, end: int) -> dict[str, int]:
    """Return the ends of pauses by direction, with that of the directions in ``flags`` replaced; 0 = none."""
    ends = {**(layout.get("until") or {}), **{word: end for word in ("in", "out") if DIRECTIONS[word] & flags}}
    return {word: ends[word] for word in ("in", "out") if ends.get(word)}


def check_limits(limits: QueueLimits) -> None:
    """Check limits that were requested.

    Raises:
        InvalidJob: there is no such limit, or one is negative.
    """
    check_known(limits, _STORED, "limit")
    for word, value in limits.items():
        if value is not None and cast(int, value) < 0:
            raise InvalidJob(f"{word} is 0 (no limit) or more, not {value}")


def limited(layout: Layout, limits: QueueLimits) -> Layout:
    """Return the layout with other limits; None leaves a limit unchanged."""
    given = {word: value for word, value in limits.items() if value is not None}
    merged = {**layout.get("limits", {}), **given}
    return _with(layout, "limits", {word: value for word, value in merged.items() if value})


def queue_policy(layout: Layout, now_ms: float | None = None) -> dict[str, Any]:
    """Return the policy in readable form.

    ``paused`` ("", "in", "out" or "both"), ``until`` (by direction: when that pause ends, Unix ms) and the ``limits``
    in force.

    Args:
        now_ms: time on Redis's clock; None = that of this machine.
    """
    layout = without_ended_pauses(layout, time.time() * 1000 if now_ms is None else now_ms)
    paused = int(layout.get("paused", 0)) & (PAUSED_IN | PAUSED_OUT)
    limits = layout.get("limits") or {}
    return {
        "paused": next((word for word, flags in DIRECTIONS.items() if flags == paused), ""),
        "until": dict(layout.get("until") or {}),
        "limits": {word: limits[word] for word in _STORED if limits.get(word)},
    }


def limits_in_force(layout: Layout) -> dict[str, Any]:
    """Return the limits of a layout: None is no limit, times are in seconds."""
    limits = layout.get("limits") or {}
    return {name: limit.shown(limits.get(limit.stored, 0)) for name, limit in _TABLE.items()}


def limit_arguments(given: Mapping[str, Any]) -> QueueLimits:
    """Return the limits in that form as :meth:`Broker.limit` takes them; missing members are left out."""
    limits = {limit.stored: limit.to_store(given[name]) for name, limit in _TABLE.items() if name in given}
    return cast(QueueLimits, limits)


def are_kept(layout: Layout, number: int, found: dict[str, Any], *, producers_paused: bool) -> bool:
    """Return True if the rules of a shard match a layout."""
    if "ended" in found:
        return True  # a tombstone
    if "closing" not in found and is_old(layout, number):
        return False
    demanded = of_shard(layout, number, producers_paused=producers_paused)
    return {name: rule for name, rule in found.items() if name != "closing"} == demanded


def is_old(layout: Layout, number: int) -> bool:
    """Return True if the shard belongs to an earlier epoch, so that it has to be closed."""
    return number < number_of(layout["epoch"], 0)


def of_shard(layout: Layout, number: int, *, producers_paused: bool) -> dict[str, Any]:
    """Return the rules that a layout demands of one of its shards."""
    epochs = layouts.epochs_of(layout)
    shards = next((shards for epoch, shards in epochs if 0 <= number - number_of(epoch, 0) < shards), 1)
    return layouts.rules_of(layout, shards, producers_paused=producers_paused)


def _with(layout: Layout, word: str, value: Any) -> Layout:
    rest = {name: member for name, member in layout.items() if name != word}
    return {**rest, word: value} if value else rest


# -- pauses of recurring tasks. Redis alone keeps them: after a loss of its data the ticks fire again -----------------


def pause_recurring(deployment: Deployment, task: str) -> None:
    """Let no tick of a recurring task fire until it is resumed; jobs that are there already run."""
    now_ms = deployment.now_ms()
    with clear_errors():
        deployment.client.hsetnx(recurring_key(deployment.prefix), task, int(now_ms))


def resume_recurring(deployment: Deployment, *names: str) -> None:
    """End :func:`pause_recurring` under each of these names of a task."""
    with clear_errors():
        deployment.client.hdel(recurring_key(deployment.prefix), *names)


def is_recurring_paused(deployment: Deployment, *names: str) -> bool:
    """Return True if a recurring task is paused under one of its names, so that its ticks do not fire now."""
    with clear_errors():
        stored: list[bytes | None] = deployment.client.hmget(recurring_key(deployment.prefix), names)
    return any(since is not None for since in stored)


def recurring_pauses(deployment: Deployment) -> dict[str, int]:
    """Return since when recurring tasks are paused, Unix ms, by task."""
    with clear_errors():
        stored: dict[bytes, bytes] = deployment.client.hgetall(recurring_key(deployment.prefix))
    return {task.decode(): int(since) for task, since in stored.items()}
