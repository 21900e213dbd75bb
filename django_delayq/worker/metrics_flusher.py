"""Duty that flushes the counters of finished attempts to Redis, about a second after the first of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core.tally import PACE
from .attempt import NEVER

if TYPE_CHECKING:
    from ..core.tally import Tally


class MetricsFlusher:
    """Duty for a :class:`~.loop.Loop`. A process in which no attempt ends sends no command.

    Args:
        pace: seconds for which counters are collected before a flush.
    """

    def __init__(self, tally: Tally, *, pace: float = PACE) -> None:
        self._tally = tally
        self._pace = pace
        self._ring: Callable[[], None] | None = None

    def attach(self, ring: Callable[[], None]) -> None:
        """Subscribe ``ring`` to new counters; see :class:`~.loop.Attached`."""
        self._ring = ring
        self._tally.subscribe(ring)

    def run(self) -> float:
        """Flush the counters if it is time.

        Returns:
            Seconds until the next flush may be due.
        """
        if not self._tally:
            return NEVER
        early = self._tally.since + self._pace - time.monotonic()
        if early > 0:
            return early
        self._tally.flush()
        return 0.0  # the next turn checks for counters that arrived meanwhile

    def close(self) -> None:
        """End the subscription; see :class:`~.loop.Closed`. The rest is flushed at the end of the process."""
        if self._ring is not None:
            self._tally.unsubscribe(self._ring)
