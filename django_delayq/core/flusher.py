"""The figures of processes that are no workers: counted where they arise, told to Redis a second later by a timer."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from .redis.faults import Backoff, Fault, classify
from .tally import PACE, Tally

if TYPE_CHECKING:
    from .broker import Broker
    from .job import Settlement

logger: Final = logging.getLogger("django_delayq.pull")


def note(broker: Broker, settlements: Sequence[Settlement]) -> None:
    """These held jobs were settled: how late they began, and how long they were held. Asks Redis for nothing now."""
    if not settlements:
        return
    see_to(broker.tally)
    by_queue: dict[str, list[Settlement]] = {}
    for one in settlements:
        by_queue.setdefault(one.job.queue, []).append(one)
    for queue, mine in by_queue.items():
        broker.tally.ended(queue, mine)


def note_fault(broker: Broker, fault: Fault) -> None:
    """Redis could not be used."""
    see_to(broker.tally)
    broker.tally.count("redis_error", fault.value)


def observe_scripts(broker: Broker) -> None:
    """``METRICS["scripts"]``: every call of a script is measured from now on."""
    tally = broker.tally

    def heard(script: str, seconds: float, failed: bool) -> None:
        see_to(tally)  # each time: after a fork nobody does any more
        tally.waited(script, seconds, failed)

    broker.observe(heard)


class Courier:
    """Tells Redis what is in a tally about a second after the first of it came in, and tries again while it cannot."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._pause = Backoff()
        self._lock = threading.Lock()
        self._armed = False
        self._timer: threading.Timer | None = None
        tally.subscribe(self.ring)

    def stop(self) -> None:
        """Say the last words and nothing more, also if they were not heard: who has closed the broker told it so."""
        self._tally.unsubscribe(self.ring)
        with self._lock:
            self._armed = True  # for ever, so that a call under way arms no other timer
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.last_words()

    def ring(self, seconds: float = PACE) -> None:
        """There is something to tell in so many seconds, if not sooner."""
        with self._lock:
            if self._armed:
                return
            self._armed = True
            timer = self._timer = threading.Timer(seconds, self._tell)
        timer.name, timer.daemon = "delayq-figures", True
        try:
            timer.start()
        except RuntimeError:  # the interpreter ends: the last words are said below
            self._armed = False

    def _tell(self) -> None:
        with self._lock:
            if self._timer is not threading.current_thread():
                return  # stopped in the moment in which it went off
            self._armed, self._timer = False, None
        try:
            self._tally.flush()
            self._pause.reset()
        except Exception as error:
            fault = classify(error)
            if fault is Fault.BUG and not self._pause.failures:
                logger.exception("figures of pulled jobs could not be told; it is tried again")
            self.ring(max(PACE, self._pause.next(fault)))

    def last_words(self) -> None:
        """The process ends. If Redis was away just now it does not wait for it."""
        if self._pause.failures:
            return
        try:
            self._tally.flush()
        except Exception as error:
            logger.info("the last figures of pulled jobs could not be told: %s", error)


_couriers: WeakKeyDictionary[Tally, Courier] = WeakKeyDictionary()
_lock = threading.Lock()


def see_to(tally: Tally) -> None:
    """Somebody in this process tells Redis what the tally counts, about a second later, from now on."""
    if tally in _couriers:
        return
    with _lock:
        if tally not in _couriers:
            _couriers[tally] = Courier(tally)


def dismiss(tally: Tally) -> None:
    """Nobody tells Redis what this tally counts any more: its broker is being closed."""
    with _lock:
        courier = _couriers.pop(tally, None)
    if courier is not None:
        courier.stop()


def _last_words() -> None:
    for courier in list(_couriers.values()):
        courier.last_words()


def _forget() -> None:
    """A forked child has none of the timers of its parent."""
    global _lock
    _lock = threading.Lock()
    _couriers.clear()


atexit.register(_last_words)
os.register_at_fork(after_in_child=_forget)
