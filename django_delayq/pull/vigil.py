"""A search that waits in a coroutine: while it does it costs no thread. Redis is asked by one of a few."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from ..core.errors import QueueUnavailable
from .held import HeldJob, give_back
from .search import Looked, Search
from .waiter import LoopWaiter

T = TypeVar("T")
#: threads of a process that ask Redis for those who wait; a look takes them less than a millisecond
_THREADS: Final = 8
#: seconds after its end for which a wait still hopes for an answer of Redis
_GRACE: Final = 5.0


def _new_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="delayq-vigil")


_pool = _new_pool()


class Vigil:
    """Use once, in one event loop.

    Who is cancelled while it waits gets nothing: what a look under way brings then goes back to its queue at once.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self._waiter: LoopWaiter | None = None

    async def run(self, give_up: float) -> list[HeldJob]:
        """See :meth:`Search.run`."""
        search = self._search
        search.give_up = give_up
        try:
            async with asyncio.timeout(max(0.0, give_up - time.monotonic()) + _GRACE):
                return await self._run()
        except TimeoutError:
            raise QueueUnavailable("Redis did not answer before the wait was over; try again") from None

    def end(self) -> None:
        """It is to come back now, with what there is. In the loop's own thread."""
        self._search.give_up = 0.0
        if self._waiter is not None:
            self._waiter.wake()

    async def _run(self) -> list[HeldJob]:
        search, hub = self._search, self._search.hub
        try:
            while not (looked := await self._look()).over:
                if looked.pause:
                    await asyncio.sleep(looked.pause)
                    continue
                if self._waiter is None:
                    self._waiter = LoopWaiter(search.names)
                    hub.enter(self._waiter)
                while (step := search.decide(self._waiter)) is not None:
                    if step.chore is not None:
                        # Shielded: others rely on it that what was taken on is done.
                        await asyncio.shield(asyncio.wrap_future(in_thread(step.chore)))
                    else:
                        await self._waiter.sleep(step.seconds or 0.0)
            return looked.jobs
        finally:
            if self._waiter is not None and (hints := hub.withdraw(self._waiter)):
                in_thread(lambda: hub.put_back(hints))

    async def _look(self) -> Looked:
        looking = in_thread(self._search.look)
        try:
            return await asyncio.wrap_future(looking)
        except asyncio.CancelledError:
            looking.add_done_callback(_undo)
            raise


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Has one of the threads make a call, which must not use the database."""
    return _pool.submit(call)


def give_back_soon(jobs: Iterable[HeldJob]) -> None:
    """Nobody is there any more to work on these jobs. From any thread; Redis is asked in another one."""
    mine = list(jobs)
    if mine:
        in_thread(lambda: give_back(mine))


def _undo(looking: Future[Looked]) -> None:
    if not looking.cancelled() and looking.exception() is None:
        give_back_soon(looking.result().jobs)


def _forget() -> None:
    """A forked child has none of the threads of its parent."""
    global _pool
    _pool = _new_pool()


os.register_at_fork(after_in_child=_forget)
