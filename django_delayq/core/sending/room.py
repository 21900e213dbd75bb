"""Wait of a producer for room in a full queue."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from ..outcomes import ScheduleOutcome

#: first and longest pause between two attempts, seconds
SHORTEST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0


class RoomWait:
    """Wait with growing pauses, at most for ``room_ms`` without progress."""

    def __init__(self) -> None:
        #: a wait was in vain, so no further one is begun
        self.over = False
        self._until: float | None = None
        self._pause = SHORTEST_PAUSE

    def rest(self, room_ms: int) -> bool:
        """Pause before the next attempt; return False, without a pause, when the time is over."""
        now = time.monotonic()
        if self._until is None:
            self._until = now + room_ms / 1000
        self.over = now >= self._until
        if not self.over:
            time.sleep(min(self._pause * random.uniform(0.5, 1.0), self._until - now))
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return not self.over

    def progress(self) -> None:
        """Begin anew, because some job was accepted."""
        self._until, self._pause = None, SHORTEST_PAUSE


def until_room(room_ms: int, attempt: Callable[[], ScheduleOutcome]) -> ScheduleOutcome:
    """Repeat an attempt to schedule a job while the queue is full; return the last outcome."""
    wait, outcome = RoomWait(), ScheduleOutcome.FULL
    while outcome is ScheduleOutcome.FULL and wait.rest(room_ms):
        outcome = attempt()
    return outcome
