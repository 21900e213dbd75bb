"""Policy of a queue: its pause and its limits. Also the pauses of recurring tasks.

A change is written first into the queue's layout, which is authoritative, and then into the rules of every shard, where
the scripts read it. If a call is interrupted in between, or Redis loses a shard, the next tick of a dispatcher restores
the rules (:meth:`Queue.tick`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, Unpack, cast

from .errors import InvalidJob
from .inputs import check_known
from .records import layout as layouts
from .records.keys import number_of, recurring_key
from .records.layout import PAUSED_IN, PAUSED_OUT, Layout
from .redis.scripts import clear_errors
from .times import span_ms_of

if TYPE_CHECKING:
    from .broker import Broker
    from .queue import Queue
    from .shard_set import ShardSet

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


def pause(broker: Broker, name: str, direction: str = "both", *, seconds: float | timedelta | None = None) -> None:
    """Pause a queue; see :meth:`Broker.pause`."""
    flags, end = _flags_of(direction), 0
    if seconds is not None:
        length = span_ms_of("seconds", seconds)
        if length <= 0:
            raise InvalidJob(f"a pause lasts more than 0 seconds, not {seconds!r}; leave seconds out to pause for good")
        end = int(broker.now_ms()) + length

    def change(layout: Layout) -> Layout:
        paused = _with(layout, "paused", int(layout.get("paused", 0)) | flags)
        return _with(paused, "until", _ends(layout, flags, end))

    _change_policy(broker, name, change)


def resume(broker: Broker, name: str, direction: str = "both") -> None:
    """End a pause; see :meth:`Broker.resume`."""
    _change_policy(broker, name, lambda layout: _resumed(layout, _flags_of(direction)))


def end_pauses(queue: ShardSet, now_ms: float) -> None:
    """Remove the pauses of a queue that have ended by themselves, which saves the scripts their check."""
    over = _over(queue.layout, now_ms)
    if over:
        _change_policy(queue.broker, queue.name, lambda layout: _resumed(layout, _over(layout, now_ms)))


def _over(layout: Layout, now_ms: float) -> int:
    """Return the flags of the pauses that have ended by themselves."""
    ends = layout.get("until") or {}
    return sum(DIRECTIONS[word] for word, end in ends.items() if end <= now_ms)


def _resumed(layout: Layout, flags: int) -> Layout:
    resumed = _with(layout, "paused", int(layout.get("paused", 0)) & ~flags)
    return _with(resumed, "until", _ends(layout, flags, 0))


def _ends(layout: Layout, flags: int, end: int) -> dict[str, int]:
    """Return the ends of pauses by direction, with that of the directions in ``flags`` replaced; 0 = none."""
    ends = {**(layout.get("until") or {}), **{word: end for word in ("in", "out") if DIRECTIONS[word] & flags}}
    return {word: ends[word] for word in ("in", "out") if ends.get(word)}


def limit(broker: Broker, name: str, **limits: Unpack[QueueLimits]) -> bool:
    """Set limits of a queue, see :meth:`Broker.limit`; return True if they were others before."""
    check_known(limits, _STORED, "limit")
    given: dict[str, Any] = {word: value for word, value in limits.items() if value is not None}
    for word, value in given.items():
        if value < 0:
            raise InvalidJob(f"{word} is 0 (no limit) or more, not {value}")

    def change(layout: Layout) -> Layout:
        limits = {**layout.get("limits", {}), **given}
        return _with(layout, "limits", {word: value for word, value in limits.items() if value})

    queue = broker.known_queue(name)
    is_new = queue is None or change(queue.layout) != queue.layout
    if is_new:
        _change_policy(broker, name, change)
    return is_new


def queue_policy(layout: Layout, now_ms: float | None = None) -> dict[str, Any]:
    """Return the policy in readable form.

    ``paused`` ("", "in", "out" or "both"), ``until`` (by direction: when that pause ends, Unix ms) and the ``limits``
    in force.

    Args:
        now_ms: time on Redis's clock; None = that of this machine.
    """
    layout = _resumed(layout, _over(layout, time.time() * 1000 if now_ms is None else now_ms))
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


def create(broker: Broker, name: str, *, kind: str, shards: int, **limits: Any) -> tuple[Queue, bool]:
    """Return a queue, and True if this call created it.

    The limits are written together with the queue, so it is never without them.

    Args:
        limits: as :func:`limits_in_force` returns them. An existing queue keeps its own.
    """
    created: list[Layout] = []

    def fresh(tombstone: Layout | None) -> Layout:
        layout = layouts.again(tombstone, shards, kind) if tombstone else layouts.new_layout(shards, kind)
        in_force = {word: value for word, value in limit_arguments(limits).items() if value}
        created.append({**layout, "limits": in_force} if in_force else layout)
        return created[-1]

    layout = broker.create(name, fresh)
    queue = broker.queue(name)
    is_new = bool(created) and layout is created[-1]
    if is_new:
        restore(queue)
    return queue, is_new


def are_kept(queue: ShardSet, number: int, found: dict[str, Any]) -> bool:
    """Return True if a shard's rules match the layout that this process has."""
    if "ended" in found:
        return True  # a tombstone
    if "closing" not in found and is_old(queue.layout, number):
        return False
    demanded = _rules_of(queue.layout, number, producers_paused=queue.broker.producers_paused)
    return {name: rule for name, rule in found.items() if name != "closing"} == demanded


