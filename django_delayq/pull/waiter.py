"""Those who wait at the hub, and their two ways to sleep: a thread of its own, or a coroutine on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable


class Waiter:
    """Somebody who waits for some queues.

    Attributes:
        names: the queues.
        sleeping: somebody may wake it.
        anew: what is known of the shards may be wrong, ask every one.
        called_at: when it told the wake thread last of what it waits for (monotonic).
    """

    __slots__ = ("anew", "called_at", "names", "sleeping")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.sleeping = False
        self.anew = False
        self.called_at = 0.0

    def hush(self) -> None:
        """It is about to sleep: wake-ups from before count no more. Under the hub's lock."""
        raise NotImplementedError

    def wake(self) -> None:
        """Ends its sleep, or the one that it is about to begin. From any thread, perhaps under the hub's lock."""
        raise NotImplementedError


class ThreadWaiter(Waiter):
    """A thread that has nothing else to do."""

    __slots__ = ("_woken",)

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._woken = threading.Event()

    def hush(self) -> None:
        """See :meth:`Waiter.hush`."""
        self._woken.clear()

    def wake(self) -> None:
        """See :meth:`Waiter.wake`."""
        self._woken.set()

    def sleep(self, seconds: float) -> None:
        """Until somebody wakes it, or the time is over."""
        self._woken.wait(seconds)


class LoopWaiter(Waiter):
    """A coroutine: while it sleeps it costs no thread. Made and put to sleep in the loop's own thread."""

    __slots__ = ("_loop", "_woken")

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def hush(self) -> None:
        """See :meth:`Waiter.hush`."""
        self._woken.clear()

    def wake(self) -> None:
        """See :meth:`Waiter.wake`."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody sleeps in it any more
            self._loop.call_soon_threadsafe(self._woken.set)

    async def sleep(self, seconds: float) -> None:
        """Until somebody wakes it, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
