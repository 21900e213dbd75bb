"""Loop that runs a duty repeatedly: the duty defines one turn and how long to rest after it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from ..core.redis.faults import Backoff
from .redis_health import RedisHealth

logger = logging.getLogger(__name__)


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
