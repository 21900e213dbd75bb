"""State of the connection to Redis, logged once when it fails and once when it recovers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from ..core.redis.faults import Fault, classify

logger = logging.getLogger(__name__)

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
