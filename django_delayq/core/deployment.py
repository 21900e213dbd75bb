"""One Redis deployment under one prefix, as all parts of the core need it: connection, scripts, keys and clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from .job import Job, pack_repeats
from .records.keys import MAX_SHARDS, Shard, make_shard, queues_key, wake_key
from .redis.connection import Connection
from .redis.probe import by_server, check_version, server_version
from .redis.scripts import Observer, Scripts, clear_errors

DEFAULT_LEASE_MS: Final = 15_000
DEFAULT_EVENT_CAP: Final = 10_000


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
    #: longest time for which a queue that had no room is believed to be full (:mod:`.sending.quotas`)
    full_seconds: float = 0.05

    def __init__(
        self,
        connection: Connection,
        *,
        prefix: str = "delayq",
        lease_ms: int = DEFAULT_LEASE_MS,
        event_cap: int = DEFAULT_EVENT_CAP,
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
        self.queues_key = queues_key(prefix)
        #: called with reserved jobs whose bodies cannot be read, before they are buried
        self.on_unreadable: Callable[[Sequence[Job]], None] = lambda jobs: None
        self.observe(observe)

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

    def wake_key(self, queue: str) -> str:
        """Return the key of a queue's wake list."""
        return wake_key(self.prefix, queue)

    def shard(self, queue: str, number: int) -> Shard:
        """Return keys and constants of a shard by its number (``keys.number_of``)."""
        epoch, place = divmod(number, MAX_SHARDS)
        return make_shard(
            self.prefix,
            queue,
            epoch,
            place,
            lease_ms=self.lease_ms,
            event_cap=self.event_cap,
            repeats=self.repeats,
            cluster=self.connection.cluster,
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
        return by_server(info)[0]

    def check_server(self) -> None:
        """Refuse a server that is too old.

        Raises:
            Misconfigured: Redis is older than 6.2.
        """
        with clear_errors():
            check_version(server_version(self.client.info), self.connection.display_url)
