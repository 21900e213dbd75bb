"""Work on a whole queue that has to end with the request that asked for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..core.operations.sweep import Progress

__all__ = ["Sweep"]


class Sweep:
    """Work on a whole queue, ended when it takes longer than a request may. All calls share the time.

    What was done until then stays done; the same call again goes on with the rest.

    Args:
        seconds: the time for all calls together. At least one chunk (250 jobs) is always dealt with.
    """

    class _Over(Exception):
        pass

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._give_up = time.monotonic() + seconds
        self.seen = self.total = 0
        self.over = False

    def run(self, act: Callable[[Progress], dict[str, int]]) -> dict[str, int]:
        """What came of it; nothing if it was ended, then ``over`` is true and ``seen`` tells how far it came."""
        if self.over:
            return {}
        before = self.seen, self.total

        def progress(seen: int, total: int) -> None:
            self.seen, self.total = before[0] + seen, before[1] + total
            if seen < total and time.monotonic() > self._give_up:
                raise self._Over

        try:
            return act(progress)
        except self._Over:
            self.over = True
            return {}
