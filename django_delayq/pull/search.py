"""One call for jobs, which queries the shards in turn and waits if allowed. For coroutines see :mod:`.async_wait`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ..core.errors import DelayQError, QueueUnavailable
from ..core.redis.faults import Backoff
from .coordinator import Place, PullCoordinator, Question
from .held import HeldJob
from .waiter import ThreadWaiter, Waiter

if TYPE_CHECKING:
    from ..core.replies import Batch

#: maximum consecutive reserves of one shard that return no job although work is due (expired or broken jobs)
_FRUITLESS: Final = 100
#: bytes of arguments after which no further shard is queried: all of them are in memory, more than once
MOST_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Terms:
    """Arguments of a call for jobs."""

    limit: int
    ttr_ms: int
    worker: str


@dataclass(frozen=True, slots=True)
class Looked:
    """Result of one check of the shards.

    Unless it is ``over``, another one may follow: after ``pause`` seconds, or after a wait at the hub if that is 0.
    """

    jobs: list[HeldJob]
    over: bool
    pause: float = 0.0


class Search:
    """One call for jobs. Use an instance once.

    Args:
        hub: hub at which it waits.
        names: names of the queues.
        terms: arguments of the call.
    """

    def __init__(self, hub: PullCoordinator, names: tuple[str, ...], terms: Terms) -> None:
        self.hub = hub
        self.names = names
        #: end of the call (monotonic); it may be set to an earlier time at any moment
        self.give_up = 0.0
        self._terms = terms
        self._turn = hub.turn(names)
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
            while not (looked := self.look(waiter)).over:
                if looked.pause:
                    time.sleep(looked.pause)
                    continue
                if waiter is None:
                    waiter = ThreadWaiter(self.names)
                    self.hub.enter(waiter)
                while (seconds := self.rest(waiter)) is not None:
                    waiter.sleep(seconds)
            return looked.jobs
        finally:
            if waiter is not None:
                self.hub.leave(waiter)

    def look(self, waiter: Waiter | None) -> Looked:
        """Query the shards that may have jobs, all of them at first.

        Raises:
            QueueUnavailable: Redis could not be reached, and the time is over.
        """
        hub = self.hub
        hub.refresh()
        if waiter is not None:
            hub.attend(waiter)
        try:
            self._places = self._lost_first(hub.places(hub.open(self.names), self._turn))
            if self._everything:
                jobs = self._collect(map(hub.ask, self._places))
            else:
                jobs = self._collect(iter(partial(hub.ask_due, self._places), None))
            self._everything = False
        except QueueUnavailable as error:
            fault = hub.health.failed("a pulling thread", error)
            left = self.give_up - time.monotonic()
            if left <= 0:
                raise
            self._everything = True
            return Looked([], over=False, pause=min(left, self._pause.next(fault)))
        self._pause.reset()
        return Looked(jobs, over=bool(jobs) or time.monotonic() >= self.give_up)

    def rest(self, waiter: Waiter) -> float | None:
        """Return the seconds for which ``waiter`` may sleep; None = check now."""
        return self.hub.rest(waiter, self._places, self.give_up)

    def _lost_first(self, places: list[Place]) -> list[Place]:
        """Put the shard whose reply was lost first: it may have handed out as many jobs as the call requests."""
        lost = self._lost and self._lost[0]
        if lost not in places:  # its epoch has ended, so it holds nothing
            self._lost = None
        return sorted(places, key=lambda place: place is not lost)

    def _collect(self, questions: Iterator[Question]) -> list[HeldJob]:
        found: list[HeldJob] = []
        limit, size = self._terms.limit, 0
        try:
            for question in questions:
                jobs = self._ask(question, limit - len(found))
                found += jobs
                size += sum(map(_size, jobs))
                if len(found) >= limit or size >= MOST_BYTES:
                    break
        except QueueUnavailable:
            if not found:  # jobs that are already reserved are returned to the caller
                raise
        except BaseException:
            with contextlib.suppress(DelayQError):
                for job in found:
                    job.release()
            raise
        return found

    def _ask(self, question: Question, room: int) -> list[HeldJob]:
        place, ttr_ms = question.place, self._terms.ttr_ms
        try:
            batch = self._reserve(place, room)
        except BaseException:
            self.hub.unanswered(question)
            raise
        self.hub.answered(question, batch.next_due_ms, batch.taken)
        return [HeldJob(place.queue, job, batch, ttr_ms=ttr_ms) for job in batch.jobs]

    def _reserve(self, place: Place, room: int) -> Batch:
        terms = self._terms
        for _ in range(_FRUITLESS):
            request = os.urandom(16) if self._lost is None else self._lost[1]
            self._lost = place, request
            batch = place.queue.reserve(
                place.shard, room, worker=terms.worker, request=request, ttr_ms=terms.ttr_ms, started=True
            )
            self._lost = None
            if batch.jobs or batch.next_due_ms is None or batch.next_due_ms > 0:
                break
        return batch


def _size(job: HeldJob) -> int:
    record = job.record
    return len(record.args) + sum(len(payload.data) for payload in record.payloads)
