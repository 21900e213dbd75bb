"""Sources of connections for the three kinds of deployment (server, Sentinels, Cluster), all with the same settings.

redis-py's defaults differ between its versions, between ``Redis()`` and ``from_url()``, and some of them are harmful to
a queue (ten silent retries, no time limit at all). Therefore every setting is given here, for every kind.
"""

from __future__ import annotations

import math
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

import redis
from redis import exceptions as redis_errors
from redis.backoff import AbstractBackoff, NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from ..errors import Misconfigured
from .config import LONGEST_PAUSE, Address, RedisConfig, logger
from .link import within
from .pool import BoundedPool, BoundedSentinelPool, Limits

try:
    from redis.backoff import ExponentialWithJitterBackoff
except ImportError:  # redis-py before 5.3
    from redis.backoff import EqualJitterBackoff as ExponentialWithJitterBackoff  # type: ignore[assignment]

# Errors after which the same command is sent again. READONLY is among them, because it ends with a new connection,
# which finds the new master; the script was not run. Every script recognises a repeated command.
_RETRIED: Final = (redis_errors.ConnectionError, redis_errors.TimeoutError, redis_errors.ReadOnlyError)


def _keepalive_options() -> dict[int, int]:
    """Return options by which TCP detects a silently lost peer after 45 s, also in a read without a time limit."""
    wanted = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
    return {getattr(socket, name): value for name, value in wanted.items() if hasattr(socket, name)}


def _settings(config: RedisConfig, *, tcp: bool = True) -> dict[str, Any]:
    """Return the arguments common to all connections."""
    backoff: AbstractBackoff = ExponentialWithJitterBackoff(base=0.02, cap=LONGEST_PAUSE)
    settings: dict[str, Any] = {
        "socket_timeout": config.socket_timeout,
        "socket_connect_timeout": config.connect_timeout,
        "retry": Retry(backoff, config.retries, supported_errors=_RETRIED),
        "retry_on_error": list(_RETRIED),  # redis-py before 6 checks this list, too
        "health_check_interval": 0,  # an extra step in each call; the command itself detects the same problems
        "protocol": 2,
        "decode_responses": False,
        "encoding": "utf-8",
    }
    if tcp:
        settings |= {"socket_keepalive": True, "socket_keepalive_options": _keepalive_options()}
    return settings


def _blocking_settings(socket_timeout: float | None) -> dict[str, Any]:
    """Return the differing settings of a blocking connection: its own time limit, and no retries."""
    return {
        "socket_timeout": socket_timeout,
        "retry": Retry(NoBackoff(), 0, supported_errors=_RETRIED),
        "retry_on_error": [],
        "health_check_interval": 0,
    }


def _hurried_settings(seconds: float) -> dict[str, Any]:
    """Return the differing settings for callers with a short time limit: a lost connection is replaced once."""
    lost = (redis_errors.ConnectionError, redis_errors.ReadOnlyError)
    return {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "retry": Retry(NoBackoff(), 1, supported_errors=lost),
        "retry_on_error": list(lost),
        "health_check_interval": 0,
    }


def _limits(config: RedisConfig) -> Limits:
    return Limits(config.max_connections, config.patience, config.max_connection_age)


def _waiting_limits(limits: Limits) -> Limits:
    """Return the limits for a client that blocks without a deadline, on connections that its holder replaces."""
    return replace(limits, patience=math.inf, max_age=None)


def _identity(config: RedisConfig) -> dict[str, Any]:
    return {"username": config.username, "password": config.password}


# --- the three kinds of deployment


class Source(Protocol):
    cluster: bool
    options: dict[str, Any]
    limits: Limits
    display_url: str

    def client(self) -> redis.Redis | RedisCluster: ...

    def waiting_pool(self, socket_timeout: float | None, key: str | bytes | None) -> ConnectionPool: ...

    def hurried(self, seconds: float) -> Source: ...


class Server:
    """Single server at a fixed address."""

    cluster = False

    def __init__(self, options: dict[str, Any], limits: Limits, display_url: str) -> None:
        self.options = options
        self.limits = limits
        self.display_url = display_url

    @classmethod
    def of(cls, config: RedisConfig) -> Server:
        options: dict[str, Any] = {"db": config.db, **_identity(config), **_settings(config, tcp=not config.path)}
        if config.path:
            options |= {"connection_class": UnixDomainSocketConnection, "path": config.path}
        else:
            options |= {"host": config.host, "port": config.port}
            if config.ssl:
                options |= {"connection_class": SSLConnection, **config.ssl_options}
        return cls(options, _limits(config), config.display_url)

    def client(self) -> redis.Redis:
        return redis.Redis.from_pool(BoundedPool(limits=self.limits, **self.options))

    def waiting_pool(self, socket_timeout: float | None, key: str | bytes | None) -> ConnectionPool:
        options = self.options | _blocking_settings(socket_timeout)
        return BoundedPool(limits=_waiting_limits(self.limits), **options)

    def hurried(self, seconds: float) -> Server:
        limits = replace(self.limits, patience=seconds)
        return Server(self.options | _hurried_settings(seconds), limits, self.display_url)


