"""Clients for event loops: one a loop, with one connection to each node that it calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis import exceptions as redis_errors

from .link import CallRetry, end_of
from .loop_link import LoopLink

if TYPE_CHECKING:
    from .deployments import Deployment, Place


class LoopClients:
    """Clients of one deployment by event loop. A loop's client is closed when the loop ends."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._clients: dict[asyncio.AbstractEventLoop, _LoopClient] = {}

    async def exchange(self, key: bytes, packed: bytes, until: float) -> Any:
        """Send a packed command from the running event loop and return the reply, with retries.

        Args:
            key: determines the node on a cluster.
            packed: the command, in wire format.
            until: end (monotonic) of the call: it limits every wait and every retry.

        Raises:
            MaxConnectionsError: too many calls of the loop were without a reply until then.
        """
        retry, failures = None, 0
        while True:
            try:
                client = self._client()
                if client.is_new:
                    await client.close_with_loop()
                return await client.link(self._deployment.place_of(key)).exchange(packed, until)
            except redis_errors.RedisError as error:
                if retry is None:
                    retry = CallRetry(self._deployment.options["retry"], self._deployment.limits.patience)
                    retry.until = until
                failures += 1
                pause = retry.pause(error, failures) if retry.retries(error) else None
                if pause is None:
                    raise
            await asyncio.sleep(pause)
            if self._deployment.cluster:
                await self._client().refresh(until)

    def close(self) -> None:
        """Close the clients of all loops, each on its own loop. The next command opens new connections.

        A loop that is not running closes its client when it next runs.
        """
        for loop in list(self._clients):
            client = self._clients.pop(loop, None)  # None: the thread of another loop has removed it
            if client is not None:
                with suppress(RuntimeError):  # a closed loop has closed its client
                    loop.call_soon_threadsafe(client.start_closing)

    def _client(self) -> _LoopClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            for ended in [other for other in list(self._clients) if other.is_closed()]:
                self._clients.pop(ended, None)
            client = self._clients[loop] = _LoopClient(self._deployment)
        return client


class _LoopClient:
    """Client of one event loop."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._links: dict[Place, LoopLink] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._keeper: AsyncGenerator[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def is_new(self) -> bool:
        """True until :meth:`close_with_loop` was called."""
        return self._keeper is None

    async def close_with_loop(self) -> None:
        """Arrange that all connections are closed when the event loop ends."""
        # An event loop that ends closes the asynchronous generators that were begun on it.
        self._keeper = self._keep()
        await anext(self._keeper)

    def link(self, place: Place) -> LoopLink:
        """Return the connection to a node."""
        link = self._links.get(place)
        if link is None or not link.is_usable:
            if link is not None:
                link.retire()
            limits, silence = self._deployment.limits, self._deployment.options["socket_timeout"]
            link = self._links[place] = LoopLink(self._deployment.loop_pool(place), silence, end_of(limits.max_age))
        return link

    async def refresh(self, until: float) -> None:
        """Read again which node of the cluster holds which keys, in a thread; calls at the same time share one."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        await asyncio.wait((self._refreshing,), timeout=max(0.0, until - time.monotonic()))

    def start_closing(self) -> None:
        """Begin :meth:`close` on the running event loop."""
        self._closing = asyncio.get_running_loop().create_task(self.close())

    async def close(self) -> None:
        """Close all connections."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.aclose()

    async def _refresh(self) -> None:
        await asyncio.to_thread(self._deployment.refresh)
        for place in self._links.keys() - self._deployment.places():
            self._links.pop(place).retire()

    async def _keep(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            while self._links:
                await self._links.popitem()[1].close()
