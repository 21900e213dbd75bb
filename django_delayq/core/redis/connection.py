"""Connections of the core to Redis, of three kinds: a server, Sentinels, a Cluster, all with the same settings.

redis-py's defaults differ between its versions, between ``Redis()`` and ``from_url()``, and some of them are harmful to
a queue (ten silent retries, no time limit at all). Therefore every setting is given here, for every kind.
"""

from __future__ import annotations

import itertools
import math
import random
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, Final, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import redis
from redis import exceptions as redis_errors
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from ..errors import Misconfigured
from ..thread_lock import ThreadLock
from . import probe
from .config import LONGEST_PAUSE, Address, RedisConfig, logger
from .event_loops import EventLoops
from .faults import REDIS_ERRORS, Fault, classify
from .pool import BoundedPool, BoundedSentinelPool, PoolLimits, within

__all__ = ["Connection", "RedisConfig", "connect"]

T = TypeVar("T")
#: seconds after which a reply without a node that does not answer is made from those of the others
PARTIAL_SECONDS: Final = 3.0
#: seconds to wait for a slot that is moving, unless a connection says otherwise
MOVING: Final = 10.0
_LONGEST_PAUSE: Final = 0.3
#: errors while a node of a cluster is replaced, or begins to serve again
_LOSSES: Final = (redis_errors.ConnectionError, redis_errors.ClusterDownError, redis_errors.SlotNotCoveredError)
_MOVES: Final = (redis_errors.ClusterError, redis_errors.TryAgainError)
#: replies of a cluster node that does not hold all keys of a call
ON_ANOTHER_NODE: Final = (
    redis_errors.AskError,  # and its subclass MovedError
    redis_errors.TryAgainError,
    redis_errors.ClusterError,
    redis_errors.SlotNotCoveredError,
)
#: errors of a cluster node after which the call goes to another node (or waits for the slot to move)
ELSEWHERE: Final = (*ON_ANOTHER_NODE, redis_errors.ConnectionError, redis_errors.TimeoutError)

# Errors after which the same command is sent again. READONLY is among them, because it ends with a new connection,
# which finds the new master; the script was not run. Every script recognises a repeated command.
_RETRIED: Final = (redis_errors.ConnectionError, redis_errors.TimeoutError, redis_errors.ReadOnlyError)
#: options by which TCP detects a silently lost peer after 45 s, also in a read without a time limit
_KEEPALIVE: Final = {
    getattr(socket, name): value
    for name, value in {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}.items()
    if hasattr(socket, name)
}
#: options that connections to Sentinels have of their own
_LOGIN: Final = ("username", "password", "db", "credential_provider", "connection_class")


