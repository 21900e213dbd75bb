"""The wake thread of the pulling threads of a process: keeps one blocking read outstanding and passes tokens on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from .. import connections
from ..core.records.keys import wake_key
from ..core.redis.faults import Backoff
from ..core.redis.scripts import clear_errors
from ..worker.weather import Weather

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.wake import Waker

#: how long one blocking read lasts at most; it is never the alarm for a due time
BLOCK: Final = 25.0
#: how long the thread stays when nobody waits any more
LINGER: Final = 30.0
#: what a subscription takes at most to be in force
_SUBSCRIBE: Final = 0.05


class Crowd(Protocol):
    """Those who wait. Every method is called under the lock."""

    def names(self) -> frozenset[str]:
        """The queues that are waited for now."""
        ...

    def token(self, name: str, number: int) -> bool:
        """A shard is worth a look. False: nobody waits for that queue any more."""
        ...

    def ask_anew(self) -> None:
        """Tokens may have been lost."""
        ...


class Ear:
    """Its thread begins when somebody waits for the first time and ends when nobody does for long."""

    def __init__(self, broker: Broker, crowd: Crowd, weather: Weather, lock: threading.Lock) -> None:
        #: notified when somebody begins to wait
        self.called = threading.Condition(lock)
        self._broker = broker
        self._crowd = crowd
        self._weather = weather
        self._lock = lock
        self._thread: threading.Thread | None = None
        self._waker: Waker | None = None
        self._names: frozenset[str] = frozenset()
        #: queues of which tokens came although nobody waits for them any more
        self._strays: set[str] = set()

    def hears(self, names: frozenset[str]) -> bool:
        """Whether the thread hears of these queues. Under the lock."""
        return self._waker is not None and names <= self._names

    def call(self, names: frozenset[str]) -> None:
        """Make the thread hear of these queues. It may not notice; then whoever waits calls again."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._live, name="delayq-pull", daemon=True)
                self._thread.start()
            waker = self._waker
            if waker is None or names <= self._names:
                return
        with contextlib.suppress(Exception):  # it may be about to block just now
            waker.close()

    def put_back(self, hints: Iterable[tuple[str, int]]) -> None:
        """Tokens of a list are heard by one process only; what this one cannot use is for another."""
        if self._broker.connection.cluster:
            return
        for name, number in hints:
            with contextlib.suppress(Exception), clear_errors():  # lost, it costs the others a safety check
                self._broker.client.rpush(wake_key(self._broker.prefix, name), number)

    def _live(self) -> None:
        pause = Backoff(cap=1.0)
        while names := self._wait_for_waiters():
            try:
                self._hear(self._waker_of(names))
                pause.reset()
            except Exception as error:
                with self._lock:
                    self._waker, self._names = None, frozenset()
                    if not self._crowd.names() and not connections.is_current(self._broker):
                        self._thread = None
                        return
                time.sleep(pause.next(self._weather.storm("the wake thread of pulling threads", error)))
                with self._lock:
                    self._crowd.ask_anew()  # what was pushed meanwhile may be lost with the connection

    def _wait_for_waiters(self) -> frozenset[str]:
        """The queues to hear of; empty when nobody waited for long."""
        with self._lock:
            if not self.called.wait_for(lambda: bool(self._crowd.names()), LINGER):
                self._thread = self._waker = None
                self._names = frozenset()
            return self._crowd.names()

    def _waker_of(self, names: frozenset[str]) -> Waker:
        """The waker of at least these queues. It goes on hearing of earlier ones, so that a thread that takes turns
        between queues needs no new connection each time."""
        waker = self._waker
        if waker is not None and not waker.is_old() and names <= self._names and self._strays <= names:
            self._strays.clear()
            return waker
        names |= self._names - self._strays
        self._strays.clear()
        waker = self._broker.waker(sorted(names))
        if self._broker.connection.cluster:
            waker.wait(_SUBSCRIBE)
        with self._lock:
            self._waker, self._names = waker, names
            if self._broker.connection.cluster:
                self._crowd.ask_anew()  # a channel keeps nothing for those who come late
        return waker

    def _hear(self, waker: Waker) -> None:
        hints = waker.wait(BLOCK)
        self._weather.fine()
        with self._lock:
            strays = [hint for hint in hints if not self._crowd.token(*hint)]
            self._strays.update(name for name, _ in strays)
        self.put_back(strays)
