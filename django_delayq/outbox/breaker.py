"""Circuit breaker that keeps requests from waiting for an unavailable Redis."""

from __future__ import annotations

import logging
import time
from typing import Final

from ..core.thread_lock import ThreadLock

FIRST: Final = 1.0
LONGEST: Final = 5.0

logger: Final = logging.getLogger("django_delayq.outbox")


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
