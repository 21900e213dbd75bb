"""Loops of a process, each of which runs a duty repeatedly, and the health of Redis as all of them see it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, runtime_checkable

from ..core.redis.faults import Backoff, Fault, classify

logger = logging.getLogger(__name__)

#: seconds between two log lines about the same bug or the same refusal
_REMIND_SECONDS: Final = 60.0


class RedisHealth:
    """Redis health, shared by all loops of a process, so that an outage is logged once and not by each of them.

    Args:
        count: called with each fault of Redis.
    """

    def __init__(self, count: Callable[[Fault], object] = lambda fault: None) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._since = 0.0
        self._reminded = 0.0
        self._bugs: dict[str, float] = {}
        #: duration of the last outage (seconds), and when it ended (monotonic)
        self.last_outage = 0.0
        self.cleared_at = 0.0

    def recovered(self) -> None:
        """Record that a call to Redis succeeded."""
        if not self._since:
            return
        with self._lock:
            if self._since:
                self.cleared_at = time.monotonic()
                self.last_outage = self.cleared_at - self._since
                self._since = 0.0
                logger.warning("Redis is back after %.1f s", self.last_outage)

    def lasting(self) -> float:
        """Return the seconds since the outage began; 0 while Redis is reachable."""
        since = self._since
        return time.monotonic() - since if since else 0.0

    def failed(self, who: str, error: BaseException) -> Fault:
        """Record that a call failed. Return the kind of fault, after logging it as often as it deserves."""
        fault = classify(error)
        now = time.monotonic()
        if fault is Fault.BUG:
            # A bug of this program, not a fault of Redis. The same error from the same loop is logged once a minute.
            mark = f"{who}: {type(error).__name__}"
            if now - self._bugs.get(mark, -_REMIND_SECONDS) >= _REMIND_SECONDS:
                self._bugs[mark] = now
                logger.error("%s failed and is retried", who, exc_info=error)
            return fault
        self._count(fault)
        with self._lock:
            if not self._since:
                self._since = self._reminded = now
                logger.warning("no work with Redis now (%s, seen by %s): %s", fault.value, who, error)
            elif fault is Fault.CONFIG and now - self._reminded >= _REMIND_SECONDS:
                self._reminded = now
                logger.error("Redis refuses this worker since %.0f s: %s", now - self._since, error)
        return fault


class Duty(Protocol):
    """Task of a loop, to be run repeatedly."""

    def run(self) -> float:
        """Run one turn. Exceptions do not end the loop.

        Returns:
            Seconds until the next turn.
        """


@runtime_checkable
class Attached(Protocol):
    """Duty that may need to run earlier than it announced."""

    def attach(self, ring: Callable[[], None]) -> None:
        """Store ``ring``, which ends the rest of the duty's loop. Called once, before the first turn.

        Any thread may call ``ring()``.
        """


@runtime_checkable
class Closed(Protocol):
    """Duty that opens a resource, such as a database connection, which it has to close in the same thread."""

    def close(self) -> None:
        """Release the resource. Called in the thread of the loop, after the last turn."""


class Loop:
    """Thread that runs one duty until it is closed."""

    def __init__(self, name: str, duty: Duty, health: RedisHealth) -> None:
        self.name = name
        self._duty = duty
        self._health = health
        self._bell = threading.Condition()
        self._rung = False
        self._closing = False
        self._thread = threading.Thread(target=self._run_thread, name=f"delayq-{name}", daemon=True)
        if isinstance(duty, Attached):
            duty.attach(self.ring)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ring(self) -> None:
        """End the pause until the duty's next turn: it runs now."""
        with self._bell:
            self._rung = True
            self._bell.notify()

    def close(self, timeout: float = 2.0) -> None:
        """Stop the loop after the duty's current turn, and wait up to ``timeout`` seconds for it to end."""
        close_loops([self], timeout)

    def _run_thread(self) -> None:
        pause = Backoff()
        while not self._closing:
            try:
                rest = self._duty.run()
                pause.reset()
            except Exception as error:
                rest = pause.next(self._health.failed(self.name, error))
            with self._bell:
                until = time.monotonic() + rest
                while not (self._rung or self._closing) and (left := until - time.monotonic()) > 0:
                    self._bell.wait(min(left, 3600.0))
                self._rung = False
        if isinstance(self._duty, Closed):
            try:
                self._duty.close()
            except Exception:
                logger.exception("the end of %s failed", self.name)


def close_loops(loops: Sequence[Loop], timeout: float = 2.0) -> None:
    """Stop loops after the current turns of their duties, and wait up to ``timeout`` seconds for all together."""
    for loop in loops:
        loop._closing = True
        loop.ring()
    join_threads([loop._thread for loop in loops], timeout)


def join_threads(threads: Iterable[threading.Thread], timeout: float) -> bool:
    """Wait up to ``timeout`` seconds for threads. Return False if one of them is still alive then."""
    until = time.monotonic() + timeout
    threads = [thread for thread in threads if thread.is_alive()]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