class Connection:
    """Connection to a single server at a fixed address, or to another kind of deployment.

    Thread-safe; nothing connects before the first command. After a fork the child makes connections of its own
    (redis-py compares the process id).

    Args:
        config: the deployment.
        options: settings of its connections.
    """

    #: True for a Redis Cluster
    cluster: ClassVar[bool] = False

    def __init__(self, config: RedisConfig, options: dict[str, Any], limits: PoolLimits) -> None:
        self._config = config
        self._options = options
        self._limits = limits
        #: address without any secret, for logs and messages
        self.display_url = config.display_url
        #: what confirms the writes of new jobs; None = nothing
        self.confirmation = config.confirmation
        #: seconds after which a connection is replaced, so that a changed DNS name or a balancer's new node is followed
        #: without an error; None = never
        self.max_age = limits.max_age
        #: time limit of a call in seconds, including the wait for a connection, connecting and every retry
        self.patience = limits.patience
        #: connections of event loops, and their threads
        self.loops = EventLoops(options, limits)
        #: pool of the only server, not created by the first of many threads; None on a cluster
        self.only_pool: BoundedPool | None = None if self.cluster else self._make_pool(options, limits)
        self._waiting: WeakKeyDictionary[ConnectionPool, None] = WeakKeyDictionary()

    @cached_property
    def client(self) -> redis.Redis | RedisCluster:
        """Client for commands; all threads share it."""
        return redis.Redis.from_pool(cast(BoundedPool, self.only_pool))

    def _make_pool(self, options: dict[str, Any], limits: PoolLimits) -> BoundedPool:
        return BoundedPool(limits=limits, **_pool_options(options))

    def __repr__(self) -> str:
        return f"<Connection {self.display_url}>"

    @classmethod
    def wrap(cls, client: Any) -> Connection:
        """Return a connection to the deployment of a redis-py client (django-redis's, for instance), with our settings.

        Its address, user, password and TLS settings are adopted; its pool and everything else are not used.

        Raises:
            Misconfigured: it is not a synchronous redis-py client, or reads from replicas.
        """
        return _wrapped(client)

    def hurried(self, seconds: float) -> Self:
        """Return another connection to the same deployment, for callers that prefer an early error to a long wait.

        Args:
            seconds: time limit of a call. A lost connection is replaced once within that time.
        """
        lost = (redis_errors.ConnectionError, redis_errors.ReadOnlyError)
        options = self._options | {
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            "retry": Retry(NoBackoff(), 1, supported_errors=lost),
            "retry_on_error": list(lost),
        }
        return self._with(options, replace(self._limits, patience=seconds))

    def _with(self, options: dict[str, Any], limits: PoolLimits) -> Self:
        return type(self)(self._config, options, limits)

    def blocking(self, wait: float | None = None, *, key: str | bytes | None = None) -> redis.Redis:
        """Return a separate client for BLPOP or pub/sub; never share it between threads, close it after use.

        Its reads have no time limit, and no command is sent twice. TCP keepalive detects a lost peer.

        Args:
            wait: the longest wait in seconds that the caller will request; reads then end 5 s after it.
            key: on a cluster, the client talks to the node that holds this key (default: any master).
        """
        pool = self._waiting_pool(None if wait is None else wait + 5.0, key)
        self._waiting[pool] = None
        # Not from_pool(): `blocking().pubsub()` must not lose its pool when the client is collected.
        return redis.Redis(connection_pool=pool)

    def _waiting_pool(self, seconds: float | None, key: str | bytes | None) -> BoundedPool:
        """Return a pool for blocking calls on the node of ``key``: without retries, a deadline and an age."""
        options = self._options | self._address(key) | _no_retries() | {"socket_timeout": seconds}
        return self._make_pool(options, replace(self._limits, patience=math.inf, max_age=None))

    def _address(self, key: str | bytes | None) -> dict[str, Any]:
        """Return the address of the node of ``key``, unless the options name it."""
        return {}

    def pool(self, key: bytes) -> BoundedPool:
        """Return the pool of the server; on a cluster, of the node that holds ``key``, as far as this client can tell.

        Raises:
            SlotNotCoveredError: no node is known that holds it.
        """
        return cast(BoundedPool, self.only_pool)

    def limited(self, seconds: float) -> AbstractContextManager[None]:
        """Return a block in which, on a cluster, the commands of this thread together take at most so many seconds.

        One node that does not answer must not hold up work on the others. With a single server there are no others, and
        each call has the usual time limit.
        """
        return within(time.monotonic() + seconds if self.cluster else None)

    def ask_any(self, command: Callable[..., T]) -> T:
        """Return the reply of any server; on a cluster the first of the masters that answers.

        Args:
            command: method of the client, without arguments.
        """
        return command()

    def slots_of(self, key: bytes) -> str:
        """Return the slots of the cluster's node that holds ``key``, and its address, as far as this client can tell.

        For messages about a part that does not answer; "" without a cluster.
        """
        return ""

    def silent_masters(self) -> list[str]:
        """Return slots and address of each master of a cluster that does not answer."""
        return []

    def run(
        self, source: str, keys: tuple[bytes, ...], *args: Any, until: float | None = None, outlasts: bool = False
    ) -> Any:
        """Run a script by its source, wherever its keys are now.

        While a slot moves from one node of a cluster to another, its keys are spread over both: Redis refuses a script
        (TRYAGAIN) until the move is over. The call waits for that, up to ten seconds.

        Args:
            until: end (monotonic) of the call; None = ``patience`` from now.
            outlasts: wait until then for a node that refuses connections or begins to serve: a replica takes its place.
        """
        with within(time.monotonic() + self.patience if until is None else until):
            return self.client.eval(source, len(keys), *keys, *args)

    async def exchange_on_loop(self, key: bytes, packed: bytes, until: float) -> Any:
        """Send a packed command from the running event loop, once; see :meth:`EventLoops.exchange`.

        Args:
            key: determines the node on a cluster.
        """
        return await self.loops.exchange(self.pool(key), packed, until)

    def check(self) -> dict[str, Any]:
        """Check that the server is fit for a queue; return its ``INFO``.

        Raises:
            Misconfigured: an operator has to change something (password, scheme, version, kind of deployment).
            QueueUnavailable: it cannot be reached or does not serve now.
        """
        # Without retries: the caller needs the present state.
        make_pool = partial(self._waiting_pool, self._options["socket_timeout"], None)
        return probe.check(make_pool, self.display_url, cluster=self.cluster)

    def reconnect(self) -> None:
        """Close idle connections, so that the next command resolves the address again."""
        for pool in self._pools():
            pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Close all its connections, also those of blocking clients. The next command opens new ones.

        A call of another thread ends first, and then its connection is closed.
        """
        for reference in self._waiting.keyrefs():  # a copy, to which other threads add nothing
            waiting = reference()
            if waiting is not None:
                waiting.disconnect()
        self.loops.close()
        for pool in self._pools():
            pool.close()

    def _pools(self) -> list[BoundedPool]:
        """Return the pools of the client for commands, as far as there are any."""
        return [cast(BoundedPool, self.only_pool)]


def _pool_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a client as those of a pool."""
    if options.get("ssl"):
        options = {"connection_class": SSLConnection} | options
    return {name: value for name, value in options.items() if name != "ssl"}


