"""Fast path after a commit, while a request waits: send to Redis with a short timeout, or leave it to the relay.

Jobs that belong together are claimed with one UPDATE, sent in one round trip, and settled with one more UPDATE. The
commands carry a deadline on Redis's clock before the claim ends, so that a process that slept cannot repeat or undo the
work of others. A row that was changed while it was being sent (cancelled, rescheduled) is corrected at once.
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
from ..core.outcome import Outcome
from ..core.records.frames import generation_of
from ..worker.current import running
from . import rows
from .breaker import Breaker

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.broker import Broker
    from ..core.queue import Queue

#: ms between the deadline and the end of the claim: for clocks that run at different speeds
MARGIN: Final = 250.0
#: seconds after which Redis's clock is read again
CLOCK_AGE: Final = 60.0

logger: Final = logging.getLogger("django_delayq.outbox")
T = TypeVar("T")


class Clock:
    """Redis's clock as an offset to ``time.monotonic()``; never ahead of it."""

    __slots__ = ("_asked_at", "_behind_ms")

    def __init__(self) -> None:
        self._asked_at = float("-inf")
        self._behind_ms = 0.0

    def at(self, moment: float, broker: Broker) -> float:
        """Return Redis's time in ms at a moment of ``time.monotonic()``."""
        if time.monotonic() - self._asked_at > CLOCK_AGE:
            told = broker.now_ms()
            self._asked_at = time.monotonic()
            self._behind_ms = told - self._asked_at * 1000
        return moment * 1000 + self._behind_ms

    def forget(self) -> None:
        """Discard the offset because Redis's clock was changed, or it is another Redis."""
        self._asked_at = float("-inf")


class ProducerState:
    """Producer state: a process's knowledge of the Redis that it calls with a short timeout."""

    __slots__ = ("__weakref__", "breaker", "clock")

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.clock = Clock()


_known: Final[WeakKeyDictionary[Broker, ProducerState]] = WeakKeyDictionary()
_lock: Final = threading.Lock()


def haste(broker: Broker) -> ProducerState:
    """Return the state for this broker's Redis."""
    with _lock:
        return _known.setdefault(broker, ProducerState())


def ask(call: Callable[[DjangoBroker], T], *, kept: bool = False) -> T:
    """Call ``call`` with the broker with a short timeout.

    Inside a running job the process's broker is used instead, unless the database has stored the change (``kept``).

    Args:
        kept: the database has stored it, too, so the relay will send what is not sent now.

    Raises:
        QueueUnavailable: Redis did not answer, or did not answer a moment ago and was not called.
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
        # A paused queue is a reply, too.
        breaker.succeeded() if isinstance(error, QueuePaused) else breaker.failed()
        raise
    except DelayQError:
        breaker.succeeded()
        raise
    breaker.succeeded()
    return answer


def patiently(call: Callable[[DjangoBroker], T]) -> T:
    """Call ``call`` with the process's broker, for callers that prefer a longer wait to no reply."""
    return call(connections.broker())


def deadline(broker: DjangoBroker, claim: Callable[[], object]) -> float:
    """Claim rows (``claim()``) for :data:`rows.CLAIM` seconds. Return the deadline for sending: ms, on Redis's clock.

    Raises:
        QueueUnavailable: Redis is unavailable; nothing was claimed.
    """
    clock = haste(broker).clock
    clock.at(0, broker)
    until = time.monotonic() + rows.CLAIM
    claim()
    return clock.at(until, broker) - MARGIN


@dataclass(slots=True, eq=False)
class OutgoingJob:
    """Job to be sent to Redis.

    Attributes:
        queue: the queue's name.
        new: the job.
        asked_at: time of the call (``time.monotonic()``); the delay of a job without a row counts from then on.
        key: the key of its row; None for a job that has none.
    """

    queue: str
    new: NewJob
    asked_at: float
    key: uuid.UUID | None = None

    def packed(self, row: rows.Claimed | None, now: float) -> NewJob:
        """Return the job in the form to send at ``now`` (``time.monotonic()``, the same for all jobs sent together).

        The due time is fixed at the call, so the wait for the commit is part of the delay.
        """
        new = self.new
        if row is not None:
            when = row.due.after(now - row.read_at)
            new.due_ms, new.delay_ms = when["due_ms"], when["delay_ms"]
        else:
            new.waited(int((now - self.asked_at) * 1000))
            self.asked_at = now
        return new


@dataclass(frozen=True, slots=True)
class Result:
    """Result of sending a job: its outcome, and the error if Redis did not accept it."""

    outcome: Outcome
    error: Exception | None = None

    @classmethod
    def of(cls, queue: Queue, new: NewJob, outcome: Outcome) -> Result:
        """Return the result of a job without a row."""
        return cls(outcome, queue.refusal(outcome, new) if outcome.is_refusal else None)


