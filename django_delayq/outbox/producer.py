"""Calls of Redis while a request waits: with a short timeout, and a circuit breaker.

What cannot be sent within that time is left to the relay if it has a row, and lost otherwise.
"""

from __future__ import annotations

import functools
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from django.db import DatabaseError

from .. import connections
from ..core.errors import DelayQError, NotConfirmed, QueuePaused, QueueUnavailable
from ..core.job import NewJob
from ..core.outcomes import ScheduleOutcome
from ..core.thread_lock import ThreadLock
from ..worker.attempt import running
from . import rows
from .push import FREE, TOGETHER, Push, RowOutcome, RowResult

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.broker import Broker

#: seconds for which a Redis that did not answer is not called
PAUSE: Final = 1.0

logger: Final = logging.getLogger("django_delayq.outbox")

T = TypeVar("T")


class Breaker:
    """Circuit breaker. Open = Redis did not answer a moment ago and is not called. Thread-safe.

    After a pause one caller may try, while the others still do not. The first success closes it.

    Attributes:
        open_until: moment at which one caller may try (``time.monotonic()``); 0 = it is closed.
    """

    __slots__ = ("_lock", "open_until")

    def __init__(self) -> None:
        self._lock = ThreadLock()
        self.open_until = 0.0

    def allows(self) -> bool:
        """Return True if the caller may call Redis now. The caller then has to report success or failure."""
        if not self.open_until:
            return True
        with self._lock:
            now = time.monotonic()
            if now < self.open_until:
                return False
            self.open_until = now + PAUSE  # one caller tries, the others find it open
            return True

    def failed(self) -> None:
        """Record that Redis did not answer."""
        with self._lock:
            first = not self.open_until
            self.open_until = time.monotonic() + PAUSE
        if first:
            logger.warning("Redis did not answer after a commit; this process does not call it again for %g s", PAUSE)

    def succeeded(self) -> None:
        """Record that Redis answered, whatever the reply."""
        if self.open_until:
            self.open_until = 0.0
            logger.warning("Redis answers again")


@functools.lru_cache(maxsize=4)
def breaker_of(broker: Broker) -> Breaker:
    """Return the circuit breaker of this broker's Redis, one in each process."""
    return Breaker()


def call_briefly(call: Callable[[DjangoBroker], T], *, in_database: bool = False) -> T:
    """Call ``call`` with the broker with a short timeout.

    Inside a running job the process's broker is used instead, unless the database has stored the change.

    Args:
        in_database: the database has stored the change, too, so the relay will send it if it is not sent now.

    Raises:
        QueueUnavailable: Redis did not answer, or did not answer a moment ago and was not called.
    """
    if not in_database and running.get() is not None:
        return call(connections.broker())
    broker = connections.swift_broker()
    breaker = breaker_of(broker)
    if not breaker.allows():
        raise QueueUnavailable("Redis did not answer a moment ago, so it was not called; try again after a few seconds")
    try:
        reply = call(broker)
    except DelayQError as error:
        # A refusal is a reply, and so are a paused queue and a missing confirmation.
        is_reply = not isinstance(error, QueueUnavailable) or isinstance(error, (NotConfirmed, QueuePaused))
        breaker.succeeded() if is_reply else breaker.failed()
        raise
    breaker.succeeded()
    return reply


def push_briefly(
    alias: str, keys: Sequence[uuid.UUID], jobs: Mapping[uuid.UUID, NewJob] | None = None
) -> dict[uuid.UUID, RowResult]:
    """Push rows that were committed. Return the results by key; a row without one is in other hands, or gone.

    Args:
        jobs: see :class:`Push`.
    """
    results: dict[uuid.UUID, RowResult] = {}
    try:
        call_briefly(lambda broker: Push(alias, broker, jobs=jobs or {}, results=results).run(keys), in_database=True)
    except (DatabaseError, QueueUnavailable) as error:
        logger.info("%d rows of database %s are left to the relay: %s", len(keys), alias, error)
    except Exception:
        logger.exception("%d rows of database %s are left to the relay", len(keys), alias)
    else:
        return results
    return dict.fromkeys(keys, FREE) | results


def send(alias: str, news: Sequence[NewJob]) -> list[ScheduleOutcome]:
    """Send jobs whose rows are committed, in order, with one round trip for the jobs of each queue.

    Returns:
        The outcomes: of jobs that are left to a relay, or were replaced in the same transaction, "outbox"; a refusal is
        final.
    """
    outcomes: list[ScheduleOutcome] = []
    for chunk in rows.chunks(news, TOGETHER):
        jobs = {rows.key_of(new): new for new in chunk}
        results = push_briefly(alias, list(jobs), jobs)
        outcomes += [_outcome_of(results.get(key, FREE)) for key in jobs]
    return outcomes


def _outcome_of(result: RowResult) -> ScheduleOutcome:
    if result.reply is ScheduleOutcome.KNOWN:  # a relay was faster
        return ScheduleOutcome.CREATED
    if isinstance(result.reply, ScheduleOutcome):
        return result.reply
    # Left to the relay; or cancelled before it was sent.
    return ScheduleOutcome.IGNORED if result.outcome is RowOutcome.GONE else ScheduleOutcome.OUTBOX
