"""Search of one reserve call: query the shards in turn, and wait if allowed. For coroutines see :mod:`.async_wait`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from ..core.errors import QueueUnavailable
from ..core.outcomes import Batch
from ..core.redis.faults import Backoff
from ..core.times import USUAL_TTR_MS
from . import limits
from .coordinator import Place, PullCoordinator, ReserveCall
from .held import HeldJob, give_back
from .waiter import ThreadWaiter, Waiter

#: maximum consecutive reserves of one shard that return no job although work is due (expired or broken jobs)
_FRUITLESS: Final = 100
#: bytes of arguments after which no further shard is queried: all of them are in memory, more than once
MOST_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Terms:
    """Arguments of a reserve call: how many jobs, for how long, for whom."""

    limit: int
    #: None = that of each job, else the usual one
    ttr_ms: int | None
    worker: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check of the shards.

    Unless it is ``over``, another one may follow: after ``pause`` seconds, or, if that is 0, after a wait at the
    coordinator.
    """

    jobs: list[HeldJob]
    over: bool
    pause: float = 0.0


class Search:
    """Search for jobs on behalf of one reserve call. Use an instance once.

    Args:
        coordinator: coordinator at which it waits.
        names: names of the queues.
        terms: arguments of the call.
    """

    def __init__(self, coordinator: PullCoordinator, names: tuple[str, ...], terms: Terms) -> None:
        self.coordinator = coordinator
        self.names = names
        #: end of the call (monotonic); it may be set to an earlier time at any moment
        self.give_up = 0.0
        self._terms = terms
        self._turn = coordinator.turn(names)
        self._places: list[Place] = []
        self._everything = True
        self._pause = Backoff(cap=1.0)
        #: shard of a reserve whose reply was lost, and the request id that returns the same jobs again
        self._lost: tuple[Place, bytes] | None = None

    def run(self, give_up: float) -> list[HeldJob]:
        """Return the jobs found; none after ``give_up`` (monotonic).

        Raises:
            QueueUnavailable: Redis could not be reached, at the end.
        """
        self.give_up = give_up
        waiter: ThreadWaiter | None = None
        try:
            while not (result := self.check(waiter)).over:
                if result.pause:
                    time.sleep(result.pause)
                    continue
                if waiter is None:
                    waiter = ThreadWaiter(self.names)
                    self.coordinator.enter(waiter)
                while (seconds := self.rest(waiter)) is not None:
                    waiter.sleep(seconds)
            return result.jobs
        finally:
            if waiter is not None:
                self.coordinator.leave(waiter)

    def check(self, waiter: Waiter | None) -> CheckResult:
        """Query the shards that may have jobs, all of them at first.

        Raises:
            QueueUnavailable: Redis could not be reached, and the time is over.
        """
        coordinator = self.coordinator
        coordinator.refresh()
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

    def rest(self, waiter: Waiter) -> float | None:
        """Return the seconds for which ``waiter`` may sleep; None = check now."""
        return self.coordinator.rest(waiter, self._places, self.give_up)

    def _lost_first(self, places: list[Place]) -> list[Place]:
        """Put the shard whose reply was lost first: it may have reserved as many jobs as the call requests."""
        lost = self._lost and self._lost[0]
        if lost not in places:  # its epoch has ended, so it holds nothing
            self._lost = None
        return sorted(places, key=lambda place: place is not lost)

    def _collect(self, calls: Iterator[ReserveCall]) -> list[HeldJob]:
        collected: list[HeldJob] = []
        limit, size = self._terms.limit, 0
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
        place, ttr_ms = call.place, self._terms.ttr_ms
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
        terms = self._terms
        request = os.urandom(16) if self._lost is None else self._lost[1]
        self._lost = place, request
        batch = place.queue.reserve(
            place.shard,
            room,
            worker=terms.worker,
            request=request,
            ttr_ms=terms.ttr_ms or USUAL_TTR_MS,
            started=True,
            prefer_own_ttr=terms.ttr_ms is None,
            lanes=lanes,
        )
        self._lost = None
        return batch


def _size(job: HeldJob) -> int:
    record = job.record
    return len(record.args) + sum(len(payload.data) for payload in record.payloads)
