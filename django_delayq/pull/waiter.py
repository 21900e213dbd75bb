"""Waiters at the coordinator, with two ways to sleep: a blocked thread, or a coroutine on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable


class Waiter:
    """Waiter for some queues.

    Attributes:
        names: names of the queues.
        sleeping: True if it may be woken.
        must_check: True if the shards have to be checked although none of the known ones is due.
        called_at: time of its last call to the wake listener (monotonic).
    """

    __slots__ = ("called_at", "must_check", "names", "sleeping")
    _woken: threading.Event | asyncio.Event

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.sleeping = False
        self.must_check = False
        self.called_at = 0.0

    def prepare(self) -> None:
        """Prepare to sleep: earlier wake-ups no longer count. Called under the coordinator's lock."""
        self._woken.clear()

    def wake(self) -> None:
        """End the current sleep, or the one about to begin.

        Any thread may call it, also while it holds the coordinator's lock.
        """
        raise NotImplementedError


class ThreadWaiter(Waiter):
    """Waiter that blocks its thread."""

    __slots__ = ("_woken",)

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._woken: threading.Event = threading.Event()

    def wake(self) -> None:
        """End the sleep. See :meth:`Waiter.wake`."""
        self._woken.set()

    def sleep(self, seconds: float) -> None:
        """Sleep until woken, or until the time is over."""
        self._woken.wait(seconds)


class LoopWaiter(Waiter):
    """Waiter in a coroutine, which uses no thread while it sleeps. Created and used in the loop's own thread."""

    __slots__ = ("_loop", "_woken")

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Event = asyncio.Event()

    def wake(self) -> None:
        """End the sleep. See :meth:`Waiter.wake`."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no waiter sleeps in it
            self._loop.call_soon_threadsafe(self._woken.set)

    async def sleep(self, seconds: float) -> None:
        """Sleep until woken, or until the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