def send(alias: str, jobs: Sequence[OutgoingJob]) -> list[Result]:
    """Send jobs in order, with one round trip for consecutive jobs of one queue.

    Args:
        alias: database of their rows, which are committed.
    """
    results: list[Result] = []
    for _, run in groupby(jobs, key=lambda job: job.queue):
        for chunk in rows.chunks(run, rows.TOGETHER):
            results += _SendBatch(alias, chunk).send()
    return results


class _SendBatch:
    """Claimed batch of jobs that are sent together to one queue."""

    def __init__(self, alias: str, jobs: Sequence[OutgoingJob]) -> None:
        self.alias = alias
        self.jobs = jobs
        self.queue = jobs[0].queue
        self.keys = [job.key for job in jobs if job.key is not None]
        self.results: dict[int, Result] = {}
        self.token = uuid.uuid4()
        self.held: dict[uuid.UUID, rows.Claimed] = {}
        self.until = 0.0

    def send(self) -> list[Result]:
        """Send the batch. Return the result of each job."""
        try:
            ask(self._go, kept=len(self.keys) == len(self.jobs))
        except Exception as error:
            for place, job in enumerate(self.jobs):
                lost = Result(Outcome.NOT_SENT, error) if job.key is None else Result(Outcome.OUTBOX)
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
            self._note(rows.release, list(self.held))  # certainly not stored by Redis
            raise
        if self.held:
            self._settle(live)

    # -- rows, before sending ------------------------------------------------------------------------------------------

    def _claim(self, broker: DjangoBroker) -> float:
        """Claim the rows and return the deadline. Jobs whose rows cannot be claimed get their results here."""
        clock = haste(broker).clock
        clock.at(0, broker)  # an unavailable Redis is detected here, before anything is claimed
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
        if plain:  # these have no deadline of their own
            self._call(live, plain, None)
        for place in late:
            self.results.setdefault(place, Result(Outcome.OUTBOX))

    def _call(self, live: Queue, going: list[int], deadline: float | None) -> list[int]:
        """Send one call. Return the positions of the jobs for which it came too late."""
        jobs, now = [self.jobs[place] for place in going], time.monotonic()
        news = [job.packed(self.held.get(job.key) if job.key is not None else None, now) for job in jobs]
        if len(news) == 1 and deadline is None:
            self.results[going[0]] = _one(live, news[0])
            return []
        late = []
        for place, new, outcome in zip(going, news, live.schedule_many(news, not_after_ms=deadline), strict=True):
            if outcome is Outcome.LATE:
                late.append(place)
            else:
                self.results[place] = self._result(live, new, outcome, durable=self.jobs[place].key is not None)
        return late

    def _result(self, live: Queue, new: NewJob, outcome: Outcome, *, durable: bool) -> Result:
        if outcome is Outcome.KNOWN:  # a relay was faster
            return Result(Outcome.CREATED)
        return Result(Outcome.OUTBOX) if durable and outcome.is_refusal_for_now else Result.of(live, new, outcome)

    # -- rows, after sending -------------------------------------------------------------------------------------------

    def _settle(self, live: Queue) -> None:
        fates: dict[str, list[uuid.UUID]] = {"taken": [], "over": [], "left": []}
        for place, job in enumerate(self.jobs):
            if job.key in self.held and job.key is not None:
                outcome = self.results[place].outcome
                fates["taken" if outcome.is_stored else "over" if outcome.is_final else "left"].append(job.key)
        self._note(rows.drop, fates["over"])
        self._note(rows.release, fates["left"])
        self._note(self._sent, fates["taken"], live)

    def _sent(self, alias: str, token: uuid.UUID, keys: Sequence[uuid.UUID], live: Queue) -> None:
        if rows.sent(alias, token, keys) == len(keys):
            return
        # Another process has changed them meanwhile and left the update of Redis to the holder of the claim.
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
        """Update claimed rows. If that fails, the relay finds the rows, and Redis answers that it knows the jobs."""
        if not keys:
            return
        try:
            write(self.alias, self.token, keys, *more)
        except (DatabaseError, DelayQError) as error:
            logger.warning("the outbox of database %s is left to the relay: %s", self.alias, error)


def _one(live: Queue, new: NewJob) -> Result:
    """Send a single plain job, which needs less work."""
    try:
        return Result(live.schedule(new))
    except DelayQError as error:
        if isinstance(error, QueueUnavailable) and not isinstance(error, QueuePaused):
            raise
        return Result(Outcome.NOT_SENT, error)


def _of_state(state: str | None) -> Outcome:
    """Return the outcome of a job whose row must not be sent by this process."""
    if state is None or state == "cancelled":
        return Outcome.IGNORED
    return Outcome.OUTBOX if state in ("unsent", "moved") else Outcome.CREATED
