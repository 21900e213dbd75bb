"""Calls from event loops, over redis-py's own connections for asyncio. Each is tried once.

A call that gets no reply, or needs more than one, is made again by the blocking path, in a thread. So retries, moved
slots and failovers are handled there alone, and its pools name the server of a call.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redis import exceptions as redis_errors
from redis.asyncio import connection as aio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection

from .pool import end_of

if TYPE_CHECKING:
    from .pool import BoundedPool, PoolLimits

T = TypeVar("T")
#: most connections of an event loop to one server, and most of its threads; further calls wait
MOST_CONNECTIONS: Final = 16


class EventLoops:
    """Connections of event loops to the servers of one deployment; those of a loop are closed when it ends.

    Args:
        options: settings of its connections.
    """

    def __init__(self, options: Mapping[str, Any], limits: PoolLimits) -> None:
        blocking = options.get("connection_class", SSLConnection if options.get("ssl") else Connection)
        name = blocking.__name__.removeprefix("SentinelManaged") if blocking.__module__.startswith("redis.") else ""
        base = getattr(aio, name, None)
        parameters = signature(aio.SSLConnection).parameters
        #: True if connections with these options exist for event loops, too
        self.can_call = base is not None and all(name in parameters for name in options if name.startswith("ssl_"))
        self._options = {name: value for name, value in options.items() if name != "ssl"}
        # The limit of an attempt is set here: redis-py's own one would cost a task for each call.
        self._options |= {"retry": Retry(NoBackoff(), 0), "retry_on_error": [], "socket_timeout": None}
        self._options.pop("connection_class", None)
        self._make: Callable[..., Any] = base or aio.Connection
        self._limits = options.get("socket_timeout"), min(MOST_CONNECTIONS, limits.connections), limits.max_age
        self._clients: dict[asyncio.AbstractEventLoop, _LoopClient] = {}

    async def exchange(self, pool: BoundedPool, packed: bytes, until: float) -> Any:
        """Send a packed command from the running event loop, once, and return the reply.

        Args:
            pool: that of the blocking client for the server.
            packed: the command, in wire format.
            until: end (monotonic) of the call.

        Raises:
            MaxConnectionsError: all connections of the loop were in use until then.
        """
        client, address = await self._client(), pool.address()
        server = client.servers.get(address)
        if server is None:
            make = partial(self._make, **self._options | dict(address))
            server = client.servers[address] = _Server(make, *self._limits)
        return await server.exchange(packed, until)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Return the result of a function that blocks, from a thread of the running event loop.

        The loop's default threads are few, and other code needs them while calls wait for Redis.
        """
        client, run = await self._client(), copy_context().run
        return await asyncio.get_running_loop().run_in_executor(client.threads, run, function)

    async def _client(self) -> _LoopClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            for ended in [other for other in list(self._clients) if other.is_closed()]:
                self._clients.pop(ended, None)
            client = self._clients[loop] = _LoopClient()
            await client.close_with_loop()
        return client

    def close(self) -> None:
        """Close the connections of all loops, each on its own loop, after the calls in progress.

        The next call opens new ones. A loop that is not running closes its own when it next runs.
        """
        for loop in list(self._clients):
            client = self._clients.pop(loop, None)  # None: the thread of another loop has removed it
            if client is not None:
                with suppress(RuntimeError):  # a closed loop has closed its client
                    loop.call_soon_threadsafe(client.start_closing)


class _LoopClient:
    """Connections of one event loop, by the addresses of the servers, and its threads."""

    def __init__(self) -> None:
        self.servers: dict[tuple[tuple[str, Any], ...], _Server] = {}
        self.threads = ThreadPoolExecutor(MOST_CONNECTIONS, "delayq-loop")
        self._keeper = self._keep()
        self._closing: asyncio.Task[None] | None = None

    async def close_with_loop(self) -> None:
        """Arrange that all connections are closed when the event loop ends."""
        # An event loop that ends closes the asynchronous generators that were begun on it.
        await anext(self._keeper)

    def start_closing(self) -> None:
        """Begin to close all connections, on the running event loop."""
        self._closing = asyncio.get_running_loop().create_task(self._keeper.aclose())

    async def _keep(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self.threads.shutdown(wait=False)
            while self.servers:
                await self.servers.popitem()[1].close()


class _Server:
    """Connections of one event loop to one server.

    Args:
        make: makes a connection.
        seconds: time limit of an attempt; None = that of the call.
        connections: their greatest number.
        max_age: seconds after which a connection is replaced; None = never.
    """

    def __init__(self, make: Callable[[], Any], seconds: float | None, connections: int, max_age: float | None) -> None:
        self._make = make
        self._seconds = math.inf if seconds is None else seconds
        self._connections = connections
        self._max_age = max_age
        self._free = asyncio.Semaphore(connections)
        #: unused connections, each with the moment (monotonic) at which it is to be replaced
        self._idle: list[tuple[Any, float]] = []

    async def exchange(self, packed: bytes, until: float) -> Any:
        """Send a packed command, once, and return the reply; see :meth:`EventLoops.exchange`."""
        has_connection, clock = False, asyncio.get_running_loop().time
        end = clock() + until - time.monotonic()
        try:
            async with asyncio.timeout_at(end) as limit, self._free:
                has_connection = True
                limit.reschedule(min(end, clock() + self._seconds))
                return await self._exchange(packed)
        except TimeoutError as error:
            if has_connection:
                raise
            raise redis_errors.MaxConnectionsError(
                f"Too many calls: the {self._connections} connections of this event loop were in use by others; "
                "start fewer calls at the same time"
            ) from error

    async def _exchange(self, packed: bytes) -> Any:
        connection, old_at = self._idle.pop() if self._idle else (self._make(), 0.0)
        try:
            if not connection.is_connected or time.monotonic() >= old_at:
                await connection.disconnect()
                await connection.connect()
                old_at = end_of(self._max_age)
            await connection.send_packed_command(packed, False)
            return await connection.read_response()
        except BaseException as error:
            # Half a reply may be left on it. After READONLY a new connection finds the new master.
            if not isinstance(error, redis_errors.ResponseError) or isinstance(error, redis_errors.ReadOnlyError):
                await connection.disconnect(nowait=True)
            raise
        finally:
            self._idle.append((connection, old_at))

    async def close(self) -> None:
        """Close the connections when the calls in progress have ended."""
        for _ in range(self._connections):
            await self._free.acquire()
        for connection, _ in self._idle:
            await connection.disconnect()
