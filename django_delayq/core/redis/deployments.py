"""Three kinds of deployments (server, Sentinels, Cluster): their clients and pools, all with the same settings.

redis-py's defaults differ between its versions, between ``Redis()`` and ``from_url()``, and some of them are harmful to
a queue (ten silent retries, no time limit at all). Therefore every setting is given here, for every kind.
"""

from __future__ import annotations

import itertools
import math
import random
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, Self, cast

import redis
from redis import exceptions as redis_errors
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from ..errors import Misconfigured
from ..thread_lock import ThreadLock
from .config import LONGEST_PAUSE, Address, RedisConfig, logger
from .link import within
from .pool import BoundedPool, BoundedSentinelPool, PoolLimits

# Errors after which the same command is sent again. READONLY is among them, because it ends with a new connection,
# which finds the new master; the script was not run. Every script recognises a repeated command.
_RETRIED: Final = (redis_errors.ConnectionError, redis_errors.TimeoutError, redis_errors.ReadOnlyError)
#: options by which TCP detects a silently lost peer after 45 s, also in a read without a time limit
_KEEPALIVE: Final = {
    getattr(socket, name): value
    for name, value in {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}.items()
    if hasattr(socket, name)
}


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
        """Return a pool for blocking calls on the node of ``key``: without retries, a deadline and an age."""
        options = self.options | {"socket_timeout": socket_timeout, **_no_retries()}
        return self._waiting_pool(options, replace(self.limits, patience=math.inf, max_age=None), key)

    def _waiting_pool(self, options: dict[str, Any], limits: PoolLimits, key: str | bytes | None) -> ConnectionPool:
        raise NotImplementedError

    def hurried(self, seconds: float) -> Self:
        """Return the same deployment for callers with a short time limit: a lost connection is replaced once."""
        lost = (redis_errors.ConnectionError, redis_errors.ReadOnlyError)
        options = self.options | {
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            "retry": Retry(NoBackoff(), 1, supported_errors=lost),
            "retry_on_error": list(lost),
        }
        return replace(self, options=options, limits=replace(self.limits, patience=seconds))


class Server(Deployment):
    """Single server at a fixed address."""

    def client(self) -> redis.Redis:
        return redis.Redis.from_pool(BoundedPool(limits=self.limits, **_pool_options(self.options)))

    def _waiting_pool(self, options: dict[str, Any], limits: PoolLimits, key: str | bytes | None) -> ConnectionPool:
        return BoundedPool(limits=limits, **_pool_options(options))


