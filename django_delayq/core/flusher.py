"""Flusher for the counters of processes that are not workers: a timer sends them to Redis a second later."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .redis.faults import Backoff, Fault, classify
from .tally import PACE, Tally

if TYPE_CHECKING:
    from .broker import Broker
    from .settlement import Settlement

logger: Final = logging.getLogger("django_delayq.pull")


def note(broker: Broker, settlements: Sequence[Settlement]) -> None:
    """Count these settled jobs: their lateness and how long they were held. Does not call Redis now."""
    if not settlements:
        return
    ensure_flusher(broker.tally)
    by_queue: dict[str, list[Settlement]] = {}
    for one in settlements:
        by_queue.setdefault(one.job.queue, []).append(one)
    for queue, mine in by_queue.items():
        broker.tally.ended(queue, mine)


def note_fault(broker: Broker, fault: Fault) -> None:
    """Count an error of Redis by its kind, for the metrics."""
    ensure_flusher(broker.tally)
    broker.tally.count("redis_error", fault.value)


def observe_scripts(broker: Broker) -> None:
    """Measure every script call from now on (``METRICS["scripts"]``)."""
    tally = broker.tally

    def observe(script: str, seconds: float, failed: bool) -> None:
        ensure_flusher(tally)  # each time: a fork removes the flusher
        tally.waited(script, seconds, failed)

    broker.observe(observe)


class CounterFlusher:
    """Timer that flushes a tally about a second after its first counter, and retries while that fails."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._pause = Backoff()
        self._lock = threading.Lock()
        self._armed = False
        self._timer: threading.Timer | None = None
        tally.subscribe(self.ring)

    def stop(self) -> None:
        """Flush one last time and stop, even if that fails: the broker is being closed."""
        self._tally.unsubscribe(self.ring)
        with self._lock:
            self._armed = True  # permanently, so that a call in progress arms no other timer
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.flush_last()

    def ring(self, seconds: float = PACE) -> None:
        """Schedule a flush in this many seconds, unless one is scheduled."""
        with self._lock:
            if self._armed:
                return
            self._armed = True
            timer = self._timer = threading.Timer(seconds, self._flush)
        timer.name, timer.daemon = "delayq-figures", True
        try:
            timer.start()
        except RuntimeError:  # the interpreter is shutting down: _flush_all() flushes
            self._armed = False

    def _flush(self) -> None:
        with self._lock:
            if self._timer is not threading.current_thread():
                return  # stopped at the moment at which it fired
            self._armed, self._timer = False, None
        try:
            self._tally.flush()
            self._pause.reset()
        except Exception as error:
            fault = classify(error)
            if fault is Fault.BUG and not self._pause.failures:
                logger.exception("counters of pulled jobs could not be sent; retried later")
            self.ring(max(PACE, self._pause.next(fault)))

    def flush_last(self) -> None:
        """Flush at the end of the process. If the last flush failed, skip it instead of waiting for Redis."""
        if self._pause.failures:
            return
        try:
            self._tally.flush()
        except Exception as error:
            logger.info("the last counters of pulled jobs could not be sent: %s", error)


_flushers: dict[Tally, CounterFlusher] = {}
_lock = threading.Lock()


def ensure_flusher(tally: Tally) -> None:
    """Ensure that a flusher of this process sends the counters of this tally to Redis from now on."""
    if tally in _flushers:
        return
    with _lock:
        if tally not in _flushers:
            _flushers[tally] = CounterFlusher(tally)


def stop_flusher(tally: Tally) -> None:
    """Stop the flusher of this tally, because its broker is being closed."""
    with _lock:
        flusher = _flushers.pop(tally, None)
    if flusher is not None:
        flusher.stop()


def _flush_all() -> None:
    for flusher in list(_flushers.values()):
        flusher.flush_last()


def _forget() -> None:
    """Reset the flushers in a forked child, which has none of its parent's timers."""
    global _lock
    _lock = threading.Lock()
    _flushers.clear()


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_forget)
