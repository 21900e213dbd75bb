"""Connections of the core to Redis, of three kinds: a server, Sentinels, a Cluster, all with the same settings.

redis-py's defaults differ between its versions, between ``Redis()`` and ``from_url()``, and some of them are harmful to
a queue (ten silent retries, no time limit at all). Therefore every setting is given here, for every kind.
"""

from __future__ import annotations

import itertools
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, Final, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import redis
from redis import exceptions as redis_errors
from redis.backoff import AbstractBackoff, ExponentialWithJitterBackoff, NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool, SentinelManagedSSLConnection

from ..errors import Misconfigured
from ..thread_lock import ThreadLock
from .config import LONGEST_PAUSE, RedisConfig
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
#: errors of a cluster node after which the call goes to another node, or waits; a MovedError is an AskError
ELSEWHERE: Final = (*_LOSSES, *_MOVES, redis_errors.AskError, redis_errors.TimeoutError)

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
    """Connection to a single server at a fixed address, or to the master that Sentinels name, or to a Cluster.

    Thread-safe; nothing connects before the first command. After a fork the child makes connections of its own
    (redis-py compares the process id).

    Args:
        config: the deployment.
        options: settings of its connections.
        of_sentinels: login and TLS of the connections to the Sentinels.
    """

    #: True for a Redis Cluster
    cluster: ClassVar[bool] = False
    #: pool of the only server, or of the master that Sentinels name; None on a cluster
    only_pool: BoundedPool | None = None

    def __init__(
        self, config: RedisConfig, options: dict[str, Any], limits: PoolLimits, of_sentinels: Mapping[str, Any]
    ) -> None:
        self._config = config
        self._options = options
        self._limits = limits
        self._of_sentinels = of_sentinels
        #: address without any secret, for logs and messages
        self.display_url = config.display_url
        #: what confirms the writes of new jobs; None = nothing
        self.confirmation = config.confirmation
        #: seconds after which a connection is replaced, so that a changed DNS name or a balancer's new node is followed
        #: without an error; None = never
        self.max_age = limits.max_age
        #: time limit of a call in seconds, including the wait for a connection, connecting and every retry
        self.patience = limits.patience
        if not self.cluster:
            self.only_pool = self._make_pool(options, limits)  # not by the first of many threads
        self._waiting: WeakKeyDictionary[ConnectionPool, None] = WeakKeyDictionary()

    @cached_property
    def client(self) -> redis.Redis | RedisCluster:
        """Client for commands; all threads share it."""
        return redis.Redis.from_pool(cast(BoundedPool, self.only_pool))

    def _make_pool(self, options: dict[str, Any], limits: PoolLimits) -> BoundedPool:
        if not self._config.sentinels:
            return BoundedPool(limits=limits, **options)
        # A query to each Sentinel ends within its own time limit and within that of the calling command. There are no
        # retries, because the next Sentinel is the retry.
        seconds = options["socket_connect_timeout"]
        shared = {name: value for name, value in options.items() if name not in _LOGIN and not name.startswith("ssl_")}
        own = {**self._of_sentinels, **shared, "retry": _retry(0), "socket_timeout": seconds}
        manager = Sentinel([])
        manager.sentinels = [
            redis.Redis(connection_pool=BoundedPool(limits=PoolLimits(patience=seconds), host=host, port=port, **own))
            for host, port in self._config.sentinels
        ]
        return BoundedSentinelPool(self._config.sentinel_master, manager, limits=limits, **options)

    def __repr__(self) -> str:
        return f"<Connection {self.display_url}>"

    @classmethod
    def wrap(cls, client: Any) -> Connection:
        """Return a connection to the deployment of a redis-py client (django-redis's, for instance), with our settings.

        Its address, user, password and TLS settings are adopted; its pool and everything else are not used.

        Raises:
            Misconfigured: it is not a synchronous redis-py client, or reads from replicas.
        """
        of_sentinels: dict[str, Any] | None = None
        pool = getattr(client, "connection_pool", None)
        if isinstance(client, RedisCluster):
            settings: dict[str, Any] = client.nodes_manager.connection_kwargs
            place: dict[str, Any] = {"cluster_nodes": tuple((node.host, int(node.port)) for node in client.get_nodes())}
        elif not isinstance(client, redis.Redis) or not isinstance(pool, ConnectionPool):
            raise Misconfigured(
                f"{type(client).__module__}.{type(client).__qualname__} is no synchronous redis-py client; "
                "use a URL, or a django-redis cache with the default client class"
            )
        else:
            settings = {**pool.connection_kwargs, "connection_class": pool.connection_class}
            place = {name: settings[name] for name in ("host", "port", "path") if settings.get(name)}
        if isinstance(pool, SentinelConnectionPool):
            if not pool.is_master:
                raise Misconfigured("the Redis client reads replicas; a queue needs the master: set is_master=True")
            known = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
            addresses = tuple((str(one["host"]), int(one["port"])) for one in known)
            place = {"sentinels": addresses, "sentinel_master": pool.service_name}
            of_sentinels = dict(pool.sentinel_manager.sentinel_kwargs)
            if of_sentinels.pop("ssl", False):
                of_sentinels["connection_class"] = SSLConnection
        login: dict[str, Any] = {name: settings.get(name) for name in ("username", "password")}
        ssl = bool(settings.get("ssl")) or issubclass(settings.get("connection_class", object), SSLConnection)
        ssl_options = {name: value for name, value in settings.items() if name.startswith("ssl_")}
        config = RedisConfig(**login, **place, db=int(settings.get("db") or 0), ssl=ssl, ssl_options=ssl_options)
        kept = ("credential_provider", "connection_class")
        return connect(config, {name: settings[name] for name in kept if settings.get(name) is not None}, of_sentinels)

    def hurried(self, seconds: float) -> Self:
        """Return another connection to the same deployment, for callers that prefer an early error to a long wait.

        Args:
            seconds: time limit of a call. A lost connection is replaced once within that time.
        """
        options = {"socket_timeout": seconds, "socket_connect_timeout": seconds, "retry": _retry(1)}
        limits = replace(self._limits, patience=seconds)
        return type(self)(self._config, self._options | options, limits, self._of_sentinels)

    def blocking(self) -> redis.Redis:
        """Return a separate client for BLPOP or pub/sub; never share it between threads, close it after use.

        Its reads have no time limit, and no command is sent twice. TCP keepalive detects a lost peer. On a cluster it
        talks to any master.
        """
        options = self._options | self._address() | {"retry": _retry(0), "socket_timeout": None}
        pool = self._make_pool(options, PoolLimits(self._limits.connections))
        self._waiting[pool] = None
        # Not from_pool(): `blocking().pubsub()` must not lose its pool when the client is collected.
        return redis.Redis(connection_pool=pool)

    def _address(self) -> dict[str, Any]:
        """Return the address of a server, unless the options name it."""
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

    def each_server(self, command: Callable[..., T]) -> Iterator[tuple[Any, T | Exception]]:
        """Yield each server's reply to a method of the client; on a cluster node and reply, or error, of each master.

        A node that does not answer costs ``PARTIAL_SECONDS``.
        """
        yield None, command()

    def ask_any(self, command: Callable[..., T]) -> T:
        """Return the reply of any server to a method of the client; on a cluster the first of the masters' replies."""
        reply: T | Exception = redis_errors.ClusterDownError("CLUSTERDOWN no master is known")
        for _, reply in self.each_server(command):
            if not isinstance(reply, Exception):
                return reply
        raise cast(Exception, reply)

    def replies(self, command: Callable[..., T]) -> dict[Any, T]:
        """Return the replies of :meth:`each_server` by node, without errors; raise one if there are only errors."""
        found = dict(self.each_server(command))
        replies = {node: reply for node, reply in found.items() if not isinstance(reply, Exception)}
        if not replies:
            raise cast(Exception, [*found.values()][-1])
        return replies

    def slots_of(self, key: bytes) -> str:
        """Return the slots of the cluster's node that holds ``key``, and its address, as far as this client can tell.

        For messages about a part that does not answer; "" without a cluster.
        """
        return ""

    def silent_masters(self) -> list[str]:
        """Return slots and address of each master of a cluster that does not answer."""
        return []

    def run(self, source: str, keys: tuple[bytes, ...], *args: Any, until: float, outlasts: bool = False) -> Any:
        """Run a script by its source, wherever its keys are now.

        While a slot moves from one node of a cluster to another, its keys are spread over both: Redis refuses a script
        (TRYAGAIN) until the move is over. The call waits for that, up to ten seconds.

        Args:
            until: end (monotonic) of the call.
            outlasts: wait until then for a node that refuses connections or begins to serve: a replica takes its place.
        """
        with within(until):
            return self.client.eval(source, len(keys), *keys, *args)

    def close(self) -> None:
        """Close all its connections, also those of blocking clients. The next command opens new ones.

        A call of another thread ends first, and then its connection is closed.
        """
        for reference in self._waiting.keyrefs():  # a copy, to which other threads add nothing
            waiting = reference()
            if waiting is not None:
                waiting.disconnect()
        for pool in self._pools():
            pool.close()

    def _pools(self) -> list[BoundedPool]:
        """Return the pools of the client for commands, as far as there are any."""
        return [cast(BoundedPool, self.only_pool)]