@dataclass(eq=False)
class Sentinels(Deployment):
    """Master that the Sentinels name."""

    master: str
    #: addresses of the Sentinels
    addresses: Sequence[Address]
    #: settings of the connections to the Sentinels: no retries, because the next Sentinel is the retry
    own: dict[str, Any]

    def client(self) -> redis.Redis:
        return redis.Redis.from_pool(self._waiting_pool(self.options, self.limits, None))

    def _waiting_pool(self, options: dict[str, Any], limits: PoolLimits, key: str | bytes | None) -> ConnectionPool:
        return BoundedSentinelPool(self.master, bounded_sentinels(self.addresses, self.own), limits=limits, **options)

    def hurried(self, seconds: float) -> Self:
        own = self.own | {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        return replace(super().hurried(seconds), own=own)


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

    def _waiting_pool(self, options: dict[str, Any], limits: PoolLimits, key: str | bytes | None) -> ConnectionPool:
        client = self.client()
        nodes: list[Any] = [client.get_node_from_key(key)] if key is not None else client.get_primaries()
        # In turn, so that a caller whose node fell silent gets another one.
        node = nodes[next(self._turns) % len(nodes)] if nodes else None
        if node is None:
            raise redis_errors.ClusterDownError("CLUSTERDOWN no master is known")
        return BoundedPool(limits=limits, **_pool_options(options | {"host": node.host, "port": node.port}))


def _pool_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a client as those of a pool."""
    if options.get("ssl"):
        options = {"connection_class": SSLConnection} | options
    return {name: value for name, value in options.items() if name != "ssl"}


def _no_retries() -> dict[str, Any]:
    return {"retry": Retry(NoBackoff(), 0, supported_errors=_RETRIED), "retry_on_error": []}


# --- making one


def deployment_of(config: RedisConfig) -> Deployment:
    """Return the deployment of a configuration."""
    common = PoolLimits(config.max_connections, config.patience, config.max_connection_age), config.display_url
    backoff = ExponentialWithJitterBackoff(base=0.02, cap=LONGEST_PAUSE)
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
    if not config.path:
        settings |= {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
        settings |= {"ssl": True, **config.ssl_options} if config.ssl else {}
    options = {**settings, "username": config.username, "password": config.password}
    if config.cluster_nodes:
        return Cluster(options, *common, config.cluster_nodes)
    options["db"] = config.db
    if config.sentinels:
        login = {"username": config.sentinel_username, "password": config.sentinel_password}
        own = {**settings, **_no_retries(), **login, "socket_timeout": config.connect_timeout}
        return Sentinels(options, *common, config.sentinel_master, config.sentinels, own)
    if config.path:
        return Server({**options, "connection_class": UnixDomainSocketConnection, "path": config.path}, *common)
    return Server({**options, "host": config.host, "port": config.port}, *common)


def deployment_of_client(client: Any) -> Deployment:
    """Return the deployment of a redis-py client (django-redis's, for instance), with our settings.

    What identifies the server is adopted, everything else of a foreign client is replaced by our settings.

    Raises:
        Misconfigured: it is not a synchronous redis-py client, or connects to replicas.
    """
    if isinstance(client, RedisCluster):
        nodes = tuple((str(node.host), int(node.port)) for node in client.get_nodes())
        return _adopted(client.nodes_manager.connection_kwargs, {"cluster_nodes": nodes, "db": 0})
    pool = getattr(client, "connection_pool", None)
    if not isinstance(client, redis.Redis) or not isinstance(pool, ConnectionPool):
        raise Misconfigured(
            f"{type(client).__module__}.{type(client).__qualname__} is no synchronous redis-py client; "
            "use a URL, or a django-redis cache with the default client class"
        )
    settings = {**pool.connection_kwargs, "connection_class": pool.connection_class}
    if not isinstance(pool, SentinelConnectionPool):
        return _adopted(settings, {name: settings[name] for name in ("host", "port", "path") if settings.get(name)})
    if not pool.is_master:
        raise Misconfigured("the Redis client connects to replicas; a queue needs the master: set is_master=True")
    of_sentinels = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    addresses = tuple((str(one["host"]), int(one["port"])) for one in of_sentinels)
    place = {"sentinels": addresses, "sentinel_master": pool.service_name}
    deployment = cast(Sentinels, _adopted(settings, place))
    adopted = ("username", "password", *(name for name in deployment.own if name.startswith("ssl")))
    ours = {name: value for name, value in deployment.own.items() if name not in adopted}
    deployment.own = {**pool.sentinel_manager.sentinel_kwargs, **ours}
    return deployment


def _adopted(settings: dict[str, Any], place: dict[str, Any]) -> Deployment:
    """Return the deployment at a place, with login, TLS and class of a foreign client's connections."""
    if settings.get("decode_responses"):
        logger.warning(
            "the given Redis client decodes responses; django_delayq needs bytes, so it makes connections of its own"
        )
    options: dict[str, Any] = {
        "username": settings.get("username"),
        "password": settings.get("password"),
        "db": int(settings.get("db") or 0),
        "ssl": bool(settings.get("ssl")) or issubclass(settings.get("connection_class", Connection), SSLConnection),
        "ssl_options": {name: value for name, value in settings.items() if name.startswith("ssl_")},
    }
    deployment = deployment_of(RedisConfig(**options | place))
    kept = ("credential_provider", "connection_class")
    deployment.options |= {name: settings[name] for name in kept if settings.get(name) is not None}
    return deployment
