"""The way to Redis, as the core sees it: one client for commands, and clients of their own for those who wait."""

from __future__ import annotations

import math
import os
import random
import threading
import time
from contextlib import suppress
from functools import cached_property
from typing import Any, Final
from weakref import WeakSet

import redis
from redis import exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import ConnectionPool
from redis.retry import Retry

from . import probe
from .redis_config import RedisConfig
from .redis_sources import Source, source_of, source_of_client

__all__ = ["Connection", "Lines", "RedisConfig", "connect"]

#: tries once
_NEVER: Final = Retry(NoBackoff(), 0)
#: a slot that is on its way to another node of a cluster is waited for so long (seconds)
MOVING: Final = 10.0


class Lines:
    """Connections of one pool for packed commands.

    They come from the pool but do not return there: handing one in and out of redis-py's pool takes longer than packing
    and parsing a call. There are as many as threads that ever called at the same moment.

    A line tries nothing again by itself. redis-py would do so at every level, each attempt of a call having its own
    attempts to connect, and each of those to shake hands: that a server stands still one would hear after minutes.
    """

    __slots__ = ("_ends", "_idle", "_max_age", "_pid", "policy", "pool")

    def __init__(self, pool: ConnectionPool, max_age: float | None = None) -> None:
        self.pool = pool
        self._max_age = max_age
        self._ends: dict[Any, float] = {}
        self._idle: list[Any] = []
        self._pid = os.getpid()
        #: how often, and with which pauses, a call is tried again
        self.policy: Retry = pool.connection_kwargs.get("retry") or _NEVER

    def take(self) -> Any:
        """A connection, to be given back with :meth:`put_back`."""
        if self._pid != os.getpid():  # a forked child must not speak on its parent's lines
            self._pid, self._idle, self._ends = os.getpid(), [], {}
        try:
            line = self._idle.pop()
        except IndexError:
            pool: Any = self.pool
            line = pool.get_connection()
            line.retry = _NEVER
        if self._max_age is not None:
            self._renew_if_old(line)
        return line

    def _renew_if_old(self, line: Any) -> None:
        end = self._ends.get(line)
        if end is None:
            self._ends[line] = end_of(self._max_age)
        elif time.monotonic() >= end:
            line.disconnect()  # who took it connects again before sending
            self.pool.disconnect(inuse_connections=False)  # those that wait for other commands are of its age
            self._ends[line] = end_of(self._max_age)

    def put_back(self, line: Any, *, clean: bool) -> None:
        """Gives a line back; one that may still have half a reply on it (not ``clean``) is closed first."""
        if not clean:
            line.disconnect()
        self._idle.append(line)

    def close(self) -> None:
        """Gives all of them back to the pool."""
        idle, self._idle, self._ends = self._idle, [], {}
        for line in idle:
            line.retry = self.policy
            self.pool.release(line)


def end_of(max_age: float | None) -> float:
    """When (``time.monotonic()``) a connection that is made now is to be made anew: not all of them at one moment."""
    return math.inf if max_age is None else time.monotonic() + max_age * random.uniform(0.8, 1.0)


class Connection:
    """A deployment of Redis, as the core sees it. Thread-safe; nothing connects before the first command.

    After a fork the child makes connections of its own (redis-py compares the process id).

    Args:
        source: where it is.
        max_age: seconds after which a connection is made anew, so that a name that means another address by now, or a
            balancer with a new node, is followed without an error; None = never.
        patience: seconds after which an answer is not waited for any longer, nor asked for again; None = as the source
            says, with re-sends.
    """

    def __init__(self, source: Source, *, max_age: float | None = None, patience: float | None = None) -> None:
        self._source = source
        self.max_age = max_age
        self.patience = patience
        self._waiting: WeakSet[ConnectionPool] = WeakSet()
        self._lines: dict[str, Lines] = {}
        self._lock = threading.Lock()
        #: whether it is a Redis Cluster
        self.cluster = source.cluster
        #: the address without any secret, for logs and messages
        self.display_url = source.display_url
        if not source.cluster:
            # Made here and not by the first of many threads. A cluster's client asks for the slots when it is made,
            # so that one waits for the first use.
            self._lines[""] = Lines(self.client.connection_pool, max_age)  # type: ignore[union-attr]

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
        """Another connection to the same place, for callers who rather go without an answer than wait.

        Args:
            seconds: for how long one step (connecting, one answer) may take. A line that was lost is made anew once.
        """
        return Connection(self._source.hurried(seconds), max_age=self.max_age, patience=seconds)

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

    def lines(self, key: bytes) -> Lines:
        """Connections to the server; on a cluster to the node that holds ``key``, as far as is known here.

        Raises:
            SlotNotCoveredError: no node is known that holds it.
        """
        if not self.cluster:
            return self._lines[""]
        client: Any = self.client
        node = client.get_node_from_key(key)
        pool = client.get_redis_connection(node).connection_pool
        found = self._lines.get(node.name)
        if found is None or found.pool is not pool:
            with self._lock:
                found = self._lines.get(node.name)
                if found is None or found.pool is not pool:
                    found = self._lines[node.name] = Lines(pool, self.max_age)
        return found

    def run(self, source: str, keys: tuple[bytes, ...], *args: Any) -> Any:
        """Runs a script by its source, wherever its keys are now.

        While a slot moves from one node of a cluster to another some of the keys lie here and some there, or nowhere
        yet: Redis refuses a script (TRYAGAIN) until the move is over. That is waited for, up to ten seconds.
        """
        until = time.monotonic() + MOVING
        while True:
            try:
                return self.client.eval(source, len(keys), *keys, *args)
            except (redis_errors.ClusterError, redis_errors.TryAgainError) as error:
                # A cluster that is down says so itself, and for longer than that.
                if isinstance(error, redis_errors.ClusterDownError) or time.monotonic() > until:
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
        for lines in list(self._lines.values()):
            lines.close()
        client = self.__dict__.get("client")
        if client is not None:
            # It is being given up; an error of a dead peer is no news.
            with suppress(redis_errors.RedisError, OSError):
                client.close()


def connect(config: RedisConfig) -> Connection:
    """The connection to what ``config`` names. It connects with the first command, not here."""
    return Connection(source_of(config), max_age=config.max_connection_age)
