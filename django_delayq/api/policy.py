"""What a queue is told to be, and how a new one comes to be what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .. import connections
from ..connections import DjangoBroker
from ..core import rules
from ..core.operations.counts import Counts
from ..core.queue import Queue
from ..core.records import layout as layouts
from ..core.records.keys import MAX_SHARDS
from ..core.records.layout import Layout
from ..settings.conf import conf
from ..settings.sections import QueueConf
from .problems import Problem

PLACES: Final = ("delayed", "ready", "reserved", "gated", "failed", "morgue")


# --- what is shown


def described(queue: Queue) -> dict[str, Any]:
    """A queue as the registry has it."""
    return {
        "name": queue.name,
        "kind": queue.kind,
        "shards": queue.shards,
        "epoch": int(queue.layout["epoch"]),
        "draining": len(queue.epochs) > 1,
        "paused": rules.orders_of(queue.layout)["paused"],
        "configured": connections.is_configured(queue.name),
        "limits": limits_in_force(queue.layout),
    }


def limits_in_force(layout: Layout) -> dict[str, Any]:
    """The limits of a layout as JSON has them: null is no limit, a time is in seconds."""
    limits = rules.orders_of(layout)["limits"]
    ttl_ms = limits.get("morgue_ttl_ms")
    return {
        "max_length": limits.get("max_length"),
        "morgue_max": limits.get("morgue_max"),
        "morgue_ttl": ttl_ms / 1000 if ttl_ms else None,
        "priorities": "weighted" if limits.get("weighted") else "strict",
    }


def with_counts(queue: Queue, counts: Counts) -> dict[str, Any]:
    """A queue and what lies in it."""
    return {**described(queue), **counted(counts), "counters": counts.counters}


def counted(counts: Counts) -> dict[str, Any]:
    """How many jobs lie where, and how late the first of them is."""
    return {
        "counts": {place: getattr(counts, place) for place in PLACES},
        "lag_seconds": round(counts.lag_seconds, 3),
    }


def in_detail(queue: Queue, most: int) -> dict[str, Any]:
    """A queue, and the newest ``most`` of its shards one by one; one round trip."""
    (counts,) = queue.broker.inspector.all_counts(queues=[queue], by_shard=True)
    shown = counts.shards[-most:]
    return {
        **with_counts(queue, counts),
        "by_shard": [
            {"number": number % MAX_SHARDS, "epoch": number // MAX_SHARDS, **counted(one)} for number, one in shown
        ],
        "shards_left_out": len(counts.shards) - len(shown),
    }


# --- what is asked for


def limits_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Limits of a request as :meth:`Broker.limit` takes them; what is not in the request is not in here."""
    found: dict[str, Any] = {name: asked[name] or 0 for name in ("max_length", "morgue_max") if name in asked}
    if "morgue_ttl" in asked:
        found["morgue_ttl_ms"] = int((asked["morgue_ttl"] or 0) * 1000)
    if "priorities" in asked:
        found["weighted"] = asked["priorities"] == "weighted"
    return found


def make(broker: DjangoBroker, name: str, asked: Mapping[str, Any]) -> tuple[Queue, bool]:
    """The queue that is asked for, and whether it was made now (of several who want the same at once, all made it).

    Its limits are a part of what is written when it is made, so there is no moment at which it has none.

    Raises:
        Problem: it is there and is something else, or the settings say something else of it.
    """
    if connections.is_configured(name):
        _check_settings(name, asked)
    wanted = _wanted(name, asked)
    made: list[Layout] = []

    def fresh(stone: Layout | None) -> Layout:
        shards, kind = wanted["shards"], wanted["kind"]
        layout = layouts.again(stone, shards, kind) if stone else layouts.new_layout(shards, kind)
        limits = {word: value for word, value in limits_of(wanted).items() if value}
        made.append({**layout, "limits": limits} if limits else layout)
        return made[-1]

    layout = broker.create(name, fresh)
    queue = broker.queue(name)
    if made and layout is made[-1]:
        rules.restore(queue)
        return queue, True
    _check_same(name, {"kind": queue.kind, "shards": queue.shards, **limits_in_force(layout)}, asked)
    return queue, False


def _wanted(name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, completed by the settings."""
    entry = conf().queue(name)
    limits = {word: getattr(entry, word) for word in ("max_length", "morgue_max", "morgue_ttl", "priorities")}
    return {"kind": entry.kind, "shards": connections.configured_shards(name) or 1, **limits, **asked}


def _check_settings(name: str, asked: Mapping[str, Any]) -> None:
    entry: QueueConf = conf().queue(name)
    for word, value in asked.items():
        known = getattr(entry, word)
        if value != known and not (word == "shards" and known is None):
            raise Problem(
                409,
                "set_in_settings",
                f"DELAYQ['QUEUES'][{name!r}] of the project's settings says "
                f"{word}={known!r}; leave it out, or change it there",
            )


def _check_same(name: str, there: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    for word, value in asked.items():
        if there[word] != value:
            advice = {"kind": "take another name", "shards": f"POST v1/queues/{name}/reshard changes it"}
            raise Problem(
                409,
                "conflict",
                f"queue {name!r} is there with {word}={there[word]!r}; "
                f"{advice.get(word, f'PATCH v1/queues/{name} changes it')}",
            )