def _retry(times: int, backoff: AbstractBackoff | None = None) -> Retry:
    return Retry(backoff or NoBackoff(), times, supported_errors=_RETRIED)


# --- Cluster


class _Cluster(RedisCluster):
    """Client of a cluster that also follows redirects to unlisted nodes.

    A node that was just added has no slots yet and is in no list; redis-py would fail on a redirect to it (ASK).
    """

    def __init__(self, *, patience: float, **options: Any) -> None:
        #: time limit of a command in seconds, however many nodes it needs
        self._patience = patience
        #: nodes that redirects named, and that were in no list at that time
        self.newcomers: dict[str, ClusterNode] = {}
        super().__init__(**options)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        with within(time.monotonic() + self._patience):
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def get_node(self, host: Any = None, port: Any = None, node_name: Any = None) -> Any:
        node = super().get_node(host, port, node_name)  # type: ignore[no-untyped-call]
        if node is None and node_name:
            address, _, number = node_name.rpartition(":")
            node = self.newcomers.setdefault(node_name, ClusterNode(address, int(number)))
        return node


class ClusterConnection(Connection):
    """Connection to a Redis Cluster."""

    cluster = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
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
                self._client = self._client or self._create_client()
        return self._client

    def _create_client(self) -> _Cluster:
        (host, port), *others = self._config.cluster_nodes
        options = {name: value for name, value in self._options.items() if name != "retry_on_error"}
        try:
            with within(time.monotonic() + self.patience):
                # One silent node must not stop the queues of the others.
                return _Cluster(
                    # redis-py accepts another class of pools only together with a URL.
                    url=f"redis://[{host}]:{port}" if ":" in host else f"redis://{host}:{port}",
                    startup_nodes=[ClusterNode(host, port) for host, port in others],
                    require_full_coverage=False,
                    connection_pool_class=partial(BoundedPool, limits=self._limits),
                    patience=self.patience,
                    **options,
                )
        except IndexError as error:  # raised by redis-py for a cluster that has no slots yet
            raise redis_errors.ClusterDownError("CLUSTERDOWN no slot is served by any node") from error

    def _address(self) -> dict[str, Any]:
        nodes: Any = self.client.get_primaries()
        if not nodes:
            raise redis_errors.ClusterDownError("CLUSTERDOWN no master is known")
        # In turn, so that a caller whose node fell silent gets another one.
        node = nodes[next(self._turns) % len(nodes)]
        return {"host": node.host, "port": node.port}

    def pool(self, key: bytes) -> BoundedPool:
        client: Any = self.client
        return cast(BoundedPool, client.get_redis_connection(client.get_node_from_key(key)).connection_pool)

    def each_server(self, command: Callable[..., T]) -> Iterator[tuple[Any, T | Exception]]:
        for node in cast(Any, self.client).get_primaries():
            reply: T | Exception
            try:
                with self.limited(PARTIAL_SECONDS):
                    reply = command(target_nodes=node)
            except REDIS_ERRORS as error:
                reply = error
            yield node, reply

    def slots_of(self, key: bytes) -> str:
        client: Any = self.client
        try:
            node = client.get_node_from_key(key)
        except redis_errors.RedisClusterException:
            node = None
        return self._slots_of_node(node) if node else f"slot {client.keyslot(key)}, which no node serves"

    def silent_masters(self) -> list[str]:
        replies = self.each_server(self.client.ping)
        return [self._slots_of_node(node) for node, reply in replies if isinstance(reply, Exception)]

    def _slots_of_node(self, node: Any) -> str:
        cache = cast(Any, self.client).nodes_manager.slots_cache
        slots = sorted(slot for slot, nodes in cache.items() if nodes[0].name == node.name)
        breaks = [0, *(place for place in range(1, len(slots)) if slots[place] > slots[place - 1] + 1), len(slots)]
        ranges = [f"{slots[low]}-{slots[high - 1]}" for low, high in pairwise(breaks) if low < high]
        return f"slots {', '.join(ranges)} of {node.name}"

    def run(self, source: str, keys: tuple[bytes, ...], *args: Any, until: float, outlasts: bool = False) -> Any:
        moved_by = min(until, time.monotonic() + self.moving_seconds)
        while True:
            try:
                return super().run(source, keys, *args, until=until)
            except _LOSSES as error:
                pause, end = random.uniform(0.1, _LONGEST_PAUSE), until if outlasts else 0.0
                if classify(error) is not Fault.TRANSIENT or time.monotonic() + pause > end:
                    raise
            except _MOVES:
                pause = random.uniform(0.005, 0.05)
                if time.monotonic() > moved_by:
                    raise
            time.sleep(pause)

    def _pools(self) -> list[BoundedPool]:
        client: Any = self._client
        nodes = [*client.get_nodes(), *client.newcomers.values()] if client else []
        return [node.redis_connection.connection_pool for node in nodes if node.redis_connection is not None]


