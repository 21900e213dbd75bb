"""One Redis deployment seen through one prefix: its queues, its workers, its clock."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

from .connection import Connection
from .errors import Misconfigured
from .inspector import Inspector
from .keys import make_shard, queues_key, workers_key
from .queue import Queue
from .scripts import Scripts, clear_errors, server_version
from .wake import Waker, make_waker

log = logging.getLogger(__name__)

OLDEST_SERVER: Final = (6, 2)
DEFAULT_LEASE_MS: Final = 15_000
DEFAULT_EVENT_CAP: Final = 10_000


class Broker:
    """The door to the core. Safe to share between threads; make one per process.

    Args:
        connection: see :func:`django_delayq.core.connection.connect`.
        prefix: put before every key; deployments with different prefixes do not see each other.
        lease_ms: how long a reserved job stays its holder's without a heartbeat.
        event_cap: entries kept in each shard's event stream.
        test_clock: take the time from each shard's meta field ``test_clock`` (µs) instead of Redis.
    """

    def __init__(self, connection: Connection, *, prefix: str = "delayq", lease_ms: int = DEFAULT_LEASE_MS,
                 event_cap: int = DEFAULT_EVENT_CAP, test_clock: bool = False) -> None:  # fmt: skip
        self.connection = connection
        self.prefix = prefix
        self.lease_ms = lease_ms
        self.event_cap = event_cap
        self.scripts = Scripts(connection, test_clock=test_clock)
        self.inspector = Inspector(self)
        self._registries = (workers_key(prefix).encode(), queues_key(prefix).encode())
        self._queues: dict[str, Queue] = {}
        self._lock = threading.Lock()

    @property
    def client(self) -> Any:
        """The redis-py client, for commands that are not verbs."""
        return self.connection.client

    def queue(self, name: str, *, shards: int = 1, kind: str = "python") -> Queue:
        """The queue of this name.

        The first call of the deployment writes the layout into Redis; from then on Redis is the truth, and another
        number of shards given here is only warned about: see ``delayq_reshard``.
        """
        found = self._queues.get(name)
        if found is None:
            with self._lock:
                found = self._queues.get(name) or self._open(name, shards, kind)
                self._queues[name] = found
        return found

    def known_queue(self, name: str) -> Queue | None:
        """The queue of this name if the deployment has it; asking makes none."""
        found = self._queues.get(name)
        if found is None:
            with clear_errors():
                layout = self.client.hget(queues_key(self.prefix), name)
            if layout is not None:
                with self._lock:
                    found = self._queues.setdefault(name, self._make(name, json.loads(layout)))
        return found

    def _open(self, name: str, shards: int, kind: str) -> Queue:
        wanted = {"shards": shards, "epoch": 0, "kind": kind}
        key = queues_key(self.prefix)
        with clear_errors():
            self.client.hsetnx(key, name, json.dumps(wanted))
            layout = json.loads(self.client.hget(key, name))
        if layout["shards"] != shards:
            log.warning("queue %r has %d shards in Redis, but %d are configured; Redis decides", name,
                        layout["shards"], shards)  # fmt: skip
        return self._make(name, layout)

    def _make(self, name: str, layout: dict[str, Any]) -> Queue:
        shards = [
            make_shard(self.prefix, name, layout["epoch"], number, lease_ms=self.lease_ms, event_cap=self.event_cap,
                       cluster=self.connection.cluster)
            for number in range(layout["shards"])
        ]  # fmt: skip
        return Queue(self, name, shards, layout)

    def queue_names(self) -> list[str]:
        """Every queue that this deployment knows, by name."""
        return [queue.name for queue in self.queues()]

    def queues(self) -> list[Queue]:
        """Every queue that this deployment knows, in the order of their names."""
        with clear_errors():
            layouts = self.client.hgetall(queues_key(self.prefix))
        for name, layout in layouts.items():
            if name.decode() not in self._queues:
                with self._lock:
                    self._queues.setdefault(name.decode(), self._make(name.decode(), json.loads(layout)))
        return [self._queues[name.decode()] for name in sorted(layouts)]

    # -- workers -----------------------------------------------------------------------------------------------------

    def announce(self, name: str, info: dict[str, Any]) -> float:
        """A worker says that it lives, and what it does. Returns Redis's time, ms."""
        said = json.dumps(info, separators=(",", ":"))
        layouts = [word for queue in list(self._queues.values()) for word in (queue.name, json.dumps(queue.layout))]
        return float(self.scripts.call("announce", self._registries, name, said, *layouts))

    def forget(self, name: str) -> None:
        """Takes a worker off the registry."""
        with clear_errors():
            self.client.hdel(workers_key(self.prefix), name)

    def workers(self) -> list[dict[str, Any]]:
        """What the workers last said of themselves, with ``name`` and ``seen_ms`` (Redis time)."""
        with clear_errors():
            said = self.client.hgetall(workers_key(self.prefix))
        found = []
        for name, words in sorted(said.items()):
            seen, _, info = words.partition(b":")
            found.append({**json.loads(info), "name": name.decode(), "seen_ms": int(seen)})
        return found

    # -- server ------------------------------------------------------------------------------------------------------

    def waker(self, queues: Sequence[str]) -> Waker:
        """A blocking wait for wake-ups of these queues, on a connection of its own. Only consumers need one."""
        return make_waker(self.connection, self.prefix, queues)

    def now_ms(self) -> float:
        """Redis's time, Unix ms."""
        with clear_errors():
            answer = self.client.time()
        seconds, micros = next(iter(answer.values())) if isinstance(answer, dict) else answer
        return float(seconds * 1000 + micros / 1000)

    def server_info(self) -> dict[str, Any]:
        """What Redis says of itself (``INFO``); on a cluster, of its first node."""
        with clear_errors():
            info: dict[str, Any] = self.client.info()
        return info if "redis_version" in info else next(iter(info.values()))

    def check_server(self) -> None:
        """Refuses a server that is too old.

        Raises:
            Misconfigured: Redis is older than 6.2.
        """
        with clear_errors():
            version = server_version(self.client.info)
        if version < OLDEST_SERVER:
            raise Misconfigured(f"Redis {'.'.join(map(str, version))} is too old; django_delayq needs 6.2 or newer")
