"""Places for the children of a supervisor, and when the next child of each may start."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import Final

from .attempt import NEVER
from .child import EXIT_DRY, EXIT_RECYCLE, EXIT_STUCK
from .scoreboard import Scoreboard

logger = logging.getLogger(__name__)

#: lifetime in seconds from which a death does not count as fast
LONG_LIFE: Final = 10.0
#: fast deaths, of children that had begun to serve, after which the next child starts at once
_FREE_RESTARTS: Final = 3
_LONGEST_BACKOFF: Final = 60.0


@dataclass(slots=True)
class Child:
    """Child process. Times are of ``time.monotonic()``."""

    index: int
    name: str
    process: subprocess.Popen[bytes]
    board: Scoreboard
    born: float
    #: why the supervisor killed it, if it did. No job is blamed then, unless ``blame`` is set
    killed: str = ""
    blame: bool = False
    #: True once the supervisor has sent it a stop signal
    stop_sent: bool = False

    def cause(self, code: int) -> str:
        """Return how the child ended, for the log and for the errors of its jobs."""
        if self.killed:
            return f"was killed: {self.killed}"
        if code == EXIT_RECYCLE:
            return "ended to be replaced"
        if code == EXIT_STUCK:
            return "ended because a job ignored its time limit"
        if code == EXIT_DRY:
            return "ended, no job waits for quarantine"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"died of signal {-code} ({signal.Signals(-code).name})"
            return f"died of signal {-code}"
        return "ended" if code == 0 and self.board.leaving else f"ended with exit code {code}"


@dataclass(slots=True)
class Place:
    """Place for a child: when the next one may start, and how many died fast in a row.

    A quarantine place is filled only while jobs wait for quarantine.
    """

    index: int
    quarantine: bool = False
    child: Child | None = None
    start_at: float = 0.0
    fast_deaths: int = 0

    def plan_restart(self, child: Child, now: float, *, expected: bool) -> None:
        """Set when the next child starts.

        Children that die fast are restarted at once three times, then after 1, 2, 4 … 60 s.
        """
        self.start_at = now
        # A crash in quarantine costs its job one of few attempts, so crashes end by themselves; and other jobs wait for
        # the place.
        at_work = self.quarantine and bool(child.board.ready)
        if expected or at_work or now - child.born >= LONG_LIFE:
            self.fast_deaths = 0
            return
        self.fast_deaths += 1
        # A child that never served will probably fail again at once. One that was killed at work deserves a few
        # retries.
        paid = self.fast_deaths - (_FREE_RESTARTS if child.board.ready else 0)
        if paid > 0:
            delay = min(_LONGEST_BACKOFF, 2.0 ** (min(paid, 10) - 1))
            self.start_at = now + delay
            logger.warning("children at place %d die fast; the next one starts in %.0f s", self.index, delay)


class Suspects:
    """Moments at which jobs are expected to wait for quarantine. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moments: list[float] = []
        #: when they were last handled
        self.served_at = 0.0

    def expect(self, at: float) -> None:
        """Add the moment at which a job is due in quarantine; NEVER adds none."""
        if at < NEVER:
            with self._lock:
                self._moments.append(at)

    @property
    def next_at(self) -> float:
        """Earliest of these moments."""
        with self._lock:
            return min(self._moments, default=NEVER)

    def served(self, now: float) -> None:
        """Remove the moments up to ``now``, because a process handles what is due by then."""
        self.served_at = now
        with self._lock:
            self._moments = [at for at in self._moments if at > now]