def _no_retries() -> dict[str, Any]:
    return {"retry": Retry(NoBackoff(), 0, supported_errors=_RETRIED), "retry_on_error": []}


# --- Sentinels


class SentinelConnection(Connection):
    """Connection to the master that Sentinels name.

    Args:
        own: login and TLS of the connections to the Sentinels.
    """

    def __init__(
        self, config: RedisConfig, options: dict[str, Any], limits: PoolLimits, own: Mapping[str, Any]
    ) -> None:
        self._own = own
        super().__init__(config, options, limits)

    def _with(self, options: dict[str, Any], limits: PoolLimits) -> Self:
        return type(self)(self._config, options, limits, self._own)

    def _make_pool(self, options: dict[str, Any], limits: PoolLimits) -> BoundedPool:
        shared = {name: value for name, value in options.items() if name not in _LOGIN and not name.startswith("ssl")}
        # No retries, because the next Sentinel is the retry.
        own = {**self._own, **shared, **_no_retries(), "socket_timeout": options["socket_connect_timeout"]}
        manager = bounded_sentinels(self._config.sentinels, own)
        return BoundedSentinelPool(self._config.sentinel_master, manager, limits=limits, **options)


def bounded_sentinels(addresses: Iterable[Address], settings: dict[str, Any]) -> Sentinel:
    """Return the Sentinels; a query to each ends within its own time limit and within that of the calling command."""
    manager = Sentinel(list(addresses), sentinel_kwargs=settings)
    for client in manager.sentinels:
        pool = client.connection_pool
        limits = PoolLimits(patience=settings["socket_timeout"])
        options = {**pool.connection_kwargs, "connection_class": pool.connection_class}
        client.connection_pool = BoundedPool(limits=limits, **options)
    return manager


# --- Cluster


