"""Calls of Redis while a request waits: with a short timeout, a circuit breaker, and a copy of Redis's clock.

What cannot be sent within that time is left to the relay if it has a row, and lost otherwise.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary

from django.db import DatabaseError

from .. import connections
from ..core.errors import DelayQError, NotConfirmed, QueuePaused, QueueUnavailable
from ..core.job import NewJob
from ..core.outcomes import ScheduleOutcome
from ..core.thread_lock import ThreadLock
from ..worker.attempt import running
from . import rows
from .push import FREE, Address, Clock, Push, RowResult

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.broker import Broker

#: seconds for which the breaker stays open at first, and at most
FIRST: Final = 1.0
LONGEST: Final = 5.0
#: number of jobs sent together: no more than one script call takes, so that jobs of one id keep their order
TOGETHER: Final = 250

logger: Final = logging.getLogger("django_delayq.outbox")

T = TypeVar("T")


class Breaker:
    """Circuit breaker. Open = Redis did not answer a moment ago and is not called. Thread-safe.

    It stays open for a second. Then one caller may try, while the others still do not. Each try that fails doubles the
    pause, up to five seconds. The first success closes it.
    """

    __slots__ = ("_lock", "_open_until", "_pause", "_trying")

    def __init__(self) -> None:
        self._lock = ThreadLock()
        self._pause = 0.0
        self._open_until = 0.0
        #: one caller tries an open breaker, and has not reported yet
        self._trying = False

    @property
    def open(self) -> bool:
        """True if the last call failed."""
        return self._pause > 0

    def allows(self) -> bool:
        """Return True if the caller may call Redis now. The caller then has to report success or failure."""
        if not self._pause:
            return True
        with self._lock:
            now = time.monotonic()
            if now < self._open_until:
                return False
            self._open_until = now + self._pause  # one caller tries, the others find it open
            self._trying = True
            return True

    def failed(self) -> None:
        """Record that Redis did not answer."""
        with self._lock:
            first = not self._pause
            if not (first or self._trying):
                return  # a call that began before the breaker opened: the same failure of Redis
            self._trying = False
            self._pause = min(LONGEST, self._pause * 2 or FIRST)
            self._open_until = time.monotonic() + self._pause
        if first:
            logger.warning("Redis did not answer after a commit; this process does not call it again for %g s", FIRST)

    def succeeded(self) -> None:
        """Record that Redis answered, whatever the reply."""
        if self._pause:
            with self._lock:
                self._pause = 0.0
                self._trying = False
            logger.warning("Redis answers again")


@dataclass(slots=True, eq=False)
class ProducerState:
    """Producer state: a process's knowledge of the Redis that it calls with a short timeout."""

    breaker: Breaker = field(default_factory=Breaker)
    clock: Clock = field(default_factory=Clock)


_known: Final[WeakKeyDictionary[Broker, ProducerState]] = WeakKeyDictionary()
_lock: Final = ThreadLock()


def producer_state(broker: Broker) -> ProducerState:
    """Return the state for this broker's Redis."""
    with _lock:
        return _known.setdefault(broker, ProducerState())


def call_briefly(call: Callable[[DjangoBroker], T], *, in_database: bool = False) -> T:
    """Call ``call`` with the broker with a short timeout.

    Inside a running job the process's broker is used instead, unless the database has stored the change.

    Args:
        in_database: the database has stored the change, too, so the relay will send it if it is not sent now.

    Raises:
        QueueUnavailable: Redis did not answer, or did not answer a moment ago and was not called.
    """
    if not in_database and running.get() is not None:
        return call_patiently(call)
    broker = connections.swift_broker()
    breaker = producer_state(broker).breaker
    if not breaker.allows():
        raise QueueUnavailable("Redis did not answer a moment ago, so it was not called; try again after a few seconds")
    try:
        reply = call(broker)
    except QueueUnavailable as error:
        # A paused queue is a reply, too, and so is a missing confirmation.
        breaker.succeeded() if isinstance(error, (NotConfirmed, QueuePaused)) else breaker.failed()
        raise
    except DelayQError:
        breaker.succeeded()
        raise
    breaker.succeeded()
    return reply


def call_patiently(call: Callable[[DjangoBroker], T]) -> T:
    """Call ``call`` with the process's broker, for callers that prefer a longer wait to no reply."""
    return call(connections.broker())


def push_briefly(
    alias: str,
    keys: Sequence[uuid.UUID],
    jobs: Mapping[uuid.UUID, NewJob] | None = None,
    addresses: Mapping[tuple[str, str], Address] | None = None,
) -> dict[uuid.UUID, RowResult]:
    """Push rows that were committed. Return the results by key; a row without one is in other hands, or gone.

    Args:
        jobs, addresses: see :class:`Push`.
    """
    replies: dict[uuid.UUID, RowResult] = {}

    def call(broker: DjangoBroker) -> None:
        # An unavailable Redis is detected here, before anything is claimed.
        push = Push(alias, broker, producer_state(broker).clock, None, jobs or {}, addresses or {})
        try:
            push.run(keys)
        finally:
            replies.update(push.replies)
        while changed := push.changed:  # by another process, which left Redis to this one
            push = Push(alias, broker, push.clock)
            push.run(changed)
            push.report()

    try:
        call_briefly(call, in_database=True)
    except (DatabaseError, QueueUnavailable) as error:
        logger.info("%d rows of database %s are left to the relay: %s", len(keys), alias, error)
    except Exception:
        logger.exception("%d rows of database %s are left to the relay", len(keys), alias)
    else:
        return replies
    return dict.fromkeys(keys, FREE) | replies


def send(alias: str, news: Sequence[NewJob]) -> list[ScheduleOutcome]:
    """Send jobs whose rows are committed, in order, with one round trip for the jobs of each queue.

    Returns:
        The outcomes: of jobs that wait for a relay "outbox"; a refusal is final.
    """
    outcomes: list[ScheduleOutcome] = []
    for chunk in rows.chunks(news, TOGETHER):
        jobs = {rows.key_of(new): new for new in chunk}
        replies = push_briefly(alias, list(jobs), jobs)
        missing = [key for key in jobs if key not in replies]
        try:
            states = rows.states(alias, missing) if missing else {}
        except DatabaseError:
            states = dict.fromkeys(missing, "unsent")
        outcomes += [_outcome_of(replies.get(key), states.get(key)) for key in jobs]
    return outcomes


def _outcome_of(result: RowResult | None, state: str | None) -> ScheduleOutcome:
    """Return the outcome of a job.

    Args:
        result: of the push of its row; None = another process has sent it, or will; its row is in ``state`` (None = it
            does not exist).
    """
    if result is None:
        if state is None or state == "cancelled":
            return ScheduleOutcome.IGNORED
        return ScheduleOutcome.OUTBOX if state in ("unsent", "moved") else ScheduleOutcome.CREATED
    if not isinstance(result.reply, ScheduleOutcome):  # refused for now; or cancelled or moved before it was sent
        return ScheduleOutcome.IGNORED if result.outcome == "gone" else ScheduleOutcome.OUTBOX
    if result.reply is ScheduleOutcome.KNOWN:  # a relay was faster
        return ScheduleOutcome.CREATED
    return result.reply
