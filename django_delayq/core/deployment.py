"""One Redis deployment under one prefix, as all parts of the core need it: connection, scripts, keys and clock."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from .job import PRIORITIES, Job, pack_repeats
from .records.keys import FRESH_KEYS, MAX_SHARDS, SHARD_KEYS, Shard, wake_key
from .redis.connection import Connection
from .redis.probe import by_server, check_server
from .redis.scripts import Observer, Scripts, clear_errors

#: shards whose keys are kept in memory
_MOST_SHARDS: Final = 1 << 16


class Deployment:
    """Deployment of Redis under one prefix.

    Args:
        connection: see :func:`django_delayq.core.redis.connection.connect`.
        prefix: put before every key; deployments with different prefixes are isolated from each other.
        lease_ms: how long a reserved job belongs to its holder without a heartbeat.
        event_cap: events kept in each shard's event stream.
        test_clock: take the time from each shard's meta field ``test_clock`` (µs) instead of Redis.
        observe: called after every script call; see :meth:`observe`.
    """

    #: seconds for which a process that only schedules believes a layout: Redis may have lost it, and another process
    #: may have made the queue anew. The shards that are in it take jobs all the same
    layout_seconds: float = 15.0
    #: seconds after which a call no longer waits for another process's change of shards but completes it
    takeover_seconds: float = 0.5
    #: seconds for which a call waits for a change of shards before it gives up
    change_seconds: float = 10.0
    #: longest time for which a queue that had no room is believed to be full (:mod:`.quotas`)
    full_seconds: float = 0.05
    #: seconds for which a process that pulls jobs believes the names of the limits that were set at run time
    own_limits_seconds: float = 5.0

    def __init__(
        self,
        connection: Connection,
        *,
        prefix: str = "delayq",
        lease_ms: int = 15_000,
        event_cap: int = 10_000,
        test_clock: bool = False,
        observe: Observer | None = None,
    ) -> None:
        self.connection = connection
        self.prefix = prefix
        self.lease_ms = lease_ms
        self.event_cap = event_cap
        #: for how long a call may be repeated, packed for the scripts (``lua/lib/window.lua``)
        self.repeats = pack_repeats(connection.patience)
        self.scripts = Scripts(connection, test_clock=test_clock)
        self.queues_key = self.key("queues")
        #: ``shard(queue, number)``: keys and constants of a shard (``keys.number_of``); those in use are kept
        self.shard: Callable[[str, int], Shard] = lru_cache(_MOST_SHARDS)(self._make_shard)
        #: called with reserved jobs whose bodies cannot be read, before they are buried
        self.on_unreadable: Callable[[Sequence[Job]], None] = lambda jobs: None
        self.observe(observe)
        self.make_parts()

    def make_parts(self) -> None:
        """Make what a subclass builds on the deployment."""

    @property
    def client(self) -> Any:
        """redis-py client, for commands that are not verbs."""
        return self.connection.client

    def observe(self, observer: Observer | None) -> None:
        """Call ``observer(verb, seconds, failed)`` after every script call from now on; None = no observer.

        The observer runs in the thread of the call, also when the call raises. Calls already in progress are not
        reported.
        """
        self.scripts.observer = observer

    def key(self, name: str) -> str:
        """Return a key outside the shards (:mod:`.records.keys`); on a cluster all that it returns are in one slot."""
        return f"{{{self.prefix}}}:{name}"

    def wake_key(self, queue: str) -> str:
        """Return the key of a queue's wake list."""
        return wake_key(self.prefix, queue)

    def _make_shard(self, queue: str, number: int) -> Shard:
        epoch, place = divmod(number, MAX_SHARDS)
        stem = f"{self.prefix}:{{{queue}:{epoch}.{place}}}:"
        names = {name: f"{stem}{name}".encode() for name in SHARD_KEYS}
        wake, cluster = self.wake_key(queue).encode(), self.connection.cluster
        channel = wake if cluster else b""
        numbers = struct.pack("<IIIB", self.lease_ms, self.event_cap, number, len(channel))
        rest = tuple(names[name] for name in FRESH_KEYS)
        return Shard(
            number,
            keys=tuple(names.values()) if cluster else (*names.values(), wake),
            constants=self.repeats + numbers + channel,
            names=names,
            fresh_keys=tuple((names[f"due.{priority}"], *rest) for priority in range(PRIORITIES)),
        )

    def now_ms(self) -> float:
        """Return Redis's time, Unix ms."""
        with clear_errors():
            seconds, micros = self.connection.ask_any(self.client.time)
        return float(seconds * 1000 + micros / 1000)

    def server_info(self) -> dict[str, Any]:
        """Return the reply of ``INFO``; on a cluster, of its first node."""
        with clear_errors():
            info: dict[str, Any] = self.connection.ask_any(self.client.info)
        return info

    def check_server(self) -> None:
        """Check that every server is fit for a queue.

        Raises:
            Misconfigured: Redis is older than 6.2, or of another kind than configured (a Sentinel, a cluster's node).
            QueueUnavailable: it is a read-only replica.
        """
        connection = self.connection
        with clear_errors():
            for info in by_server(self.client.info()):
                check_server(info, connection.display_url, cluster=connection.cluster)