class _Cluster(RedisCluster):
    """Client of a cluster that also follows redirects to unlisted nodes.

    A node that was just added has no slots yet and is in no list; redis-py would fail on a redirect to it (ASK).
    """

    def __init__(self, *, patience: float, **options: Any) -> None:
        #: time limit of a command in seconds, however many nodes it needs
        self._patience = patience
        self._newcomers: dict[str, ClusterNode] = {}
        super().__init__(**options)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        with within(time.monotonic() + self._patience):
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def get_node(self, host: Any = None, port: Any = None, node_name: Any = None) -> Any:
        node = super().get_node(host, port, node_name)  # type: ignore[no-untyped-call]
        if node is None and node_name:
            address, _, number = node_name.rpartition(":")
            node = self._newcomers.setdefault(node_name, ClusterNode(address, int(number)))
        return node

    def known_nodes(self) -> list[ClusterNode]:
        """Return the nodes of the list, and those that redirects named."""
        return [*self.get_nodes(), *self._newcomers.values()]  # type: ignore[no-untyped-call]


class ClusterConnection(Connection):
    """Connection to a Redis Cluster."""

    cluster = True

    def __init__(self, config: RedisConfig, options: dict[str, Any], limits: PoolLimits) -> None:
        super().__init__(config, options, limits)
        #: seconds to wait for a slot that is moving to another node
        self.moving_seconds = MOVING
        self._client: _Cluster | None = None
        self._turns = itertools.count(random.getrandbits(16))
        self._lock = ThreadLock()

    @property
    def client(self) -> RedisCluster:
        """Client for commands; all threads share it. It reads the slots when it is created."""
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = self._create_client()
        return self._client

    def _create_client(self) -> _Cluster:
        (host, port), *others = self._config.cluster_nodes
        options = {name: value for name, value in _pool_options(self._options).items() if name != "retry_on_error"}
        try:
            with within(time.monotonic() + self._limits.patience):
                # One silent node must not stop the queues of the others.
                return _Cluster(
                    # redis-py accepts another class of pools only together with a URL.
                    url=f"redis://[{host}]:{port}" if ":" in host else f"redis://{host}:{port}",
                    startup_nodes=[ClusterNode(host, port) for host, port in others],
                    require_full_coverage=False,
                    connection_pool_class=partial(BoundedPool, limits=self._limits),
                    patience=self._limits.patience,
                    **options,
                )
        except IndexError as error:  # raised by redis-py for a cluster that has no slots yet
            raise redis_errors.ClusterDownError("CLUSTERDOWN no slot is served by any node") from error

    def _address(self, key: str | bytes | None) -> dict[str, Any]:
        client = self.client
        nodes: list[Any] = [client.get_node_from_key(key)] if key is not None else client.get_primaries()
        # In turn, so that a caller whose node fell silent gets another one.
        node = nodes[next(self._turns) % len(nodes)] if nodes else None
        if node is None:
            raise redis_errors.ClusterDownError("CLUSTERDOWN no master is known")
        return {"host": node.host, "port": node.port}

    def pool(self, key: bytes) -> BoundedPool:
        client: Any = self.client
        return cast(BoundedPool, client.get_redis_connection(client.get_node_from_key(key)).connection_pool)

    def ask_any(self, command: Callable[..., T]) -> T:
        failure: Exception = redis_errors.ClusterDownError("CLUSTERDOWN no master is known")
        for node in cast(Any, self.client).get_primaries():
            try:
                with self.limited(PARTIAL_SECONDS):
                    return command(target_nodes=node)
            except REDIS_ERRORS as error:
                failure = error
        raise failure

    def slots_of(self, key: bytes) -> str:
        client: Any = self.client
        try:
            node = client.get_node_from_key(key)
        except redis_errors.RedisClusterException:
            node = None
        if node is None:
            return f"slot {client.keyslot(key)}, which no node serves"
        return self._slots_of_node(node)

    def silent_masters(self) -> list[str]:
        silent, client = [], cast(Any, self.client)
        for node in client.get_primaries():
            try:
                with self.limited(PARTIAL_SECONDS):
                    client.ping(target_nodes=node)
            except REDIS_ERRORS:
                silent.append(self._slots_of_node(node))
        return silent

    def _slots_of_node(self, node: Any) -> str:
        cache = cast(Any, self.client).nodes_manager.slots_cache
        slots = sorted(slot for slot, nodes in cache.items() if nodes[0].name == node.name)
        breaks = [0, *(place for place in range(1, len(slots)) if slots[place] > slots[place - 1] + 1), len(slots)]
        ranges = [f"{slots[low]}-{slots[high - 1]}" for low, high in pairwise(breaks) if low < high]
        return f"slots {', '.join(ranges)} of {node.name}"

    def run(
        self, source: str, keys: tuple[bytes, ...], *args: Any, until: float | None = None, outlasts: bool = False
    ) -> Any:
        until = time.monotonic() + self.patience if until is None else until
        moved_by = min(until, time.monotonic() + self.moving_seconds)
        while True:
            try:
                return super().run(source, keys, *args, until=until)
            except _LOSSES as error:
                pause = _pause_of_failover(error, until if outlasts else 0.0)
            except _MOVES as error:
                pause = _pause_of_move(error, moved_by)
            time.sleep(pause)

    def _pools(self) -> list[BoundedPool]:
        nodes = [] if self._client is None else self._client.known_nodes()
        return [node.redis_connection.connection_pool for node in nodes if node.redis_connection is not None]


