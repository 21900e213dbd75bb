"""Calls from event loops, over redis-py's own connections for asyncio. Each is tried once.

A call that gets no reply is made again by the blocking path, in a thread. So retries, moved slots and failovers are
handled there alone, and its pools name the server of a call.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool
from redis.asyncio import connection as aio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import Connection

from .pool import end_of

if TYPE_CHECKING:
    from .pool import BoundedPool, PoolLimits

T = TypeVar("T")
#: pools of one event loop, by the addresses of the servers
_Pools: TypeAlias = dict[tuple[tuple[str, Any], ...], BlockingConnectionPool]
#: most connections of an event loop to one server, and most of its threads; further calls wait
MOST_CONNECTIONS: Final = 16


class EventLoops:
    """Connections of event loops to the servers of one deployment, and threads; those of a loop end with it.

    Args:
        options: settings of its connections.
    """

    def __init__(self, options: Mapping[str, Any], limits: PoolLimits) -> None:
        blocking = options.get("connection_class", Connection)
        name = blocking.__name__.removeprefix("SentinelManaged") if blocking.__module__.startswith("redis.") else ""
        kind, parameters = getattr(aio, name, None), signature(aio.SSLConnection).parameters
        #: True if connections with these options exist for event loops, too
        self.can_call = kind is not None and all(name in parameters for name in options if name.startswith("ssl_"))
        self._options = {
            **options,
            "connection_class": kind,
            "max_connections": min(MOST_CONNECTIONS, limits.connections),
            # The time limits are set here.
            "timeout": None,
            "socket_timeout": None,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_error": [],
        }
        self._seconds = options.get("socket_timeout") or math.inf
        self._max_age = limits.max_age
        #: moments (monotonic) at which connections are to be replaced
        self._old_at: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        #: of each loop its pools, its threads, and the generator that closes them
        self._loops: WeakKeyDictionary[Any, tuple[_Pools, Executor, AsyncGenerator[None]]] = WeakKeyDictionary()

    async def exchange(self, server: BoundedPool, packed: bytes, until: float) -> Any:
        """Send a packed command from the running event loop, once, and return the reply.

        Args:
            server: pool of the blocking client for the server.
            packed: the command, in wire format.
            until: end (monotonic) of the call.
        """
        (pools, _), address = await self._of_loop(), server.address()
        if address not in pools:
            pools[address] = BlockingConnectionPool(**self._options | dict(address))
        pool = pools[address]
        async with asyncio.timeout(until - time.monotonic()) as limit:
            connection = await pool.get_connection()
            try:
                limit.reschedule(asyncio.get_running_loop().time() + min(until - time.monotonic(), self._seconds))
                if time.monotonic() >= self._old_at.setdefault(connection, end_of(self._max_age)):
                    await connection.disconnect()
                    await connection.connect()
                    self._old_at[connection] = end_of(self._max_age)
                await connection.send_packed_command(packed, False)
                return await connection.read_response()
            except BaseException as error:
                # Half a reply may be left on it. After READONLY a new connection finds the new master.
                if not isinstance(error, redis_errors.ResponseError) or isinstance(error, redis_errors.ReadOnlyError):
                    await connection.disconnect(nowait=True)
                raise
            finally:
                await pool.release(connection)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Return the result of a function that blocks, from a thread of the running event loop.

        The loop's default threads are few, and other code needs them while calls wait for Redis.
        """
        _, threads = await self._of_loop()
        return await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, function)

    async def _of_loop(self) -> tuple[_Pools, Executor]:
        loop = asyncio.get_running_loop()
        opened = self._loops.get(loop)
        if opened is None:
            pools: _Pools = {}
            threads = ThreadPoolExecutor(MOST_CONNECTIONS, "delayq-loop")
            opened = self._loops[loop] = pools, threads, _closing(pools, threads)
            await anext(opened[2])
        return opened[:2]

    def close(self) -> None:
        """Close the connections of all loops, each on its own loop. The next call opens new ones.

        A loop that is not running closes its own when it next runs.
        """
        self._loops.clear()


async def _closing(pools: _Pools, threads: Executor) -> AsyncGenerator[None]:
    """End pools and threads when this generator is closed: its event loop does so when it ends, or drops it."""
    try:
        yield
    finally:
        threads.shutdown(wait=False)
        while pools:
            await pools.popitem()[1].disconnect()
