"""Search for children that hang: each one stamps its scoreboard every second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from .places import Child

#: a supervisor that sees a longer time between two looks was stopped itself
_PAUSE_SECONDS: Final = 2.0
#: seconds in which children that were stopped too refresh their stamps
_RECOVERY_SECONDS: Final = 5.0


class SignsOfLife:
    """Finder of children without a sign of life for most of a lease (``lease``: returns its seconds)."""

    def __init__(self, lease: Callable[[], float]) -> None:
        self._lease = lease
        self._looked_at = time.monotonic()
        self._believed_from = 0.0

    def missing(self, children: Sequence[Child], now: float) -> Iterator[tuple[Child, float]]:
        """Yield each child that hangs, with the seconds since its last stamp."""
        gap, self._looked_at = now - self._looked_at, now
        if gap > _PAUSE_SECONDS:
            self._believed_from = now + _RECOVERY_SECONDS
        if now < self._believed_from:
            return
        limit = 0.8 * self._lease()
        for child in children:
            stamped = child.board.stamped
            if stamped and now - stamped > limit:
                yield child, now - stamped
