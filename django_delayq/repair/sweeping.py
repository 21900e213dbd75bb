"""Time limit for operations on a whole queue that run within a request."""

from __future__ import annotations

import time
from collections.abc import Callable


class Sweep:
    """Time limit for operations on a whole queue, shared by all calls.

    Work done before the limit is kept; the same call again resumes with the rest.

    Args:
        seconds: time for all calls together. At least one chunk (250 jobs) is always processed.
    """

    class _TimeUp(Exception):
        pass

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadline = time.monotonic() + seconds
        self.seen = self.total = 0
        self.over = False

    def run(self, act: Callable[..., dict[str, int]]) -> dict[str, int]:
        """Return the result of ``act(progress=…)``, or an empty dict if the time is over.

        In the latter case ``over`` is true and ``seen`` is the number of jobs processed.
        """
        if self.over:
            return {}
        before = self.seen, self.total

        def progress(seen: int, total: int) -> None:
            self.seen, self.total = before[0] + seen, before[1] + total
            if seen < total and time.monotonic() > self._deadline:
                raise self._TimeUp

        try:
            return act(progress=progress)
        except self._TimeUp:
            self.over = True
            return {}
