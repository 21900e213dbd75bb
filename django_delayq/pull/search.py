"""One call of ``Queue.reserve()``: asks the shards in turn, and waits where it may."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ..core.errors import DelayQError, QueueUnavailable
from ..core.faults import Backoff
from .held import HeldJob
from .hub import Hub, Place, Question

if TYPE_CHECKING:
    from ..core.shards import Batch

#: reserves of one shard in a row that may bring nothing and leave due work: what was there had expired or was broken
_FRUITLESS: Final = 100


@dataclass(frozen=True, slots=True)
class Terms:
    """What a call asks for."""

    limit: int
    ttr_ms: int
    worker: str


class Search:
    """Use once.

    Args:
        hub: where it waits.
        names: the queues.
        terms: what is asked for.
    """

    def __init__(self, hub: Hub, names: tuple[str, ...], terms: Terms) -> None:
        self._hub = hub
        self._names = names
        self._terms = terms
        self._turn = hub.turn(names)
        #: of reserves whose reply was lost: the request id, under which the same jobs are handed out again, and when it
        #: was first sent
        self._requests: dict[Place, tuple[bytes, float]] = {}

    def run(self, give_up: float) -> list[HeldJob]:
        """The jobs found; none after ``give_up`` (monotonic).

        Raises:
            QueueUnavailable: Redis could not be reached, at the end.
        """
        hub, waiter = self._hub, None
        everything = True
        pause = Backoff(cap=1.0)
        try:
            while True:
                hub.keep_house()
                try:
                    places = hub.places(hub.open(self._names), self._turn)
                    if everything:
                        jobs = self._collect(map(hub.ask, places))
                    else:
                        jobs = self._collect(iter(partial(hub.ask_due, places), None))
                except QueueUnavailable as error:
                    fault = hub.weather.storm("a pulling thread", error)
                    left = give_up - time.monotonic()
                    if left <= 0:
                        raise
                    time.sleep(min(left, pause.next(fault)))
                    everything = True
                    continue
                pause.reset()
                if jobs or time.monotonic() >= give_up:
                    return jobs
                if waiter is None:
                    waiter = hub.enter(self._names)
                everything = hub.wait(waiter, places, give_up)
        finally:
            if waiter is not None:
                hub.leave(waiter)

    def _collect(self, questions: Iterator[Question]) -> list[HeldJob]:
        found: list[HeldJob] = []
        limit = self._terms.limit
        try:
            for question in questions:
                found += self._ask(question, limit - len(found))
                if len(found) >= limit:
                    break
        except QueueUnavailable:
            if not found:  # what is in hand goes to the caller
                raise
        except BaseException:
            with contextlib.suppress(DelayQError):
                for job in found:
                    job.release()
            raise
        return found

    def _ask(self, question: Question, room: int) -> list[HeldJob]:
        place, terms = question.place, self._terms
        try:
            batch, asked_at = self._reserve(place, room)
        except BaseException:
            self._hub.unanswered(question)
            raise
        self._hub.answered(question, batch.next_due_ms, batch.taken)
        taken_ms = batch.now_ms - (time.monotonic() - asked_at) * 1000  # the lease began when it was first asked for
        return [
            HeldJob(place.queue, job, asked_at=asked_at, taken_ms=taken_ms, ttr_ms=terms.ttr_ms) for job in batch.jobs
        ]

    def _reserve(self, place: Place, room: int) -> tuple[Batch, float]:
        terms = self._terms
        for _ in range(_FRUITLESS):
            request, asked_at = self._requests.setdefault(place, (os.urandom(16), time.monotonic()))
            batch = place.queue.reserve(place.number, room, worker=terms.worker, request=request,
                                        ttr_ms=terms.ttr_ms, started=True)  # fmt: skip
            del self._requests[place]
            if batch.jobs or batch.next_due_ms is None or batch.next_due_ms > 0:
                break
        return batch, asked_at
