"""The wake thread: keeps one blocking read outstanding while the fetch loop is hungry, and only signals."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from django_delayq.core.faults import Backoff

from .horizon import Horizon
from .weather import Weather

if TYPE_CHECKING:
    from django_delayq.core.broker import Broker
    from django_delayq.core.wake import Waker

logger = logging.getLogger(__name__)

#: how long one blocking read lasts at most; it is never the alarm for a due time
BLOCK: Final = 25.0


class WakeThread:
    """Turns wake tokens into looks at the shards that they name."""

    def __init__(self, broker: Broker, horizon: Horizon, weather: Weather) -> None:
        #: set by the fetch loop while it has free slots and nothing due
        self.hungry = threading.Event()
        self._broker = broker
        self._horizon = horizon
        self._weather = weather
        self._names = sorted({source.queue.name for source in horizon.sources})
        self._waker: Waker | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._live, name="delayq-waker", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the outstanding read and the thread."""
        self._closing.set()
        self.hungry.set()
        until = time.monotonic() + 2.0
        while self._thread.is_alive() and time.monotonic() < until:
            waker = self._waker
            if waker is not None:
                with contextlib.suppress(Exception):
                    waker.close()
            self._thread.join(0.1)  # a read that began just after the close needs a second one

    def _live(self) -> None:
        pause = Backoff()
        while not self._closing.is_set():
            self.hungry.wait()
            try:
                self._look()
                pause.reset()
            except Exception as error:
                if self._closing.is_set():
                    return
                self._drop()
                self._closing.wait(pause.next(self._weather.storm("waker", error)))
                # What was pushed meanwhile may be lost with the connection: one look at everything.
                self._horizon.wake([(source.queue.name, source.shard) for source in self._horizon.sources])
        self._drop()

    def _look(self) -> None:
        if self._waker is None:
            self._waker = self._broker.waker(self._names)
        if self._closing.is_set():
            return
        places = self._waker.wait(BLOCK)
        if places:
            self.hungry.clear()  # the fetch loop sets it again when it has looked and is still hungry
            self._horizon.wake(places)

    def _drop(self) -> None:
        waker, self._waker = self._waker, None
        if waker is not None:
            with contextlib.suppress(Exception):
                waker.close()