# --- making one


def connect(
    config: RedisConfig, adopted: Mapping[str, Any] | None = None, of_sentinels: Mapping[str, Any] | None = None
) -> Connection:
    """Return the connection to the deployment of ``config``. It connects with the first command, not here.

    Args:
        adopted: further options of its connections.
        of_sentinels: options of the connections to the Sentinels, in place of those of ``config``.
    """
    backoff = ExponentialWithJitterBackoff(base=0.02, cap=LONGEST_PAUSE)
    options: dict[str, Any] = {
        "username": config.username,
        "password": config.password,
        "socket_timeout": config.socket_timeout,
        "socket_connect_timeout": config.connect_timeout,
        "retry": _retry(config.retries, backoff),
        "retry_on_error": list(_RETRIED),  # redis-py before 6 checks this list, too
        "health_check_interval": 0,  # an extra step in each call; the command itself detects the same problems
        "protocol": 2,
        "decode_responses": False,
        "encoding": "utf-8",
    }
    tls: dict[str, Any] = {}
    if config.path:
        options |= {"connection_class": UnixDomainSocketConnection, "path": config.path}
    else:
        options |= {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
        if config.ssl:
            tls = {"connection_class": SSLConnection, **config.ssl_options}
    options |= tls
    if tls and config.sentinels:
        options["connection_class"] = SentinelManagedSSLConnection
    options |= adopted or {}
    limits = PoolLimits(config.max_connections, config.patience, config.max_connection_age)
    if config.cluster_nodes:
        return ClusterConnection(config, options, limits, {})
    options["db"] = config.db
    if config.sentinels:
        login = {"username": config.sentinel_username, "password": config.sentinel_password}
        return Connection(config, options, limits, {**login, **tls} if of_sentinels is None else of_sentinels)
    address = {} if config.path else {"host": config.host, "port": config.port}
    return Connection(config, options | address, limits, {})
