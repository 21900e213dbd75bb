"""The client classes, composed of all their parts."""

from __future__ import annotations

from typing import Self, TypeVar

from .consuming import ConsumerVerbs
from .held import AsyncHeldJob, HeldJob
from .methods import Asynchronous, Blocking
from .monitoring import MonitorVerbs
from .operating import OperatorVerbs
from .producing import ProducerVerbs
from .transport import AsyncTransport, Transport
from .wire import Steps

T = TypeVar("T")


class Client(ProducerVerbs, ConsumerVerbs[HeldJob], OperatorVerbs, MonitorVerbs, Blocking):
    """Client of the HTTP API of django_delayq; see :class:`django_delayq.client.base.Base` for its arguments.

    It is thread-safe: each thread has its own connection, which is kept alive. Every method raises :class:`ApiError`,
    or a more specific subclass.
    """

    _held_class = HeldJob
    _transport_class = Transport
    _transport: Transport

    def _run(self, steps: Steps[T]) -> T:
        return self._transport.run(steps)

    def close(self) -> None:
        """Close this thread's connection. The client can still be used: it opens a new one."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(ProducerVerbs, ConsumerVerbs[AsyncHeldJob], OperatorVerbs, MonitorVerbs, Asynchronous):
    """Client of the HTTP API for asyncio, with the methods and arguments of :class:`Client`.

    Its methods are awaited; lists are iterated with ``async for``. Any number of tasks may share it. Each event loop
    has its own connections, which are kept alive.
    """

    _held_class = AsyncHeldJob
    _transport_class = AsyncTransport
    _transport: AsyncTransport

    async def _run(self, steps: Steps[T]) -> T:
        return await self._transport.run(steps)

    async def close(self) -> None:
        """Close the connections of this event loop. The client can still be used: it opens new ones."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
