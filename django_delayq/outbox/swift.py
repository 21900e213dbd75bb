"""After a commit, when a request waits: Redis is told with little patience, or left to the relay.

What belongs together is claimed with one UPDATE, sent in one round trip, and noted with one more UPDATE. Redis is given
a deadline on its own clock before the claim ends, so that a process that slept cannot do what somebody else has done,
or undone, meanwhile. A row that was changed while it was on its way (cancelled, rescheduled) is put right at once.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary

from django.db import DatabaseError

from .. import connections
from ..core.errors import DelayQError, Misconfigured, QueueFull, QueuePaused, QueueUnavailable
from ..core.job import NewJob
from ..core.records.frames import generation_of
from ..worker.current import running
from . import rows
from .breaker import Breaker

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.broker import Broker
    from ..core.queue import Queue

#: outcome of a job whose row is there and which Redis does not have yet, as far as is known
OUTBOX: Final = "outbox"
#: outcomes by which Redis has a job
TAKEN: Final = ("created", "merged", "replaced", "gated")
#: outcomes after which it will never take it
REFUSED: Final = ("taken", "exists")
#: outcomes after which it may take it later
LATER: Final = ("full", "paused")
#: outcomes of jobs of which nothing is to be done any more
_OVER: Final = (*REFUSED, "ignored")
#: ms between the deadline and the end of the claim: for clocks that do not run alike
MARGIN: Final = 250.0
#: seconds after which Redis's clock is looked at again
CLOCK_AGE: Final = 60.0

logger: Final = logging.getLogger("django_delayq.outbox")
T = TypeVar("T")


class Clock:
    """Redis's clock, as seen from ``time.monotonic()``; never ahead of it."""

    __slots__ = ("_asked_at", "_behind_ms")

    def __init__(self) -> None:
        self._asked_at = float("-inf")
        self._behind_ms = 0.0

    def at(self, moment: float, broker: Broker) -> float:
        """Redis's time in ms at a moment of ``time.monotonic()``."""
        if time.monotonic() - self._asked_at > CLOCK_AGE:
            told = broker.now_ms()
            self._asked_at = time.monotonic()
            self._behind_ms = told - self._asked_at * 1000
        return moment * 1000 + self._behind_ms

    def forget(self) -> None:
        """Redis's clock was changed, or it is another Redis."""
        self._asked_at = float("-inf")


class Haste:
    """What a process knows of the Redis that it asks in a hurry."""

    __slots__ = ("__weakref__", "breaker", "clock")

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.clock = Clock()


_known: Final[WeakKeyDictionary[Broker, Haste]] = WeakKeyDictionary()
_lock: Final = threading.Lock()


def haste(broker: Broker) -> Haste:
    """What is known of this broker's Redis."""
    with _lock:
        return _known.setdefault(broker, Haste())


def ask(call: Callable[[DjangoBroker], T], *, kept: bool = False) -> T:
    """``call`` with the broker of those who are in a hurry: requests. A job that runs has time, unless nothing depends
    on it.

    Arguments:
        kept: the database has it, too, so the relay will tell Redis what is not told now.

    Raises:
        QueueUnavailable: also at once, if Redis did not answer a moment ago.
    """
    if not kept and running.get() is not None:
        return patiently(call)
    broker = connections.swift_broker()
    breaker = haste(broker).breaker
    if not breaker.allows():
        raise QueueUnavailable(
            "Redis did not answer a moment ago, so it was not asked; this is tried again after a few seconds"
        )
    try:
        answer = call(broker)
    except QueueUnavailable as error:
        # A paused queue is an answer, too.
        breaker.succeeded() if isinstance(error, QueuePaused) else breaker.failed()
        raise
    except DelayQError:
        breaker.succeeded()
        raise
    breaker.succeeded()
    return answer


def patiently(call: Callable[[DjangoBroker], T]) -> T:
    """``call`` with the process's broker, for who would rather wait than go without an answer."""
    return call(connections.broker())


def deadline(broker: DjangoBroker, claim: Callable[[], object]) -> float:
    """Claims rows (``claim()``) for :data:`rows.CLAIM` seconds, and says until when Redis may be told: ms, its clock.

    Raises:
        QueueUnavailable: Redis is away; nothing was claimed.
    """
    clock = haste(broker).clock
    clock.at(0, broker)
    until = time.monotonic() + rows.CLAIM
    claim()
    return clock.at(until, broker) - MARGIN


