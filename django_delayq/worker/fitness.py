"""Whether jobs can begin here: while what a handler needs (a database) is not there, the process holds back."""

from __future__ import annotations

import time
from typing import Final

#: seconds of the first pause; each one that follows without a job that could begin is twice as long
_FIRST: Final = 0.25
_LONGEST: Final = 5.0


class Fitness:
    """Told by the slots, asked by the fetch loop. A race between slots costs at most one pause."""

    __slots__ = ("_pause", "until")

    def __init__(self) -> None:
        #: nothing is reserved before this moment (``time.monotonic()``)
        self.until = 0.0
        self._pause = 0.0

    @property
    def in_doubt(self) -> bool:
        """Whether the last job that came could not begin: how long those in hand took tells nothing."""
        return self._pause > 0

    def unfit(self) -> None:
        """A job could not begin."""
        now = time.monotonic()
        if now >= self.until:  # the other jobs in hand fail for the same reason
            self._pause = min(_LONGEST, 2 * self._pause or _FIRST)
            self.until = now + self._pause

    def fit(self) -> None:
        """A job could begin."""
        if self._pause:
            self._pause = self.until = 0.0
