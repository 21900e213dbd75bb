"""Clients for event loops: one a loop, with as many connections as a pool for threads may have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from redis import exceptions as redis_errors

from .link import CallRetry, end_of

if TYPE_CHECKING:
    from .sources import Source


class LoopClients:
    """Clients of one deployment by event loop. A loop's client is closed when the loop ends.

    Args:
        source: the deployment.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._clients: dict[asyncio.AbstractEventLoop, _LoopClient] = {}

    async def execute(self, until: float, *words: Any) -> Any:
        """Send a command from the running event loop and return the reply, with retries.

        Args:
            until: end (monotonic) of the call: it limits the wait for a connection, connecting and every retry.

        Raises:
            MaxConnectionsError: all connections of the loop were in use until then.
        """
        retry, failures = CallRetry(self._source.options["retry"], self._source.limits.patience), 0
        retry.until = until
        while True:
            try:
                return await self._client().execute(until, *words)
            except redis_errors.RedisError as error:
                failures += 1
                pause = retry.pause(error, failures) if retry.retries(error) else None
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    def close(self) -> None:
        """Close the clients of all loops, each on its own loop. The next command opens new connections."""
        while self._clients:
            loop, client = self._clients.popitem()
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(client.close(), loop)

    def _client(self) -> _LoopClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None or time.monotonic() >= client.old_at:
            if client is not None:
                client.retire()
            for ended in [other for other in self._clients if other.is_closed()]:
                self._clients.pop(ended, None)
            client = self._clients[loop] = _LoopClient(self._source)
        return client


class _LoopClient:
    """Client of one event loop, and the limit of its connections."""

    def __init__(self, source: Source) -> None:
        self._client: Any = source.loop_client()
        self._most = source.limits.connections
        self._free = asyncio.Semaphore(self._most)
        self._calls = 0
        self._is_retired = False
        self._closing: asyncio.Task[None] | None = None
        self._keeper: AsyncGenerator[None] | None = None
        #: moment (monotonic) at which it is to be replaced
        self.old_at = end_of(source.limits.max_age)

    async def execute(self, until: float, *words: Any) -> Any:
        """Send a command, once, and return the reply. It ends at ``until`` (monotonic)."""
        if self._keeper is None:
            # An event loop that ends closes the asynchronous generators that were begun on it, and thus this client.
            self._keeper = self._close_with_loop()
            await anext(self._keeper)
        self._calls += 1
        try:
            return await self._execute_within(until - time.monotonic(), *words)
        finally:
            self._calls -= 1
            if self._is_retired and not self._calls:
                await self.close()

    def retire(self) -> None:
        """Close the client as soon as no call uses it."""
        self._is_retired = True
        if not self._calls:
            self._closing = asyncio.get_running_loop().create_task(self.close())

    async def close(self) -> None:
        """Close all connections."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.aclose()

    async def _execute_within(self, seconds: float, *words: Any) -> Any:
        is_sent = False
        try:
            async with asyncio.timeout(None if seconds == float("inf") else seconds), self._free:
                is_sent = True
                return await self._client.execute_command(*words)
        except TimeoutError as error:
            if is_sent:
                raise redis_errors.TimeoutError("no answer within the time that a call may take") from error
            raise redis_errors.MaxConnectionsError(
                f"Too many connections: all {self._most} of this event loop were in use; "
                f"start fewer calls at the same time or raise MAX_CONNECTIONS"
            ) from error

    async def _close_with_loop(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self._client.aclose()
