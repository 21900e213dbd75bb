"""The duty of telling Redis the figures of finished runs, about a second after the first of them came in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core.tally import PACE
from .run import NEVER

if TYPE_CHECKING:
    from ..core.tally import Tally


class Reporter:
    """A duty for a :class:`~.loop.Loop`. A process in which nothing ends asks for nothing."""

    #: most of its turns ask nothing
    silent = True

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._ring: Callable[[], None] | None = None

    def attach(self, ring: Callable[[], None]) -> None:
        """See :class:`~.loop.Attached`."""
        self._ring = ring
        self._tally.subscribe(ring)

    def run(self) -> float:
        """Tell, if it is time. Returns the seconds until that may be the case."""
        if not self._tally:
            return NEVER
        early = self._tally.since + PACE - time.monotonic()
        if early > 0:
            return early
        self._tally.flush()
        return 0.0  # looks whether something came in meanwhile

    def close(self) -> None:
        """See :class:`~.loop.Closed`. The end of the process flushes what is left."""
        if self._ring is not None:
            self._tally.unsubscribe(self._ring)
