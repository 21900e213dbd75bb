"""Connection of the core to Redis: one shared client for commands, and separate clients for blocking calls."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

import redis
from redis import exceptions as redis_errors
from redis.cluster import RedisCluster
from redis.connection import ConnectionPool

from . import probe
from .config import Confirmation, RedisConfig
from .deployments import Deployment, deployment_of, deployment_of_client
from .event_loops import EventLoops
from .faults import REDIS_ERRORS, Fault, classify
from .pool import BoundedPool, within

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


class Connection:
    """Connection to a deployment of Redis. Thread-safe; nothing connects before the first command.

    After a fork the child makes connections of its own (redis-py compares the process id).

    Args:
        confirmation: what confirms the writes of new jobs; None = nothing.
    """

    def __init__(self, deployment: Deployment, confirmation: Confirmation | None = None) -> None:
        self._deployment = deployment
        #: what confirms the writes of new jobs; None = nothing
        self.confirmation = confirmation
        #: seconds after which a connection is replaced, so that a changed DNS name or a balancer's new node is followed
        #: without an error; None = never
        self.max_age = deployment.limits.max_age
        #: time limit of a call in seconds, including the wait for a connection, connecting and every retry
        self.patience = deployment.limits.patience
        #: seconds to wait for a slot that is moving to another node of a cluster
        self.moving_seconds = MOVING
        self._waiting: WeakKeyDictionary[ConnectionPool, None] = WeakKeyDictionary()
        #: True for a Redis Cluster
        self.cluster = deployment.cluster
        #: address without any secret, for logs and messages
        self.display_url = deployment.display_url
        #: connections of event loops, and their threads
        self.loops = EventLoops(deployment.options, deployment.limits)
        #: pool of the only server; None on a cluster
        self.only_pool: BoundedPool | None = None
        if not deployment.cluster:
            # Created here and not by the first of many threads. A cluster's client reads the slots when it is created,
            # so it is left to the first use.
            self.only_pool = cast(BoundedPool, cast(redis.Redis, self.client).connection_pool)

    @cached_property
    def client(self) -> redis.Redis | RedisCluster:
        """Client for commands; all threads share it."""
        return self._deployment.client()

    def __repr__(self) -> str:
        return f"<Connection {self.display_url}>"

    @classmethod
    def wrap(cls, client: Any) -> Connection:
        """Return a connection to the deployment of a redis-py client (django-redis's, for instance), with our settings.

        Its address, user, password and TLS settings are adopted; its pool and everything else are not used.

        Raises:
            Misconfigured: it is not a synchronous redis-py client, or reads from replicas.
        """
        return cls(deployment_of_client(client))

    def hurried(self, seconds: float) -> Connection:
        """Return another connection to the same deployment, for callers that prefer an early error to a long wait.

        Args:
            seconds: time limit of a call. A lost connection is replaced once within that time.
        """
        return Connection(self._deployment.hurried(seconds), self.confirmation)

    def blocking(self, wait: float | None = None, *, key: str | bytes | None = None) -> redis.Redis:
        """Return a separate client for BLPOP or pub/sub; never share it between threads, close it after use.

        Its reads have no time limit, and no command is sent twice. TCP keepalive detects a lost peer.

        Args:
            wait: the longest wait in seconds that the caller will request; reads then end 5 s after it.
            key: on a cluster, the client talks to the node that holds this key (default: any master).
        """
        pool = self._deployment.waiting_pool(None if wait is None else wait + 5.0, key)
        self._waiting[pool] = None
        # Not from_pool(): `blocking().pubsub()` must not lose its pool when the client is collected.
        return redis.Redis(connection_pool=pool)

    def pool(self, key: bytes) -> BoundedPool:
        """Return the pool of the server; on a cluster, of the node that holds ``key``, as far as this client can tell.

        Raises:
            SlotNotCoveredError: no node is known that holds it.
        """
        if self.only_pool is not None:
            return self.only_pool
        client: Any = self.client
        return cast(BoundedPool, client.get_redis_connection(client.get_node_from_key(key)).connection_pool)

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
        if not self.cluster:
            return command()
        failure: Exception = redis_errors.ClusterDownError("CLUSTERDOWN no master is known")
        for node in cast(Any, self.client).get_primaries():
            try:
                with self.limited(PARTIAL_SECONDS):
                    return command(target_nodes=node)
            except REDIS_ERRORS as error:
                failure = error
        raise failure

    def slots_of(self, key: bytes) -> str:
        """Return the slots of the cluster's node that holds ``key``, and its address, as far as this client can tell.

        For messages about a part that does not answer.
        """
        client: Any = self.client
        try:
            node = client.get_node_from_key(key)
        except redis_errors.RedisClusterException:
            node = None
        if node is None:
            return f"slot {client.keyslot(key)}, which no node serves"
        return self._slots_of_node(node)

    def silent_masters(self) -> list[str]:
        """Return slots and address of each master of a cluster that does not answer."""
        silent, client = [], cast(Any, self.client)
        for node in client.get_primaries() if self.cluster else ():
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
        """Run a script by its source, wherever its keys are now.

        While a slot moves from one node of a cluster to another, its keys are spread over both: Redis refuses a script
        (TRYAGAIN) until the move is over. The call waits for that, up to ten seconds.

        Args:
            until: end (monotonic) of the call; None = ``patience`` from now.
            outlasts: wait until then for a node that refuses connections or begins to serve: a replica takes its place.
        """
        until = time.monotonic() + self.patience if until is None else until
        moved_by = min(until, time.monotonic() + self.moving_seconds)
        while True:
            try:
                return self._run_once(source, keys, args, until)
            except _LOSSES as error:
                pause = _pause_of_failover(error, until if outlasts else 0.0)
            except _MOVES as error:
                pause = _pause_of_move(error, moved_by)
            time.sleep(pause)

    def _run_once(self, source: str, keys: tuple[bytes, ...], args: tuple[Any, ...], until: float) -> Any:
        with within(until):
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
        timeout = self._deployment.options["socket_timeout"]
        return probe.check(lambda: self._deployment.waiting_pool(timeout, None), self.display_url, cluster=self.cluster)

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
        if self.only_pool is not None:
            return [self.only_pool]
        client = self.__dict__.get("client")
        nodes = [] if client is None else client.known_nodes()
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


def connect(config: RedisConfig) -> Connection:
    """Return the connection to the deployment of ``config``. It connects with the first command, not here."""
    return Connection(deployment_of(config), config.confirmation)
