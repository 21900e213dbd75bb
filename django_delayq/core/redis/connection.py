"""The way to Redis, as the core sees it: one client for commands, and clients of their own for those who wait."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, cast
from weakref import WeakSet

import redis
from redis import exceptions as redis_errors
from redis.cluster import RedisCluster
from redis.connection import ConnectionPool

from . import probe
from .config import RedisConfig
from .link import within
from .pool import BoundedPool
from .sources import Source, source_of, source_of_client

__all__ = ["Connection", "RedisConfig", "connect"]

#: a slot that is on its way to another node of a cluster is waited for so long (seconds)
MOVING: Final = 10.0


class Connection:
    """A deployment of Redis, as the core sees it. Thread-safe; nothing connects before the first command.

    After a fork the child makes connections of its own (redis-py compares the process id).

    Args:
        source: where it is.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        #: seconds after which a connection is made anew, so that a name that means another address by now, or a
        #: balancer with a new node, is followed without an error; None = never
        self.max_age = source.limits.max_age
        #: seconds in which a call ends, with waiting for a connection, connecting and every retry
        self.patience = source.limits.patience
        self._waiting: WeakSet[ConnectionPool] = WeakSet()
        #: whether it is a Redis Cluster
        self.cluster = source.cluster
        #: the address without any secret, for logs and messages
        self.display_url = source.display_url
        if not source.cluster:
            # Made here and not by the first of many threads. A cluster's client asks for the slots when it is made,
            # so that one waits for the first use.
            self._pool = cast(redis.Redis, self.client).connection_pool

    @cached_property
    def client(self) -> redis.Redis | RedisCluster:
        """The client for commands; all threads share it."""
        return self._source.client()

    def __repr__(self) -> str:
        return f"<Connection {self.display_url}>"

    @classmethod
    def wrap(cls, client: Any) -> Connection:
        """A connection to where ``client`` (django-redis's, or any redis-py client) leads, with our own settings.

        Its address, user, password and TLS settings are taken over; its pool and everything else are not used.

        Raises:
            Misconfigured: it is no synchronous redis-py client, or reads from replicas.
        """
        return cls(source_of_client(client))

    def hurried(self, seconds: float) -> Connection:
        """Return another connection to the same place, for callers who rather go without an answer than wait.

        Args:
            seconds: for how long a call may take. A connection that was lost is made anew once within that time.
        """
        return Connection(self._source.hurried(seconds))

    def blocking(self, wait: float | None = None, *, key: str | bytes | None = None) -> redis.Redis:
        """A client of its own for BLPOP or pub/sub; never share it between threads, close it after use.

        Its reads have no time limit, and nothing is sent twice. A peer that vanishes is noticed by TCP keepalive.

        Args:
            wait: the longest wait in seconds that will be asked for; reads then end 5 s after it.
            key: on a cluster, the client talks to the node that holds this key (default: any master).
        """
        pool = self._source.waiting_pool(None if wait is None else wait + 5.0, key)
        self._waiting.add(pool)
        # Not from_pool(): `blocking().pubsub()` must not lose its pool when the client is collected.
        return redis.Redis(connection_pool=pool)

    def pool(self, key: bytes) -> BoundedPool:
        """Return the pool of the server; on a cluster, of the node that holds ``key``, as far as is known here.

        Raises:
            SlotNotCoveredError: no node is known that holds it.
        """
        if not self.cluster:
            return cast(BoundedPool, self._pool)
        client: Any = self.client
        return cast(BoundedPool, client.get_redis_connection(client.get_node_from_key(key)).connection_pool)

    def exchange(self, key: bytes, packed: bytes, until: float) -> Any:
        """Return the reply to a packed command, with retries (on a cluster without). It ends at ``until``."""
        pool = self.pool(key)
        link = pool.take(until)
        try:
            return link.exchange(packed)
        finally:
            pool.release(link)

    def run(self, source: str, keys: tuple[bytes, ...], *args: Any, until: float | None = None) -> Any:
        """Run a script by its source, wherever its keys are now, before ``until`` (monotonic; None = in our patience).

        While a slot moves from one node of a cluster to another some of the keys lie here and some there, or nowhere
        yet: Redis refuses a script (TRYAGAIN) until the move is over. That is waited for, up to ten seconds.
        """
        until = time.monotonic() + self.patience if until is None else until
        moved_by = min(until, time.monotonic() + MOVING)
        while True:
            try:
                with within(until):
                    return self.client.eval(source, len(keys), *keys, *args)
            except (redis_errors.ClusterError, redis_errors.TryAgainError) as error:
                # A cluster that is down says so itself, and for longer than that.
                if isinstance(error, redis_errors.ClusterDownError) or time.monotonic() > moved_by:
                    raise
            time.sleep(random.uniform(0.005, 0.05))

    def check(self) -> dict[str, Any]:
        """Asks the server whether a queue can live there; returns its ``INFO``.

        Raises:
            Misconfigured: a person has to change something (password, scheme, version, kind of deployment).
            QueueUnavailable: it cannot be reached or does not serve now.
        """
        # Without re-sends: whoever asks wants to know now.
        timeout = self._source.options["socket_timeout"]
        return probe.check(lambda: self._source.waiting_pool(timeout, None), self.display_url, cluster=self.cluster)

    def reconnect(self) -> None:
        """Drops idle connections, so that the next command looks the address up again."""
        client = self.__dict__.get("client")
        if isinstance(client, redis.Redis):
            client.connection_pool.disconnect(inuse_connections=False)
        elif isinstance(client, RedisCluster):
            for node in client.get_nodes():
                if node.redis_connection is not None:
                    node.redis_connection.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Closes all its connections, also those of blocking clients. The next command opens new ones."""
        for pool in list(self._waiting):
            pool.disconnect()
        client = self.__dict__.get("client")
        if client is not None:
            # It is being given up; an error of a dead peer is no news.
            with suppress(redis_errors.RedisError, OSError):
                client.close()


def connect(config: RedisConfig) -> Connection:
    """Return the connection to what ``config`` names. It connects with the first command, not here."""
    return Connection(source_of(config))
