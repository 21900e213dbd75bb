"""Three kinds of deployments (server, Sentinels, Cluster): their clients and pools, all with the same settings."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

import redis
from redis import exceptions as redis_errors
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import Sentinel

from ..thread_lock import ThreadLock
from .config import RedisConfig
from .config_values import Address
from .link import within
from .pool import BoundedPool, BoundedSentinelPool, PoolLimits
from .settings import (
    blocking_settings,
    common_settings,
    credentials_of,
    hurried_settings,
    limits_of,
    sentinel_settings,
    waiting_limits,
)


@dataclass(eq=False)
class Deployment:
    """Deployment of Redis, with the settings of its connections."""

    options: dict[str, Any]
    limits: PoolLimits
    #: address without any secret, for logs and messages
    display_url: str
    #: True for a Redis Cluster
    cluster: ClassVar[bool] = False

    def client(self) -> redis.Redis | RedisCluster:
        """Return a client for commands."""
        raise NotImplementedError

    def waiting_pool(self, socket_timeout: float | None, key: str | bytes | None) -> ConnectionPool:
        """Return a pool for blocking calls on the node of ``key``."""
        raise NotImplementedError

    def hurried(self, seconds: float) -> Self:
        """Return the same deployment for callers with a short time limit."""
        limits = replace(self.limits, patience=seconds)
        return replace(self, options=self.options | hurried_settings(seconds), limits=limits)


class Server(Deployment):
    """Single server at a fixed address."""

    @classmethod
    def of(cls, config: RedisConfig) -> Server:
        options: dict[str, Any] = {
            "db": config.db,
            **credentials_of(config),
            **common_settings(config, tcp=not config.path),
        }
        if config.path:
            options |= {"connection_class": UnixDomainSocketConnection, "path": config.path}
        else:
            options |= {"host": config.host, "port": config.port}
            if config.ssl:
                options |= {"connection_class": SSLConnection, **config.ssl_options}
        return cls(options, limits_of(config), config.display_url)

    def client(self) -> redis.Redis:
        return redis.Redis.from_pool(BoundedPool(limits=self.limits, **self.options))

    def waiting_pool(self, socket_timeout: float | None, key: str | bytes | None) -> ConnectionPool:
        options = self.options | blocking_settings(socket_timeout)
        return BoundedPool(limits=waiting_limits(self.limits), **options)


@dataclass(eq=False)
class Sentinels(Deployment):
    """Master that the Sentinels name."""

    master: str
    #: addresses of the Sentinels
    addresses: Sequence[Address]
    #: settings of the connections to the Sentinels
    own: dict[str, Any]

    @classmethod
    def of(cls, config: RedisConfig) -> Sentinels:
        ssl: dict[str, Any] = {"ssl": True, **config.ssl_options} if config.ssl else {}
        own = sentinel_settings(config) | ssl
        own |= {"username": config.sentinel_username, "password": config.sentinel_password}
        options = {"db": config.db, **credentials_of(config), **common_settings(config), **ssl}
        return cls(options, limits_of(config), config.display_url, config.sentinel_master, config.sentinels, own)

    def client(self) -> redis.Redis:
        return redis.Redis.from_pool(self._pool(self.options, self.limits))

    def waiting_pool(self, socket_timeout: float | None, key: str | bytes | None) -> ConnectionPool:
        return self._pool(self.options | blocking_settings(socket_timeout), waiting_limits(self.limits))

    def hurried(self, seconds: float) -> Self:
        own = self.own | {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        return replace(super().hurried(seconds), own=own)

    def _pool(self, options: dict[str, Any], limits: PoolLimits) -> ConnectionPool:
        return BoundedSentinelPool(self.master, bounded_sentinels(self.addresses, self.own), limits=limits, **options)


def bounded_sentinels(addresses: Iterable[Address], settings: dict[str, Any]) -> Sentinel:
    """Return the Sentinels; a query to each ends within its own time limit and within that of the calling command."""
    manager = Sentinel(list(addresses), sentinel_kwargs=settings)
    for client in manager.sentinels:
        pool = client.connection_pool
        limits = PoolLimits(patience=settings["socket_timeout"])
        options = {**pool.connection_kwargs, "connection_class": pool.connection_class}
        client.connection_pool = BoundedPool(limits=limits, **options)
    return manager


class _Cluster(RedisCluster):
    """Client of a cluster that also follows redirects to unlisted nodes.

    A node that was just added has no slots yet and is in no list; redis-py would fail on a redirect to it (ASK).
    """

    _newcomers: dict[str, ClusterNode]
    #: time limit of a command in seconds, however many nodes it needs
    patience: float = math.inf

    def execute_command(self, *args: Any, **options: Any) -> Any:
        with within(time.monotonic() + self.patience):
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def get_node(self, host: Any = None, port: Any = None, node_name: Any = None) -> Any:
        node = super().get_node(host, port, node_name)  # type: ignore[no-untyped-call]
        if node is None and node_name:
            address, _, number = node_name.rpartition(":")
            newcomers = self.__dict__.setdefault("_newcomers", {})
            node = newcomers.setdefault(node_name, ClusterNode(address, int(number)))
        return node

    def known_nodes(self) -> list[ClusterNode]:
        """Return the nodes of the list, and those that redirects named."""
        return [*self.get_nodes(), *self.__dict__.get("_newcomers", {}).values()]  # type: ignore[no-untyped-call]


@dataclass(eq=False)
class Cluster(Deployment):
    """Redis Cluster."""

    nodes: tuple[Address, ...]
    _client: RedisCluster | None = field(default=None, init=False)
    _turns: Iterator[int] = field(default_factory=lambda: itertools.count(random.getrandbits(16)), init=False)
    _lock: ThreadLock = field(default_factory=ThreadLock, init=False)
    cluster: ClassVar[bool] = True

    @classmethod
    def of(cls, config: RedisConfig) -> Cluster:
        ssl: dict[str, Any] = {"ssl": True, **config.ssl_options} if config.ssl else {}
        options = {**credentials_of(config), **common_settings(config), **ssl}
        return cls(options, limits_of(config), config.display_url, config.cluster_nodes)

    def client(self) -> RedisCluster:
        with self._lock:
            if self._client is None:
                self._client = self._create_client()
            return self._client

    def _create_client(self) -> RedisCluster:
        (host, port), *others = self.nodes
        options = {name: value for name, value in _pool_options(self.options).items() if name != "retry_on_error"}
        try:
            with within(time.monotonic() + self.limits.patience):
                # One silent node must not stop the queues of the others.
                client = _Cluster(
                    # redis-py accepts another class of pools only together with a URL.
                    url=f"redis://[{host}]:{port}" if ":" in host else f"redis://{host}:{port}",
                    startup_nodes=[ClusterNode(host, port) for host, port in others],
                    require_full_coverage=False,
                    connection_pool_class=partial(BoundedPool, limits=self.limits),
                    **options,
                )
        except IndexError as error:  # raised by redis-py for a cluster that has no slots yet
            raise redis_errors.ClusterDownError("CLUSTERDOWN no slot is served by any node") from error
        client.patience = self.limits.patience
        return client

    def waiting_pool(self, socket_timeout: float | None, key: str | bytes | None) -> ConnectionPool:
        client = self.client()
        nodes: list[Any] = [client.get_node_from_key(key)] if key is not None else client.get_primaries()
        # In turn, so that a caller whose node fell silent gets another one.
        node = nodes[next(self._turns) % len(nodes)] if nodes else None
        if node is None:
            raise redis_errors.ClusterDownError("CLUSTERDOWN no master is known")
        options = self.options | blocking_settings(socket_timeout) | {"host": node.host, "port": node.port}
        return BoundedPool(limits=waiting_limits(self.limits), **_pool_options(options))


def _pool_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a client as those of a pool."""
    options_of_pool = dict(options)
    if options_of_pool.pop("ssl", False):
        options_of_pool["connection_class"] = SSLConnection
    return options_of_pool


def deployment_of(config: RedisConfig) -> Deployment:
    """Return the deployment of a configuration."""
    if config.sentinels:
        return Sentinels.of(config)
    if config.cluster_nodes:
        return Cluster.of(config)
    return Server.of(config)
