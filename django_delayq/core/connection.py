"""The way to Redis, as the core sees it: one client for commands, and clients of their own for those who wait."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from typing import Any
from weakref import WeakSet

import redis
from redis import exceptions as redis_errors
from redis.cluster import RedisCluster
from redis.connection import ConnectionPool

from . import probe
from .redis_config import RedisConfig
from .redis_sources import Source, source_of, source_of_client

__all__ = ["Connection", "RedisConfig", "connect"]


class Connection:
    """A deployment of Redis, as the core sees it. Thread-safe; nothing connects before the first command.

    After a fork the child makes connections of its own (redis-py compares the process id).
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._waiting: WeakSet[ConnectionPool] = WeakSet()
        self._lines: list[Any] = []
        self._pid = os.getpid()
        #: whether it is a Redis Cluster
        self.cluster = source.cluster
        #: the address without any secret, for logs and messages
        self.display_url = source.display_url
        if not source.cluster:
            # Made here and not by the first of many threads. A cluster's client asks for the slots when it is made,
            # so that one waits for the first use.
            _ = self.client

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

    def take_line(self) -> Any:
        """One connection of the client's pool for packed commands, to be given back with :meth:`put_line_back`.

        They come from the pool but do not return there: handing one in and out of redis-py's pool takes longer than
        packing and parsing a call. There are as many as threads that ever called at the same moment.
        """
        if self._pid != os.getpid():  # a forked child must not speak on its parent's lines
            self._pid, self._lines = os.getpid(), []
        try:
            return self._lines.pop()
        except IndexError:
            client: Any = self.client
            return client.connection_pool.get_connection()

    def put_line_back(self, line: Any, *, clean: bool) -> None:
        """Gives a line back; one that may still have half a reply on it (not ``clean``) is closed first."""
        if not clean:
            line.disconnect()
        self._lines.append(line)

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
        lines, self._lines = self._lines, []
        for line in lines:
            self.client.connection_pool.release(line)  # type: ignore[union-attr]  # a cluster has no lines
        client = self.__dict__.get("client")
        if client is not None:
            # It is being given up; an error of a dead peer is no news.
            with suppress(redis_errors.RedisError, OSError):
                client.close()


def connect(config: RedisConfig) -> Connection:
    """The connection to what ``config`` names. It connects with the first command, not here."""
    return Connection(source_of(config))
