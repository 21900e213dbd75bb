"""How long the runs of a queue take, measured, and how many jobs one run takes: what decides how many jobs a process
may hold beyond its slots."""

from __future__ import annotations

from typing import Final

_RISE: Final = 0.5
_FALL: Final = 0.2


class Pace:
    """Seconds per run of one queue: quick to believe in slow runs, slower to believe in fast ones again."""

    __slots__ = ("seconds", "size")

    def __init__(self) -> None:
        #: None until something was measured
        self.seconds: float | None = None
        #: jobs that fit into one run: more than one if batches of merged jobs are to be expected
        self.size = 1

    def measured(self, total: float, runs: int) -> None:
        """``runs`` of them took ``total`` seconds together."""
        mean = total / runs
        if self.seconds is None:
            self.seconds = mean
        else:
            self.seconds += (mean - self.seconds) * (_RISE if mean > self.seconds else _FALL)

    def at_least(self, seconds: float) -> None:
        """A run has been going on for so long and is not over."""
        self.seconds = max(self.seconds or 0.0, seconds)

    def room(self, free: int, waiting: int, prefetch: float) -> int:
        """How many runs more may be reserved.

        Args:
            free: slots that run nothing.
            waiting: runs that are held already and have no slot yet.
            prefetch: seconds of work that may wait here.
        """
        room = free - waiting
        if self.seconds is None:
            return room
        return max(room, int(prefetch / max(self.seconds, 1e-6)) - waiting)

    @property
    def tiny(self) -> bool:
        """Runs so short that a second thread would cost more than it brings."""
        return self.seconds is not None and self.seconds < 0.001
