"""Timeout monitor: one thread that enforces time limits, stamps the scoreboard and checks the memory use.

It must not touch Redis: a slow or absent server would stop the stamp, and the supervisor would kill a healthy process.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ..core.errors import JobTimeout
from .attempt import NEVER, Attempt
from .child import Scoreboard
from .loop import call_safely, join_threads
from .record import frames_of_thread, stack_text

logger = logging.getLogger("django_delayq.worker.limits")
T = TypeVar("T")

#: seconds that an attempt gets to react to its time limit before its process is replaced
REACTION_SECONDS: Final = 5.0
_BEAT: Final = 1.0


def _raise_in(thread_id: int, kind: type[BaseException]) -> None:
    """Make ``thread_id`` raise ``kind`` at its next bytecode."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(kind))


def _discard_timeout() -> None:
    """Discard the exception that another thread set to be raised in this one, if it was not raised yet.

    It is raised and caught. Clearing it instead would work too, but leaves Python before 3.13 in the belief that an
    exception is still pending: from then on every thread would check for it in every turn, and a traced thread
    (coverage, a debugger) would never get past the beginning of a function.
    """
    try:
        _raise_in(threading.get_ident(), JobTimeout)  # replaces a pending one, so this is the last
        _spin()
    except JobTimeout:
        pass


def _spin() -> None:
    """Run for long enough that a pending exception is raised.

    A function of its own: CPython 3.13 leaves the jump at the end of a loop out of the ``try`` block around the loop,
    so an exception that is raised at that jump would not be caught there. The loop ends, because a callback of the
    garbage collector may have swallowed the exception.
    """
    for _ in range(1000):
        pass


@dataclass(eq=False, repr=False)
class TimeoutMonitor:
    """Timeout monitor of one process."""

    _board: Scoreboard | None
    #: called once with an attempt that still runs ``reaction_seconds`` after its limit was enforced
    _overran: Callable[[Attempt], None]
    #: called every second, for checks that need no network I/O
    _beat: Callable[[], None]
    reaction_seconds: float = REACTION_SECONDS
    #: the attempt in each slot (None = idle)
    running: list[Attempt | None] = field(default_factory=list)
    #: attempts that still run although their limit was enforced so long ago
    stuck: set[Attempt] = field(default_factory=set)
    _next_check: float = 0.0
    _next_beat: float = 0.0
    _closing: bool = False

    def __post_init__(self) -> None:
        # Jobs' threads take the lock itself: a time limit that is raised in the condition's own code, which takes it,
        # would leave it locked for ever.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run_thread, name="delayq-timeout", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; limits are not enforced any more."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        join_threads([self._thread], 2.0)

    # --- called by the job's thread

    def limited(self, attempt: Attempt, seconds: float, call: Callable[[], T]) -> T:
        """Return ``call()``, a part of the attempt, which may take so many seconds.

        Raises:
            JobTimeout: they were over.
        """
        self.arm(attempt, seconds)
        try:
            try:
                return call()
            finally:
                self.disarm(attempt)
        except JobTimeout:
            self.disarm(attempt)  # it may have been raised inside the disarming above
            raise

    def arm(self, attempt: Attempt, seconds: float) -> None:
        """Limit the attempt, which runs in this thread, to ``seconds`` from now."""
        attempt.thread_id = threading.get_ident()
        attempt.limited_by, attempt.cancel, attempt.frames = 0.0, None, None
        limit_at = time.monotonic() + seconds
        with self._lock:
            attempt.limit_at = limit_at
            if limit_at < self._next_check:
                self._condition.notify()
        if self._board is not None:
            self._board.slots[attempt.slot].limit_at = limit_at

    def disarm(self, attempt: Attempt) -> None:
        """End the limited section of the attempt. After this returns, its time limit is not enforced any more."""
        with self._lock:
            attempt.limit_at = NEVER
            self.stuck.discard(attempt)
            was_struck = attempt.limited_by and attempt.cancel is None
        if was_struck:
            _discard_timeout()

    # --- the thread

    def _run_thread(self) -> None:
        while not self._closing:
            call_safely("one turn of the timeout monitor", self._check, time.monotonic())
            with self._condition:
                now = time.monotonic()
                nearest = min((attempt.limit_at for attempt in self.running if attempt is not None), default=NEVER)
                self._next_check = min(nearest, self._next_beat)
                if not self._closing and self._next_check > now:
                    self._condition.wait(self._next_check - now)

    def _check(self, now: float) -> None:
        for attempt in list(self.running):
            if attempt is not None and attempt.limit_at <= now:
                if attempt.limited_by:
                    self._give_up(attempt)
                else:
                    self._enforce(attempt, now)
        if now >= self._next_beat:
            self._next_beat = now + _BEAT
            if self._board is not None:
                self._board.stamped = now
            self._beat()

    def _enforce(self, attempt: Attempt, now: float) -> None:
        with self._condition:
            if attempt.limit_at > now or attempt.limited_by:
                return
            attempt.limited_by = now
            attempt.limit_at = now + self.reaction_seconds
            attempt.should_stop = True
            attempt.stack = _stack_of(attempt)
            if attempt.cancel is not None:
                attempt.cancel()
            else:
                _raise_in(attempt.thread_id, JobTimeout)
        logger.warning("%s: time limit of task %s reached", attempt.job.id, attempt.job.task)

    def _give_up(self, attempt: Attempt) -> None:
        with self._condition:
            if attempt.limit_at == NEVER:
                return
            attempt.limit_at = NEVER
            self.stuck.add(attempt)
            if self._board is not None:
                self._board.mark_timed_out(attempt.slot, attempt.stack)
        self._overran(attempt)


def _stack_of(attempt: Attempt) -> str:
    """Return what the attempt runs now, as a stored traceback."""
    try:
        return stack_text(frames_of_thread(attempt.thread_id) if attempt.frames is None else attempt.frames())
    except Exception as error:  # frames change while they are read
        return f"(its stack cannot be read: {type(error).__name__})"


def resident_mib() -> float:
    """Return the resident memory of this process in MiB (0 where the system does not provide it)."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1048576
    except (OSError, ValueError, IndexError):
        return 0.0
