"""Data in Redis as tests read and write them: keys, layouts, rules of shards, packed records, the check of it all."""

from __future__ import annotations

from typing import Any, Unpack

from django_delayq.core import Broker, Queue
from django_delayq.core.fsck import assert_invariants, check as check_stored
from django_delayq.core.layouts import (
    QueueLimits,
    is_pending,
    limits_in_force,
    new_layout,
    queue_policy,
    rules_of as rules_of_layout,
)
from django_delayq.core.limits import (
    Answer,
    Ask,
    Block,
    Grant,
    LaneNotes,
    Place,
    Unused,
    limits_of,
    offer_of as offer_of_job,
    pause_scope,
)
from django_delayq.core.outcomes import Offer
from django_delayq.core.reading import Inspector
from django_delayq.core.records.frames import (
    CHUNK,
    digest,
    held_digests,
    job_of,
    pack,
    pack_new,
    unpack,
    unpack_body,
    unpack_fields,
    unpack_marks,
    unpack_payload,
    unpack_state,
)
from django_delayq.core.records.keys import DUE_KEYS, MAX_SHARDS, SHARD_KEYS, number_of, wake_key
from django_delayq.core.resharding import HEAD_START


def shard_key(queue: Queue, name: str, number: int = 0) -> bytes:
    """Return the key of a part of a shard: its "meta", "body", "lease", …"""
    return queue.shard(number).names[name]


def shared_key(prefix: str, name: str) -> str:
    """Return a key outside the shards."""
    return f"{{{prefix}}}:{name}"


def workers_key(prefix: str) -> str:
    return shared_key(prefix, "workers")


def bulk_load_key(prefix: str, load: str) -> str:
    return shared_key(prefix, f"load:{load}")


def permits_key(prefix: str, limit: str) -> str:
    return shared_key(prefix, f"permits:{limit}")


def depth_key(prefix: str, queue: str) -> str:
    return shared_key(prefix, f"depth:{queue}")


def figures_keys(prefix: str) -> tuple[str, str]:
    """Return the keys of the counters of finished attempts, and of the requests that were added to them."""
    return shared_key(prefix, "figures"), shared_key(prefix, "noted")


def stored_rules(queue: Queue, number: int = 0) -> dict[str, Any]:
    """Return the rules of a shard, as the scripts read them."""
    return unpack_fields(queue.deployment.client.hget(shard_key(queue, "meta", number), "rules") or b"")


def set_clock(queue: Queue, number: int, us: float) -> None:
    """Set the clock of a shard, µs, for a broker with a test clock."""
    queue.deployment.client.hset(shard_key(queue, "meta", number), "test_clock", int(us))


def last_tick(queue: Queue, ident: str) -> int | None:
    """Return the last tick of an id that was fired, Unix ms."""
    return Inspector(queue.registry).last_ticks([(queue, ident)])[0]


def limit_queue(broker: Broker, name: str, **limits: Unpack[QueueLimits]) -> bool:
    """Store limits of a queue, and leave the division of its ``max_length`` to producers."""
    return broker.registry.limit(name, limits)


def backdate_begun(queue: Queue, began_ms: float, *but: str) -> None:
    """Let the attempts of a shard that were acked early have begun at a moment, but for those of some jobs."""
    key = shard_key(queue, "begun")
    for field, value in queue.deployment.client.hgetall(key).items():
        ident, _, *rest = unpack(value)
        if ident.decode() not in but:
            queue.deployment.client.hset(key, field, pack((ident, int(began_ms), *rest)))
