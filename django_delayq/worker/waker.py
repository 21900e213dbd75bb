"""Wake thread: keeps one blocking read outstanding while the fetch loop is hungry, and only signals."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..core.redis.faults import Backoff
from .redis_health import RedisHealth
from .shard_selector import ShardSelector

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.wake import Waker

logger = logging.getLogger(__name__)

#: maximum duration of one blocking read in seconds; it never times a due time
BLOCK: Final = 25.0


class WakeThread:
    """Thread that turns wake tokens into checks of the shards that they name.

    Args:
        strangers: called when a token names a shard that the shard selector does not have; it should have it
            afterwards.
    """

    def __init__(
        self, broker: Broker, horizon: ShardSelector, weather: RedisHealth, strangers: Callable[[], None] = lambda: None
    ) -> None:
        #: set by the fetch loop while it has free slots and nothing due
        self.hungry = threading.Event()
        self._broker = broker
        self._horizon = horizon
        self._weather = weather
        self._strangers = strangers
        self._names = _names_of(horizon)
        self._heard: list[str] = []  # queues of the outstanding read
        self._waker: Waker | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._live, name="delayq-waker", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def listen(self) -> None:
        """Listen to the queues that the shard selector has now.

        To be called again until the thread has followed; see :meth:`close`.
        """
        names = _names_of(self._horizon)
        if names != self._names:
            self._names = names
        waker = self._waker
        if waker is not None and self._heard is not self._names:
            waker.close()

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
                self._wake_all()  # tokens pushed meanwhile may be lost with the connection
        self._drop()

    def _look(self) -> None:
        names = self._names
        if self._waker is None or self._heard is not names or self._waker.is_old():
            self._drop()
            if not names:
                self.hungry.clear()  # no queues to listen to; the fetch loop sets it again when it is nudged
                return
            self._waker, self._heard = self._broker.waker(names), names
            if self._waker.forgetful:
                self._wake_all()
        if self._closing.is_set() or self._names is not names:
            return
        places = self._waker.wait(BLOCK)
        if places:
            self.hungry.clear()  # the fetch loop sets it again after its next check, if it is still hungry
            if any(place not in self._horizon.by_place for place in places):
                self._strangers()
            self._horizon.wake(places)

    def _wake_all(self) -> None:
        self._horizon.wake([(source.queue.name, source.shard) for source in self._horizon.sources])

    def _drop(self) -> None:
        waker, self._waker = self._waker, None
        if waker is not None:
            with contextlib.suppress(Exception):
                waker.close()


def _names_of(horizon: ShardSelector) -> list[str]:
    return sorted({source.queue.name for source in horizon.sources})
