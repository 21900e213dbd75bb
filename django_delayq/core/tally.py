"""In-memory counters of this process that are not in Redis yet (:mod:`.timings`), usually for about a second."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from weakref import WeakSet

from .redis.faults import Backoff, Fault, classify
from .settlement import Settlement
from .timings import Cells, Figures, fill, histogram_of, new_cells

#: seconds for which counters are collected before a flush
PACE: Final = 1.0
#: maximum number of names per kind held in memory; the names of queues may come from users
MOST_NAMES: Final = 5_000
#: name of the script that stores counters: observing it would produce counters for its next call, without end
CARRIER: Final = "note"
#: verbs that end an attempt; an attempt that did not begin has no start
_RUNS: Final = frozenset({"ack", "fail", "bury", "record"})
K = TypeVar("K")

logger: Final = logging.getLogger(__name__)


class Tally:
    """In-memory counters of one broker. All methods may be called from any thread.

    The first counter after a flush starts a timer, whose thread sends the counters to Redis and retries while that
    fails. The rest is sent when the broker is closed or the process ends.

    Args:
        send: ``send(figures, request)`` adds them to Redis; of calls with the same request only the first counts.
        patience: seconds that a flush waits for the flush of another thread.
    """

    def __init__(self, send: Callable[[Figures, bytes], None], *, patience: float = 2.0) -> None:
        self._send = send
        self._patience = patience
        self._reset()
        _tallies.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._timer: threading.Timer | None = None
        self._pause = Backoff()
        #: counters that may or may not have arrived, with the request id under which they are sent again
        self._doubtful: tuple[bytes, Figures] | None = None
        self._open()

    def _open(self) -> None:
        self._lateness: dict[str, Cells] = {}
        self._run: dict[tuple[str, str], Cells] = {}
        self._script: dict[str, Cells] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._fresh = False

    def __bool__(self) -> bool:
        """Return True if there are counters that Redis does not have yet, or if they are being sent."""
        return self._fresh or self._sending.locked() or self._doubtful is not None

    # -- counting ----------------------------------------------------------------------------------------------------

    def ended(self, queue: str, settlements: Sequence[Settlement]) -> None:
        """Count the ended jobs of one queue. Jobs that did not begin are left out."""
        ran = [one for one in settlements if one.started_ms > 0 and one.verb in _RUNS]
        if not ran:
            return
        tasks = {one.job.task for one in ran}
        by_task = [(task, [one.run_ms for one in ran if one.job.task == task]) for task in tasks]
        late = [one.started_ms - one.job.due_ms for one in ran]
        with self._lock:
            _fill(self._lateness, queue, late)
            for task, took in by_task:
                _fill(self._run, (queue, task), took)
            self._changed()

    def count(self, name: str, label: str, more: int = 1) -> None:
        """Add to a count."""
        with self._lock:
            if len(self._counts) < MOST_NAMES or (name, label) in self._counts:
                self._counts[name, label] = self._counts.get((name, label), 0) + more
            self._changed()

    def waited(self, script: str, seconds: float, failed: bool) -> None:
        """Count the duration of a script call; an observer for :meth:`Broker.observe`."""
        if script == CARRIER:
            return
        with self._lock:
            _fill(self._script, script, [seconds * 1000])
            self._changed()

    def _changed(self) -> None:
        """Note, under the lock, that there are counters to send."""
        if not self._fresh:
            self._fresh = True
            self._flush_in(PACE)

    # -- flush -------------------------------------------------------------------------------------------------------

    def flush(self) -> bool:
        """Add the pending counters to Redis in one call; no call is made when there are none.

        Counters that could not be sent are kept, and sent again with the next flush, before the rest. Counters that
        arrive during a flush wait for the next one: under constant load, this one would never end.

        Returns:
            True if Redis has everything that was counted before; False if another thread's flush took too long.

        Raises:
            QueueUnavailable: Redis cannot be reached.
        """
        if not self._sending.acquire(timeout=self._patience):
            return False
        try:
            if self._doubtful is not None:
                self._post(self._doubtful)
            if self._fresh:
                self._post((os.urandom(16), self._take()))
            return True
        finally:
            self._sending.release()

    def _post(self, call: tuple[bytes, Figures]) -> None:
        self._doubtful = call
        request, figures = call
        self._send(figures, request)
        self._doubtful = None

    def _take(self) -> Figures:
        with self._lock:
            lateness, run, script, counts = self._lateness, self._run, self._script, self._counts
            self._open()
        return Figures(
            {name: histogram_of(cells) for name, cells in lateness.items()},
            {name: histogram_of(cells) for name, cells in run.items()},
            {name: histogram_of(cells) for name, cells in script.items()},
            counts,
        )

    def _flush_in(self, seconds: float) -> None:
        """Flush in this many seconds, unless a flush is scheduled or running; under the lock."""
        if self._timer is not None:
            return
        timer = threading.Timer(seconds, self._flush_on_time)
        timer.name, timer.daemon = "delayq-counters", True
        try:
            timer.start()
        except RuntimeError:  # the interpreter is shutting down: _flush_all() flushes
            return
        self._timer = timer

    def _flush_on_time(self) -> None:
        seconds = PACE
        try:
            self.flush()
            self._pause.reset()
        except Exception as error:
            fault = classify(error)
            if fault is Fault.BUG and not self._pause.failures:
                logger.exception("the counters could not be sent; retried later")
            seconds = max(PACE, self._pause.next(fault))
        with self._lock:
            if self._timer is threading.current_thread():  # else it was closed meanwhile
                self._timer = None
                if self:
                    self._flush_in(seconds)

    def close(self) -> None:
        """Flush one last time and stop the timer, even if that fails. A later counter starts another one."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.flush_last()

    def flush_last(self) -> None:
        """Flush at the end of the process. If the last flush failed, skip it instead of waiting for Redis."""
        if self._pause.failures:
            return
        try:
            self.flush()
        except Exception as error:
            logger.info("the last counters could not be sent: %s", error)

    def forget(self) -> None:
        """Reset the counters in a forked child: the parent flushes its own, and its locks may be held for ever."""
        self._reset()


def _fill(of: dict[K, Cells], name: K, values: list[int] | list[float]) -> None:
    cells = of.get(name)
    if cells is None:
        if len(of) >= MOST_NAMES:
            return
        cells = of[name] = new_cells()
    fill(cells, values)


_tallies: WeakSet[Tally] = WeakSet()


def _forget() -> None:
    for tally in list(_tallies):
        tally.forget()


def _flush_all() -> None:
    for tally in list(_tallies):
        tally.flush_last()


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_forget)