def is_old(layout: Layout, number: int) -> bool:
    """Return True if the shard belongs to an earlier epoch, so that it has to be closed."""
    return number < number_of(layout["epoch"], 0)


def restore(queue: ShardSet) -> None:
    """Write the rules that the registry demands into every shard, until both agree."""
    broker = queue.broker
    since, (stored, layout) = broker.producers_paused_since(), broker.read_layout(queue.name)
    while layout is not None and not layouts.is_deleted(layout):
        # The layout as read: another thread may make the queue adopt one that it read earlier.
        for number in layouts.all_numbers(layouts.epochs_of(layout)):
            demanded = _rules_of(layout, number, producers_paused=since is not None)
            queue.rule(number, demanded, closing=is_old(layout, number))
        # The policy may have changed meanwhile, or new shards may have been published.
        before = since, stored
        since, (stored, layout) = broker.producers_paused_since(), broker.read_layout(queue.name)
        if (since, stored) == before:
            return


def _rules_of(layout: Layout, number: int, *, producers_paused: bool) -> dict[str, Any]:
    epochs = layouts.epochs_of(layout)
    shards = next((shards for epoch, shards in epochs if 0 <= number - number_of(epoch, 0) < shards), 1)
    return layouts.rules_of(layout, shards, producers_paused=producers_paused)


def switch_producers(broker: Broker, *, paused: bool) -> None:
    """Pause or resume the producers of all queues; see :meth:`Broker.pause_producers`."""
    broker.scripts.call("producers", (broker.queues_key.encode(),), int(paused))
    for queue in broker.queues():
        restore(queue)


def _with(layout: Layout, word: str, value: Any) -> Layout:
    rest = {name: member for name, member in layout.items() if name != word}
    return {**rest, word: value} if value else rest


def _change_policy(broker: Broker, name: str, change: Callable[[Layout], Layout]) -> None:
    broker.change_layout(name, change)
    queue = broker.known_queue(name)
    if queue is not None:
        restore(queue)


def _flags_of(direction: str) -> int:
    flags = DIRECTIONS.get(direction)
    if flags is None:
        raise InvalidJob(f"a queue is paused in one of {', '.join(DIRECTIONS)}, not in {direction!r}")
    return flags


# -- pauses of recurring tasks. Redis alone keeps them: after a loss of its data the ticks fire again -----------------


def pause_recurring(broker: Broker, task: str) -> None:
    """Let no tick of a recurring task fire until it is resumed; jobs that are there already run."""
    now_ms = broker.now_ms()
    with clear_errors():
        broker.client.hsetnx(recurring_key(broker.prefix), task, int(now_ms))


def resume_recurring(broker: Broker, *names: str) -> None:
    """End :func:`pause_recurring` under each of these names of a task."""
    with clear_errors():
        broker.client.hdel(recurring_key(broker.prefix), *names)


def is_recurring_paused(broker: Broker, *names: str) -> bool:
    """Return True if a recurring task is paused under one of its names, so that its ticks do not fire now."""
    with clear_errors():
        stored: list[bytes | None] = broker.client.hmget(recurring_key(broker.prefix), names)
    return any(since is not None for since in stored)


def recurring_pauses(broker: Broker) -> dict[str, int]:
    """Return since when recurring tasks are paused, Unix ms, by task."""
    with clear_errors():
        stored: dict[bytes, bytes] = broker.client.hgetall(recurring_key(broker.prefix))
    return {task.decode(): int(since) for task, since in stored.items()}
