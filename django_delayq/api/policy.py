"""Queues as registered, and the creation of queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .. import connections
from ..access.problems import Problem
from ..connections import DjangoBroker
from ..core import layouts
from ..core.counts import Counts
from ..core.queue import Queue
from ..core.records.keys import MAX_SHARDS
from ..settings.conf import QueueConf, conf

#: maximum number of shards of one queue that are shown individually
MOST_SHARDS_SHOWN: Final = 64


def queue_view(queue: Queue, counts: Counts | None = None) -> dict[str, Any]:
    """Return a queue as registered, with its counts if they were read; what :mod:`.serializers.queues` renders."""
    policy = layouts.queue_policy(queue.layout)
    shards = counts.shards if counts else []
    return {
        "name": queue.name,
        "kind": queue.kind,
        "shards": queue.shards,
        "epoch": int(queue.layout["epoch"]),
        "draining": len(queue.epochs) > 1,  # former shards are being worked off
        "paused": policy["paused"],
        "paused_until": policy["until"],
        "configured": connections.is_configured(queue.name),
        "limits": layouts.limits_in_force(queue.layout),
        "counts": counts,
        "by_shard": [
            {"number": number % MAX_SHARDS, "epoch": number // MAX_SHARDS, "counts": one}
            for number, one in shards[-MOST_SHARDS_SHOWN:]  # the newest ones
        ],
        "shards_left_out": max(0, len(shards) - MOST_SHARDS_SHOWN),
    }


def make(broker: DjangoBroker, name: str, given: Mapping[str, Any]) -> tuple[Queue, bool]:
    """Return the requested queue, and True if it was created now.

    Raises:
        Problem: it exists with other properties, or the settings contradict the request.
    """
    if connections.is_configured(name):
        _check_settings(name, given)
    queue, is_new = broker.registry.create_with(name, **_with_settings(name, given))
    if is_new:
        return queue, True
    _check_same(name, {"kind": queue.kind, "shards": queue.shards, **layouts.limits_in_force(queue.layout)}, given)
    return queue, False


def _with_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request completed with the settings."""
    entry = conf().queue(name)
    limits = {word: getattr(entry, word) for word in layouts.LIMITS}
    return {"kind": entry.kind, "shards": connections.configured_shards(name) or 1, **limits, **given}


def _check_settings(name: str, given: Mapping[str, Any]) -> None:
    entry: QueueConf = conf().queue(name)
    for word, value in given.items():
        setting = getattr(entry, word)
        if value != setting and not (word == "shards" and setting is None):
            raise Problem(
                409,
                "set_in_settings",
                f"DELAYQ['QUEUES'][{name!r}] of the project's settings has "
                f"{word}={setting!r}; leave it out, or change it there",
            )


def _check_same(name: str, there: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    for word, value in given.items():
        if there[word] != value:
            advice = {"kind": "take another name", "shards": f"POST v1/queues/{name}/reshard changes it"}
            raise Problem(
                409,
                "conflict",
                f"queue {name!r} exists with {word}={there[word]!r}; "
                f"{advice.get(word, f'PATCH v1/queues/{name} changes it')}",
            )
