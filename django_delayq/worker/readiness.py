"""Readiness gate: while a handler's requirement (a database, say) is unavailable, the process reserves nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: seconds of the first pause; each further pause without a job that could begin is twice as long
_FIRST: Final = 0.25
_LONGEST: Final = 5.0


class ReadinessGate:
    """Readiness of the process, set by the slots and read by the fetch loop.

    A race between slots costs at most one pause.

    Args:
        clock: monotonic time in seconds.
    """

    __slots__ = ("_clock", "_pause", "until")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        #: no job is reserved before this moment of the clock
        self.until = 0.0
        self._clock = clock
        self._pause = 0.0

    @property
    def in_doubt(self) -> bool:
        """Return True if the last job could not begin; the run times of held jobs are then meaningless."""
        return self._pause > 0

    def unfit(self) -> None:
        """Record that a job could not begin."""
        now = self._clock()
        if now >= self.until:  # the other held jobs fail for the same reason, and count once
            self._pause = min(_LONGEST, 2 * self._pause or _FIRST)
            self.until = now + self._pause

    def fit(self) -> None:
        """Record that a job could begin here, which ends the pause after failed preparations."""
        if self._pause:
            self._pause = self.until = 0.0