class Sentinels:
    """Master that the Sentinels name."""

    cluster = False

    def __init__(
        self,
        master: str,
        sentinels: Callable[..., Sentinel],
        options: dict[str, Any],
        limits: Limits,
        display_url: str,
    ) -> None:
        self.master = master
        self.sentinels = sentinels
        self.options = options
        self.limits = limits
        self.display_url = display_url

    @classmethod
    def of(cls, config: RedisConfig) -> Sentinels:
        ssl: dict[str, Any] = {"ssl": True, **config.ssl_options} if config.ssl else {}
        own = _sentinel_settings(config) | ssl
        own |= {"username": config.sentinel_username, "password": config.sentinel_password}
        options = {"db": config.db, **_identity(config), **_settings(config), **ssl}

        sentinels = partial(_bounded_sentinels, config.sentinels, own)
        return cls(config.sentinel_master, sentinels, options, _limits(config), config.display_url)

    def client(self) -> redis.Redis:
        return redis.Redis.from_pool(self._pool(self.options, self.limits))

    def waiting_pool(self, socket_timeout: float | None, key: str | bytes | None) -> ConnectionPool:
        return self._pool(self.options | _blocking_settings(socket_timeout), _waiting_limits(self.limits))

    def hurried(self, seconds: float) -> Sentinels:
        sentinels = partial(self.sentinels, socket_timeout=seconds, socket_connect_timeout=seconds)
        limits = replace(self.limits, patience=seconds)
        return Sentinels(self.master, sentinels, self.options | _hurried_settings(seconds), limits, self.display_url)

    def _pool(self, options: dict[str, Any], limits: Limits) -> ConnectionPool:
        return BoundedSentinelPool(self.master, self.sentinels(), limits=limits, **options)


def _bounded_sentinels(addresses: Iterable[Address], own: dict[str, Any], **changes: Any) -> Sentinel:
    """Return the Sentinels. A query to each ends within its own time limit and within that of the calling command."""
    settings = own | changes
    made = Sentinel(list(addresses), sentinel_kwargs=settings)
    for client in made.sentinels:
        theirs = client.connection_pool
        limits = Limits(patience=settings["socket_timeout"])
        options = {**theirs.connection_kwargs, "connection_class": theirs.connection_class}
        client.connection_pool = BoundedPool(limits=limits, **options)
    return made


def _sentinel_settings(config: RedisConfig) -> dict[str, Any]:
    """Return the settings for the Sentinels themselves: no retries, because the next Sentinel is the retry."""
    return _settings(config) | {
        "socket_timeout": config.connect_timeout,
        "retry": Retry(NoBackoff(), 0, supported_errors=_RETRIED),
        "retry_on_error": [],
    }


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
        found = super().get_node(host, port, node_name)  # type: ignore[no-untyped-call]
        if found is None and node_name:
            address, _, number = node_name.rpartition(":")
            known = self.__dict__.setdefault("_newcomers", {})
            found = known.setdefault(node_name, ClusterNode(address, int(number)))
        return found

    def close(self) -> None:
        for node in self.__dict__.pop("_newcomers", {}).values():
            if node.redis_connection is not None:
                node.redis_connection.close()
        super().close()


class Cluster:
    """Redis Cluster."""

    cluster = True

    def __init__(self, nodes: tuple[Address, ...], options: dict[str, Any], limits: Limits, display_url: str) -> None:
        self.nodes = nodes
        self.options = options
        self.limits = limits
        self.display_url = display_url
        self._client: RedisCluster | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, config: RedisConfig) -> Cluster:
        ssl: dict[str, Any] = {"ssl": True, **config.ssl_options} if config.ssl else {}
        options = {**_identity(config), **_settings(config), **ssl}
        return cls(config.cluster_nodes, options, _limits(config), config.display_url)

    def client(self) -> RedisCluster:
        with self._lock:
            if self._client is None:
                self._client = self._make()
            return self._client

    def _make(self) -> RedisCluster:
        (host, port), *others = self.nodes
        options = {name: value for name, value in _of_pool(self.options).items() if name != "retry_on_error"}
        try:
            with within(time.monotonic() + self.limits.patience):
                # One silent node must not stop the queues of the others.
                made = _Cluster(
                    # redis-py accepts another class of pools only together with a URL.
                    url=f"redis://[{host}]:{port}" if ":" in host else f"redis://{host}:{port}",
                    startup_nodes=[ClusterNode(host, port) for host, port in others],
                    require_full_coverage=False,
                    connection_pool_class=partial(BoundedPool, limits=self.limits),
                    **options,
                )
        except IndexError as error:  # raised by redis-py for a cluster that has no slots yet
            raise redis_errors.ClusterDownError("CLUSTERDOWN no slot is served by any node") from error
        made.patience = self.limits.patience
        return made

    def waiting_pool(self, socket_timeout: float | None, key: str | bytes | None) -> ConnectionPool:
        client = self.client()
        nodes: list[Any] = [client.get_node_from_key(key)] if key is not None else client.get_primaries()
        node = random.choice(nodes) if nodes else None
        if node is None:
            raise redis_errors.ClusterDownError("CLUSTERDOWN no master is known")
        options = self.options | _blocking_settings(socket_timeout) | {"host": node.host, "port": node.port}
        return BoundedPool(limits=_waiting_limits(self.limits), **_of_pool(options))

    def hurried(self, seconds: float) -> Cluster:
        limits = replace(self.limits, patience=seconds)
        return Cluster(self.nodes, self.options | _hurried_settings(seconds), limits, self.display_url)


