"""Asynchronous wait of a search: it uses no thread while it waits. A few shared threads call Redis."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from ..core.errors import QueueUnavailable
from .held import HeldJob, give_back
from .search import CheckResult, Search
from .waiter import LoopWaiter

T = TypeVar("T")
#: threads of a process that call Redis for waiting coroutines; a check takes less than a millisecond
_THREADS: Final = 8
#: seconds after its end for which a wait still expects a reply from Redis
_GRACE: Final = 5.0


def _new_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="delayq-vigil")


_pool = _new_pool()


class AsyncWait:
    """Asynchronous wait. Use an instance once, in one event loop.

    If it is cancelled while it waits, it returns no jobs: jobs reserved by a running check are released at once.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self._waiter: LoopWaiter | None = None

    async def run(self, give_up: float) -> list[HeldJob]:
        """Run the search. See :meth:`Search.run`."""
        search = self._search
        search.give_up = give_up
        try:
            async with asyncio.timeout(max(0.0, give_up - time.monotonic()) + _GRACE):
                return await self._run()
        except TimeoutError:
            raise QueueUnavailable("Redis did not answer before the wait was over; try again") from None

    def end(self) -> None:
        """Make the wait return now, with the jobs found so far. Called in the loop's own thread."""
        self._search.give_up = 0.0
        if self._waiter is not None:
            self._waiter.wake()

    async def _run(self) -> list[HeldJob]:
        search, coordinator = self._search, self._search.coordinator
        try:
            while not (result := await self._check()).over:
                if result.pause:
                    await asyncio.sleep(result.pause)
                    continue
                if self._waiter is None:
                    self._waiter = LoopWaiter(search.names)
                    coordinator.enter(self._waiter)
                while (seconds := search.rest(self._waiter)) is not None:
                    await self._waiter.sleep(seconds)
            return result.jobs
        finally:
            if self._waiter is not None and (hints := coordinator.withdraw(self._waiter)):
                in_thread(lambda: coordinator.put_back(hints))

    async def _check(self) -> CheckResult:
        future = in_thread(partial(self._search.check, self._waiter))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(_undo)
            raise


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Run a call in one of the threads. It must not use the database."""
    return _pool.submit(call)


def give_back_soon(jobs: Iterable[HeldJob]) -> None:
    """Release jobs that have no consumer any more. Any thread may call it; Redis is called in another one."""
    mine = list(jobs)
    if mine:
        in_thread(lambda: give_back(mine))


def _undo(future: Future[CheckResult]) -> None:
    if not future.cancelled() and future.exception() is None:
        give_back_soon(future.result().jobs)


def _forget() -> None:
    """Replace the thread pool in a forked child, which has none of its parent's threads."""
    global _pool
    _pool = _new_pool()


os.register_at_fork(after_in_child=_forget)