def _pause_of_move(error: Exception, moved_by: float) -> float:
    """Return the seconds to wait for a slot that moves; raise the error if it is not a move, or takes too long."""
    if time.monotonic() > moved_by:
        raise error
    return random.uniform(0.005, 0.05)


def _pause_of_failover(error: Exception, until: float) -> float:
    """Return the seconds to wait for the replica of a lost node; raise the error if waiting is useless, or too long."""
    if classify(error) is not Fault.TRANSIENT or time.monotonic() + _LONGEST_PAUSE > until:
        raise error
    return random.uniform(0.1, _LONGEST_PAUSE)


# --- making one


def connect(config: RedisConfig) -> Connection:
    """Return the connection to the deployment of ``config``. It connects with the first command, not here."""
    return _connect(config, {})


def _connect(config: RedisConfig, adopted: dict[str, Any], own: Mapping[str, Any] | None = None) -> Connection:
    """Return the connection to a deployment, with further options of its connections, and of those to Sentinels."""
    limits = PoolLimits(config.max_connections, config.patience, config.max_connection_age)
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
    tls: dict[str, Any] = {"ssl": True, **config.ssl_options} if config.ssl and not config.path else {}
    if not config.path:
        settings |= {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
    options = {**settings, **tls, "username": config.username, "password": config.password, **adopted}
    if config.cluster_nodes:
        return ClusterConnection(config, options, limits)
    options["db"] = config.db
    if config.sentinels:
        login = {"username": config.sentinel_username, "password": config.sentinel_password}
        return SentinelConnection(config, options, limits, {**login, **tls} if own is None else own)
    if config.path:
        address: dict[str, Any] = {"connection_class": UnixDomainSocketConnection, "path": config.path}
    else:
        address = {"host": config.host, "port": config.port}
    return Connection(config, address | options, limits)


def _wrapped(client: Any) -> Connection:
    """Return the connection to the deployment of a redis-py client; see :meth:`Connection.wrap`."""
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
    return _adopted(settings, place, pool.sentinel_manager.sentinel_kwargs)


def _adopted(settings: dict[str, Any], place: dict[str, Any], own: Mapping[str, Any] | None = None) -> Connection:
    """Return the connection to a place, with login, TLS and class of a foreign client's connections."""
    if settings.get("decode_responses"):
        logger.warning(
            "the given Redis client decodes responses; django_delayq needs bytes, so it makes connections of its own"
        )
    options: dict[str, Any] = {
        "username": settings.get("username"),
        "password": settings.get("password"),
        "db": int(settings.get("db") or 0),
        "ssl": bool(settings.get("ssl")) or issubclass(settings.get("connection_class", object), SSLConnection),
        "ssl_options": {name: value for name, value in settings.items() if name.startswith("ssl_")},
    }
    kept = ("credential_provider", "connection_class")
    adopted = {name: settings[name] for name in kept if settings.get(name) is not None}
    return _connect(RedisConfig(**options | place), adopted, own)