def _of_pool(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a client as those of a pool."""
    found = dict(options)
    if found.pop("ssl", False):
        found["connection_class"] = SSLConnection
    return found


def source_of(config: RedisConfig) -> Source:
    """Return the deployment that ``config`` names."""
    if config.sentinels:
        return Sentinels.of(config)
    if config.cluster_nodes:
        return Cluster.of(config)
    return Server.of(config)


# --- sources from an existing client

# Options that identify the server; everything else of a foreign client is replaced by our settings.
_TAKEN_OVER: Final = ("host", "port", "path", "db", "username", "password", "credential_provider")


def source_of_client(client: Any) -> Source:
    """Return the deployment of a redis-py client (django-redis's, for instance), with our settings.

    Raises:
        Misconfigured: it is not a synchronous redis-py client, or connects to replicas.
    """
    if isinstance(client, RedisCluster):
        return _cluster_of_client(client)
    pool = getattr(client, "connection_pool", None)
    if not isinstance(client, redis.Redis) or not isinstance(pool, ConnectionPool):
        raise Misconfigured(
            f"{type(client).__module__}.{type(client).__qualname__} is no synchronous redis-py client; "
            f"use a URL, or a django-redis cache with the default client class"
        )
    given = pool.connection_kwargs
    options, config = _taken_over(given, tcp="path" not in given)
    if isinstance(pool, SentinelConnectionPool):
        return _sentinels_of_pool(pool, options, config)
    options["connection_class"] = pool.connection_class
    where = given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}"
    scheme = "unix" if "path" in given else "rediss" if issubclass(pool.connection_class, SSLConnection) else "redis"
    return Server(options, _limits(config), f"{scheme}://{_who(given)}{where}?db={given.get('db') or 0}")


def _taken_over(given: dict[str, Any], *, tcp: bool = True) -> tuple[dict[str, Any], RedisConfig]:
    if given.get("decode_responses"):
        logger.warning(
            "the Redis client that django_delayq was given decodes responses; the queue needs bytes and makes "
            "connections of its own"
        )
    config = RedisConfig()
    options = {name: value for name, value in given.items() if name in _TAKEN_OVER or name.startswith("ssl")}
    return {**options, **_settings(config, tcp=tcp)}, config


def _sentinels_of_pool(pool: SentinelConnectionPool, options: dict[str, Any], config: RedisConfig) -> Sentinels:
    if not pool.is_master:
        raise Misconfigured("the Redis client leads to replicas; a queue needs the master: is_master must be True")
    theirs = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    addresses = [(str(kwargs["host"]), int(kwargs["port"])) for kwargs in theirs]
    own = {**pool.sentinel_manager.sentinel_kwargs, **_sentinel_settings(config)}
    options["connection_class"] = pool.connection_class
    for name in ("host", "port"):
        options.pop(name, None)

    sentinels = partial(_bounded_sentinels, addresses, own)
    where = ",".join(f"{host}:{port}" for host, port in addresses)
    shown = f"sentinel://{_who(options)}{where}/{pool.service_name}"
    return Sentinels(pool.service_name, sentinels, options, _limits(config), shown)


def _cluster_of_client(client: RedisCluster) -> Cluster:
    options, config = _taken_over(client.nodes_manager.connection_kwargs)
    for name in ("host", "port", "db"):
        options.pop(name, None)
    nodes = tuple((str(node.host), int(node.port)) for node in client.get_nodes())
    shown = f"cluster://{_who(options)}{','.join(f'{host}:{port}' for host, port in nodes)}"
    return Cluster(nodes, options, _limits(config), shown)


def _who(options: dict[str, Any]) -> str:
    return "***@" if options.get("username") or options.get("password") or options.get("credential_provider") else ""
