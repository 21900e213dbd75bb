"""Measured run times and batch sizes of a queue, which decide how many jobs a process may hold beyond its slots."""

from __future__ import annotations

from typing import Final

_RISE: Final = 0.5
_FALL: Final = 0.2


class Pace:
    """Seconds per attempt of one queue: an average that rises quickly with slow attempts and falls more slowly."""

    __slots__ = ("seconds", "size")

    def __init__(self) -> None:
        #: None until an attempt was measured
        self.seconds: float | None = None
        #: jobs that fit into one attempt: more than one if batches of merged jobs are expected
        self.size = 1

    def measured(self, total: float, attempts: int) -> None:
        """Record that ``attempts`` attempts took ``total`` seconds together."""
        mean = total / attempts
        if self.seconds is None:
            self.seconds = mean
        else:
            self.seconds += (mean - self.seconds) * (_RISE if mean > self.seconds else _FALL)

    def at_least(self, seconds: float) -> None:
        """Record that an attempt has taken this long and has not ended."""
        self.seconds = max(self.seconds or 0.0, seconds)

    def room(self, free: int, waiting: int, prefetch: float) -> int:
        """Return how many more attempts may be reserved.

        Args:
            free: idle slots.
            waiting: attempts that are held already and have no slot yet.
            prefetch: seconds of work that may wait here.
        """
        room = free - waiting
        if self.seconds is None:
            return room
        return max(room, int(prefetch / max(self.seconds, 1e-6)) - waiting)

    @property
    def tiny(self) -> bool:
        """Return True if attempts are so short that a second thread would cost more than it gains."""
        return self.seconds is not None and self.seconds < 0.001
