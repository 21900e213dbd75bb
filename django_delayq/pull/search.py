"""Search of one reserve call: query the shards in turn, and wait if allowed, in a thread or in a coroutine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from ..core.errors import QueueUnavailable
from ..core.outcomes import Batch
from ..core.redis.faults import Backoff
from ..core.times import USUAL_TTR_MS
from . import limits
from .coordinator import Place, PullCoordinator, ReserveCall, Waiter
from .held import HeldJob, give_back

T = TypeVar("T")
#: threads of a process that call Redis for coroutines; a check takes less than a millisecond
_THREADS: Final = 8
#: seconds after its end for which an asynchronous wait still expects a reply from Redis
_GRACE: Final = 5.0
#: maximum consecutive reserves of one shard that return no job although work is due (expired or broken jobs)
_FRUITLESS: Final = 100
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


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check of the shards.

    Unless it is ``over``, another one may follow: after ``pause`` seconds, or, if that is 0, after a wait at the
    coordinator.
    """

    jobs: list[HeldJob]
    over: bool
    pause: float = 0.0


#: search in steps, which threads and coroutines carry out in their own ways: a check to call, whose result is sent
#: back; seconds to pause; or seconds to sleep unless a future is done before. It returns the jobs
Steps: TypeAlias = Generator[Callable[[], CheckResult] | float | tuple[Future[None], float], Any, list[HeldJob]]


