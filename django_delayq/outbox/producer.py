"""Calls of Redis while a request waits: with a short timeout, a circuit breaker, and a copy of Redis's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from .. import connections
from ..core.errors import DelayQError, NotConfirmed, QueuePaused, QueueUnavailable
from ..core.thread_lock import ThreadLock
from ..worker.attempt import running
from . import rows
from .breaker import Breaker
from .protocol import Claim

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.broker import Broker

#: seconds after which Redis's clock is read again
CLOCK_AGE: Final = 60.0

T = TypeVar("T")


class _Reading(NamedTuple):
    """Reading of Redis's clock: its moment (monotonic), and offsets to it that are never too large, or too small."""

    at: float
    behind_ms: float
    ahead_ms: float


_NO_READING: Final = _Reading(float("-inf"), 0.0, 0.0)


class Clock:
    """Redis's clock as an offset to ``time.monotonic()``."""

    __slots__ = ("_reading",)

    def __init__(self) -> None:
        #: replaced as a whole, because all threads share the clock
        self._reading = _NO_READING

    def at(self, moment: float, broker: Broker) -> float:
        """Return Redis's time in ms at a moment of ``time.monotonic()``; never ahead of it."""
        reading = self._reading
        if time.monotonic() - reading.at > CLOCK_AGE:
            called_at = time.monotonic()
            redis_ms = broker.now_ms()
            read_at = time.monotonic()
            reading = self._reading = _Reading(read_at, redis_ms - read_at * 1000, redis_ms - called_at * 1000)
        return moment * 1000 + reading.behind_ms

    def now_at_latest(self) -> float:
        """Return Redis's time in ms, as it was read by :meth:`at`; never behind it."""
        return time.monotonic() * 1000 + self._reading.ahead_ms

    def forget(self) -> None:
        """Read the clock again at the next use because Redis's clock was changed, or it is another Redis."""
        self._reading = self._reading._replace(at=float("-inf"))


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


def brief_claim(alias: str, broker: Broker) -> Claim:
    """Return a claim on rows for calls while a request waits."""
    return Claim(alias, broker, producer_state(broker).clock, rows.CLAIM)
