"""Search of one reserve call: query the shards in turn, and wait if allowed, in a thread or in a coroutine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

from ..core.errors import QueueUnavailable
from ..core.outcomes import Batch
from ..core.redis.faults import Backoff
from ..core.times import USUAL_TTR_MS
from ..worker.shards import ShardState
from . import limits
from .coordinator import PullCoordinator, ReserveCall, Waiter
from .held import HeldJob, give_back

T = TypeVar("T")
#: threads of a process that call Redis for coroutines; a check takes less than a millisecond
_THREADS: Final = 8
#: seconds after its end for which an asynchronous wait still expects a reply from Redis
_GRACE: Final = 5.0
#: bytes of arguments after which no further shard is queried: all of them are in memory, more than once
MOST_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of the jobs of a reserve.

    Attributes:
        ttr_ms: length of its leases; None = that of each job, else :data:`USUAL_TTR_MS`.
    """

    worker: str
    ttr_ms: int | None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a reserve of ``core``."""
        ttr_ms, own = self.ttr_ms or USUAL_TTR_MS, self.ttr_ms is None
        return {"worker": self.worker, "ttr_ms": ttr_ms, "prefer_own_ttr": own, "started": True}


class Search(Waiter):
    """Search for jobs on behalf of one reserve call. Use an instance once, in one thread or one event loop.

    It looks, and waits between two looks: until it is woken, or for as long as the look said.

    Args:
        coordinator: coordinator at which it waits.
        names: names of the queues.
        limit: most jobs.
        holder: who reserves them.
    """

    def __init__(self, coordinator: PullCoordinator, names: tuple[str, ...], limit: int, holder: Holder) -> None:
        super().__init__(names)
        self.coordinator = coordinator
        #: end of the call (monotonic); it may be set to an earlier time at any moment
        self.give_up = 0.0
        self.jobs: list[HeldJob] = []
        self._queues = names
        self._limit = limit
        self._holder = holder
        self._turn = coordinator.turn(names)
        self._everything = True
        self._pause = Backoff(cap=1.0)
        #: shard of a reserve whose reply was lost, and the request id that returns the same jobs again
        self._lost: tuple[ShardState, bytes] | None = None

    def run(self, give_up: float) -> list[HeldJob]:
        """Search in this thread. Return the jobs found; none after ``give_up`` (monotonic).

        Raises:
            QueueUnavailable: Redis could not be reached, at the end.
        """
        self.give_up = give_up
        try:
            while (seconds := self._look()) is not None:
                wait([self.woken], seconds)
        finally:
            self.coordinator.put_back(self.coordinator.withdraw(self))
        return self.jobs

    async def run_async(self, give_up: float) -> list[HeldJob]:
        """Search in a coroutine, like :meth:`run`: no thread waits; a few shared ones call Redis.

        If it is cancelled, it returns no jobs: jobs reserved by a running look are released at once.
        """
        self.give_up = give_up
        try:
            async with asyncio.timeout(max(0.0, give_up - time.monotonic()) + _GRACE):
                while (seconds := await self._look_in_thread()) is not None:
                    await asyncio.wait([asyncio.wrap_future(self.woken)], timeout=seconds)
        except TimeoutError:
            raise QueueUnavailable("Redis did not answer before the wait was over; try again") from None
        finally:
            if hints := self.coordinator.withdraw(self):
                in_thread(lambda: self.coordinator.put_back(hints))
        return self.jobs

    def end(self) -> None:
        """Make an asynchronous wait return now, with the jobs found so far."""
        self.give_up = 0.0
        self.wake()

    async def _look_in_thread(self) -> float | None:
        look = in_thread(self._look)
        try:
            return await asyncio.wrap_future(look)
        except asyncio.CancelledError:
            look.add_done_callback(lambda _: give_back_soon(self.jobs))
            raise

    def _look(self) -> float | None:
        """Query the shards that may have jobs, all of them at first.

        Return the seconds for which to wait before the next look; None = the search is over.
        """
        coordinator = self.coordinator
        seconds = coordinator.rest(self, self.give_up)
        if seconds is not None:
            return seconds
        coordinator.listen(self)
        try:
            coordinator.open(self._queues)
            places = self._lost_first(coordinator.places(self._queues, self._turn))
            self.jobs = self._collect(self._calls(places))
            self._everything = False
        except QueueUnavailable as error:
            fault = coordinator.health.failed("a pulling thread", error)
            left = self.give_up - time.monotonic()
            if left <= 0:
                raise
            self._everything = self.must_check = True
            self.woken = Future()
            return min(left, self._pause.next(fault))
        self._pause.reset()
        if self.jobs or time.monotonic() >= self.give_up:
            return None
        coordinator.enter(self)
        return 0.0

    def _calls(self, places: Sequence[ShardState]) -> Iterator[ReserveCall]:
        """Start reserves of those shards that are due, at first of all shards."""
        if self._everything:
            yield from map(self.coordinator.begin_reserve, places)
        yield from iter(partial(self.coordinator.begin_due_reserve, places), None)

    def _lost_first(self, places: list[ShardState]) -> list[ShardState]:
        """Put the shard whose reply was lost first: it may have reserved as many jobs as the call requests."""
        lost = self._lost and self._lost[0]
        if lost not in places:  # its epoch has ended, so it holds nothing
            self._lost = None
        return sorted(places, key=lambda place: place is not lost)

    def _collect(self, calls: Iterable[ReserveCall]) -> list[HeldJob]:
        collected: list[HeldJob] = []
        size = 0
        try:
            for place, number in calls:
                try:
                    room, send = self._limit - len(collected), partial(self._send, place)
                    batch = limits.reserve(place.queue, place.shard, room, send)
                except BaseException:
                    self.coordinator.apply_failure(place)
                    raise
                self.coordinator.apply_reply(place, number, batch.next_due_ms, batch.taken)
                jobs = [HeldJob(place.queue, job, batch, ttr_ms=self._holder.ttr_ms) for job in batch.jobs]
                collected += jobs
                size += sum(map(_size, jobs))
                if len(collected) >= self._limit or size >= MOST_BYTES:
                    break
        except QueueUnavailable:
            if not collected:  # jobs that are already reserved are returned to the caller
                raise
        except BaseException:
            give_back(collected)
            raise
        return collected

    def _send(self, place: ShardState, room: int, lanes: bytes) -> Batch:
        request = os.urandom(16) if self._lost is None else self._lost[1]
        self._lost = place, request
        batch = place.queue.reserve(place.shard, room, request=request, lanes=lanes, **self._holder.arguments())
        self._lost = None
        return batch


def _size(job: HeldJob) -> int:
    record = job.record
    return len(record.args) + sum(len(payload.data) for payload in record.payloads)


# -- threads that call Redis for waiting coroutines -------------------------------------------------------------------


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="delayq-pull")


# A forked child makes its own: it has none of its parent's threads.
os.register_at_fork(after_in_child=_pool.cache_clear)


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Run a call in one of the threads. It must not use the database."""
    return _pool().submit(call)


def give_back_soon(jobs: Iterable[HeldJob]) -> None:
    """Release jobs that have no consumer any more. Any thread may call it; Redis is called in another one."""
    mine = list(jobs)
    if mine:
        in_thread(lambda: give_back(mine))