class Search:
    """Search for jobs on behalf of one reserve call. Use an instance once, in one thread or one event loop.

    Args:
        coordinator: coordinator at which it waits.
        names: names of the queues.
        limit: most jobs.
        holder: who reserves them.
    """

    def __init__(self, coordinator: PullCoordinator, names: tuple[str, ...], limit: int, holder: Holder) -> None:
        self.coordinator = coordinator
        self.names = names
        #: end of the call (monotonic); it may be set to an earlier time at any moment
        self.give_up = 0.0
        self.waiter: Waiter | None = None
        self._limit = limit
        self._holder = holder
        self._turn = coordinator.turn(names)
        self._places: list[Place] = []
        self._everything = True
        self._pause = Backoff(cap=1.0)
        #: shard of a reserve whose reply was lost, and the request id that returns the same jobs again
        self._lost: tuple[Place, bytes] | None = None

    def steps(self, give_up: float) -> Steps:
        """Return the jobs found; none after ``give_up`` (monotonic). See :data:`Steps`.

        Raises:
            QueueUnavailable: Redis could not be reached, at the end.
        """
        self.give_up = give_up
        while True:
            result: CheckResult = yield self.check
            if result.over:
                return result.jobs
            if result.pause:
                yield result.pause
                continue
            if self.waiter is None:
                self.waiter = Waiter(self.names)
                self.coordinator.enter(self.waiter)
            while (seconds := self.coordinator.rest(self.waiter, self._places, self.give_up)) is not None:
                yield self.waiter.woken, seconds

    def run(self, give_up: float) -> list[HeldJob]:
        """Carry out the steps in this thread."""
        steps = self.steps(give_up)
        result: CheckResult | None = None
        try:
            while True:
                step = steps.send(result)
                result = None
                if isinstance(step, tuple):
                    wait([step[0]], step[1])
                elif isinstance(step, float):
                    time.sleep(step)
                else:
                    result = step()
        except StopIteration as end:
            jobs: list[HeldJob] = end.value
            return jobs
        finally:
            if hints := self.leave():
                self.coordinator.put_back(hints)

    async def run_async(self, give_up: float) -> list[HeldJob]:
        """Carry out the steps in a coroutine: no thread waits; a few shared ones call Redis.

        If it is cancelled while it waits, it returns no jobs: jobs reserved by a running check are released at once.
        """
        steps = self.steps(give_up)
        result: CheckResult | None = None
        try:
            async with asyncio.timeout(max(0.0, give_up - time.monotonic()) + _GRACE):
                while True:
                    step = steps.send(result)
                    result = None
                    if isinstance(step, tuple):
                        await asyncio.wait([asyncio.wrap_future(step[0])], timeout=step[1])
                    elif isinstance(step, float):
                        await asyncio.sleep(step)
                    else:
                        result = await _check_in_thread(step)
        except StopIteration as end:
            jobs: list[HeldJob] = end.value
            return jobs
        except TimeoutError:
            raise QueueUnavailable("Redis did not answer before the wait was over; try again") from None
        finally:
            if hints := self.leave():
                in_thread(lambda: self.coordinator.put_back(hints))

    def end(self) -> None:
        """Make an asynchronous wait return now, with the jobs found so far. Called in the loop's own thread."""
        self.give_up = 0.0
        if self.waiter is not None:
            self.waiter.wake()

    def leave(self) -> list[tuple[str, int]]:
        """End the wait without calling Redis. Return tokens for :meth:`.PullCoordinator.put_back`."""
        waiter, self.waiter = self.waiter, None
        return [] if waiter is None else self.coordinator.withdraw(waiter)

    def check(self) -> CheckResult:
        """Query the shards that may have jobs, all of them at first.

        Raises:
            QueueUnavailable: Redis could not be reached, and the time is over.
        """
        coordinator = self.coordinator
        coordinator.refresh()
        waiter = self.waiter  # a cancelled wait may leave meanwhile
        if waiter is not None:
            coordinator.listen(waiter)
        try:
            self._places = self._lost_first(coordinator.places(coordinator.open(self.names), self._turn))
            if self._everything:
                jobs = self._collect(map(coordinator.begin_reserve, self._places))
            else:
                jobs = self._collect(iter(partial(coordinator.begin_due_reserve, self._places), None))
            self._everything = False
        except QueueUnavailable as error:
            fault = coordinator.health.failed("a pulling thread", error)
            left = self.give_up - time.monotonic()
            if left <= 0:
                raise
            self._everything = True
            return CheckResult([], over=False, pause=min(left, self._pause.next(fault)))
        self._pause.reset()
        return CheckResult(jobs, over=bool(jobs) or time.monotonic() >= self.give_up)

    def _lost_first(self, places: list[Place]) -> list[Place]:
        """Put the shard whose reply was lost first: it may have reserved as many jobs as the call requests."""
        lost = self._lost and self._lost[0]
        if lost not in places:  # its epoch has ended, so it holds nothing
            self._lost = None
        return sorted(places, key=lambda place: place is not lost)

    def _collect(self, calls: Iterator[ReserveCall]) -> list[HeldJob]:
        collected: list[HeldJob] = []
        limit, size = self._limit, 0
        try:
            for call in calls:
                jobs = self._carry_out(call, limit - len(collected))
                collected += jobs
                size += sum(map(_size, jobs))
                if len(collected) >= limit or size >= MOST_BYTES:
                    break
        except QueueUnavailable:
            if not collected:  # jobs that are already reserved are returned to the caller
                raise
        except BaseException:
            give_back(collected)
            raise
        return collected

    def _carry_out(self, call: ReserveCall, room: int) -> list[HeldJob]:
        place, ttr_ms = call.place, self._holder.ttr_ms
        try:
            batch = self._reserve(place, room)
        except BaseException:
            self.coordinator.apply_failure(call)
            raise
        self.coordinator.apply_reply(call, batch.next_due_ms, batch.taken)
        return [HeldJob(place.queue, job, batch, ttr_ms=ttr_ms) for job in batch.jobs]

    def _reserve(self, place: Place, room: int) -> Batch:
        for _ in range(_FRUITLESS):
            batch = limits.reserve(place.queue, place.shard, room, partial(self._send, place))
            if batch.jobs or batch.next_due_ms is None or batch.next_due_ms > 0:
                break
        return batch

    def _send(self, place: Place, room: int, lanes: bytes) -> Batch:
        request = os.urandom(16) if self._lost is None else self._lost[1]
        self._lost = place, request
        batch = place.queue.reserve(place.shard, room, request=request, lanes=lanes, **self._holder.arguments())
        self._lost = None
        return batch


def _size(job: HeldJob) -> int:
    record = job.record
    return len(record.args) + sum(len(payload.data) for payload in record.payloads)


# -- threads that call Redis for waiting coroutines -------------------------------------------------------------------


def _new_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="delayq-pull")


_pool = _new_pool()


async def _check_in_thread(check: Callable[[], CheckResult]) -> CheckResult:
    future = in_thread(check)
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