@dataclass(slots=True, eq=False)
class Outgoing:
    """A job on its way to Redis.

    Attributes:
        queue: the queue's name.
        new: the job.
        asked_at: when it was asked for (``time.monotonic()``); the delay of a job without a row counts from then on.
        key: the key of its row; None for a job that has none.
    """

    queue: str
    new: NewJob
    asked_at: float
    key: uuid.UUID | None = None

    def packed(self, row: rows.Claimed | None, now: float) -> NewJob:
        """The job as it is to be sent at ``now`` (``time.monotonic()``, the same for all that travel together).

        The due time is fixed at the call, so the wait for the commit is a part of the delay.
        """
        new = self.new
        if row is not None:
            when = row.due.after(now - row.read_at)
            new.due_ms, new.delay_ms = when["due_ms"], when["delay_ms"]
        elif new.delay_ms:
            new.delay_ms = max(0, new.delay_ms - int((now - self.asked_at) * 1000))
            self.asked_at = now
        return new


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a job: an outcome of ``Queue.schedule_many``, "outbox" or "not_sent", and why it is not there."""

    outcome: str
    error: Exception | None = None


def send(alias: str, jobs: Sequence[Outgoing]) -> list[Result]:
    """Sends jobs in their order, one round trip for all that go to one queue one after the other.

    Arguments:
        alias: the database of their rows; what was written there is committed.
    """
    results: list[Result] = []
    for _, run in groupby(jobs, key=lambda job: job.queue):
        for chunk in rows.chunks(run, rows.TOGETHER):
            results += _Consignment(alias, chunk).send()
    return results


class _Consignment:
    """Jobs that travel together to one queue."""

    def __init__(self, alias: str, jobs: Sequence[Outgoing]) -> None:
        self.alias = alias
        self.jobs = jobs
        self.queue = jobs[0].queue
        self.keys = [job.key for job in jobs if job.key is not None]
        self.results: dict[int, Result] = {}
        self.token = uuid.uuid4()
        self.held: dict[uuid.UUID, rows.Claimed] = {}
        self.until = 0.0

    def send(self) -> list[Result]:
        """What became of each."""
        try:
            ask(self._go, kept=len(self.keys) == len(self.jobs))
        except Exception as error:
            for place, job in enumerate(self.jobs):
                lost = Result("not_sent", error) if job.key is None else Result(OUTBOX)
                self.results.setdefault(place, lost)
            if not isinstance(error, DelayQError):
                logger.exception("jobs of queue %s were not sent after the commit", self.queue)
        return [self.results[place] for place in range(len(self.jobs))]

    def _go(self, broker: DjangoBroker) -> None:
        deadline = self._claim(broker) if self.keys else None
        going = [place for place in range(len(self.jobs)) if place not in self.results]
        if not going:
            return
        live = broker.queue(self.queue)
        try:
            self._tell(live, going, deadline, broker)
        except (QueueFull, QueuePaused, Misconfigured):
            self._note(rows.release, list(self.held))  # surely not taken
            raise
        if self.held:
            self._settle(live)

    # -- the rows before -----------------------------------------------------------------------------------------------

    def _claim(self, broker: DjangoBroker) -> float:
        """Takes the rows; jobs whose rows are not ours have their results afterwards."""
        clock = haste(broker).clock
        clock.at(0, broker)  # a Redis that is away is noticed here, before anything was claimed
        self.until = time.monotonic() + rows.CLAIM
        try:
            ordered = any(job.key is not None and not job.new.fresh for job in self.jobs)
            self.held = rows.claim(self.alias, self.token, self.keys, ordered=ordered)
            missing = [key for key in self.keys if key not in self.held]
            states = rows.states(self.alias, missing) if missing else {}
        except DatabaseError as error:
            logger.warning("the outbox of database %s cannot be used after the commit: %s", self.alias, error)
            self.held, states = {}, dict.fromkeys(self.keys, "unsent")
        for place, job in enumerate(self.jobs):
            if job.key is not None and job.key not in self.held:
                self.results[place] = Result(_of_state(states.get(job.key)))
        return clock.at(self.until, broker) - MARGIN

    # -- Redis ---------------------------------------------------------------------------------------------------------

    def _tell(self, live: Queue, going: list[int], deadline: float | None, broker: DjangoBroker) -> None:
        late = self._call(live, going, deadline)
        if late:
            haste(broker).clock.forget()
            if time.monotonic() < self.until:
                late = self._call(live, late, haste(broker).clock.at(self.until, broker) - MARGIN)
        plain = [place for place in late if self.jobs[place].key is None]
        if plain:  # which have no deadline of their own
            self._call(live, plain, None)
        for place in late:
            self.results.setdefault(place, Result(OUTBOX))

    def _call(self, live: Queue, going: list[int], deadline: float | None) -> list[int]:
        """One call; returns the places of the jobs for which it came too late."""
        jobs, now = [self.jobs[place] for place in going], time.monotonic()
        news = [job.packed(self.held.get(job.key) if job.key is not None else None, now) for job in jobs]
        if len(news) == 1 and deadline is None:
            self.results[going[0]] = _one(live, news[0])
            return []
        late = []
        for place, new, outcome in zip(going, news, live.schedule_many(news, not_after_ms=deadline), strict=True):
            if outcome == "late":
                late.append(place)
            else:
                self.results[place] = self._result(live, new, outcome, durable=self.jobs[place].key is not None)
        return late

    def _result(self, live: Queue, new: NewJob, outcome: str, *, durable: bool) -> Result:
        if outcome == "known":  # a relay was faster
            return Result("created")
        if outcome in REFUSED or (outcome in LATER and not durable):
            return Result(outcome, live.refusal(outcome, new))
        return Result(OUTBOX if outcome in LATER else outcome)

    # -- the rows after ------------------------------------------------------------------------------------------------

    def _settle(self, live: Queue) -> None:
        fates: dict[str, list[uuid.UUID]] = {"taken": [], "over": [], "left": []}
        for place, job in enumerate(self.jobs):
            if job.key in self.held and job.key is not None:
                outcome = self.results[place].outcome
                fates["taken" if outcome in TAKEN else "over" if outcome in _OVER else "left"].append(job.key)
        self._note(rows.drop, fates["over"])
        self._note(rows.release, fates["left"])
        self._note(self._sent, fates["taken"], live)

    def _sent(self, alias: str, token: uuid.UUID, keys: Sequence[uuid.UUID], live: Queue) -> None:
        if rows.sent(alias, token, keys) == len(keys):
            return
        # Somebody changed them meanwhile, and left it to us, who had them in hand, to see to it.
        changed = rows.claimed(alias, token, keys)
        for job in self.jobs:
            row = changed.get(job.key) if job.key is not None else None
            if row is None or job.key is None:
                continue
            if row.state == "cancelled":
                not_after = haste(live.broker).clock.at(self.until, live.broker) - MARGIN
                answer = live.cancel(
                    job.new.id, task=job.new.task, not_after_ms=not_after, generation=generation_of(job.new)
                )
                if answer != "late":
                    rows.drop(alias, token, [job.key])
            elif row.state == "moved":
                when = row.due.after(time.monotonic() - row.read_at)
                live.reschedule(job.new.id, **when, task=job.new.task, generation=generation_of(job.new))
                rows.sent(alias, token, [job.key], moved_by=row.moved_by)

    def _note(self, write: Callable[..., None], keys: Sequence[uuid.UUID], *more: object) -> None:
        """A row that cannot be written now is found by the relay, and Redis tells that it knows the job."""
        if not keys:
            return
        try:
            write(self.alias, self.token, keys, *more)
        except (DatabaseError, DelayQError) as error:
            logger.warning("the outbox of database %s is left to the relay: %s", self.alias, error)


def _one(live: Queue, new: NewJob) -> Result:
    """The shorter way of a plain job that travels alone."""
    try:
        return Result(live.schedule(new))
    except DelayQError as error:
        if isinstance(error, QueueUnavailable) and not isinstance(error, QueuePaused):
            raise
        return Result("not_sent", error)


def _of_state(state: str | None) -> str:
    """The outcome of a job whose row is not to be sent by us."""
    if state is None or state == "cancelled":
        return "ignored"
    return OUTBOX if state in ("unsent", "moved") else "created"
