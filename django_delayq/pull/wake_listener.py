"""Wake listener of a process: a thread that keeps one blocking read open and distributes tokens to waiting threads."""

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
from ..worker.redis_health import RedisHealth

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.wake import Waker

#: longest seconds of one blocking read; due times never depend on it
BLOCK: Final = 25.0
#: seconds for which the thread stays without waiters
LINGER: Final = 30.0
#: longest seconds until a subscription is in force
_SUBSCRIBE: Final = 0.05


class Waiters(Protocol):
    """Waiters of a process. Every method is called under the lock."""

    def names(self) -> frozenset[str]:
        """Return the queues that have waiters now."""
        ...

    def token(self, name: str, number: int) -> bool:
        """Handle a token for a shard. Return False if the queue has no waiters any more."""
        ...

    def ask_anew(self) -> None:
        """Handle the possible loss of tokens."""
        ...


class WakeListener:
    """Wake listener. Its thread starts with the first waiter and ends when there was none for long."""

    def __init__(self, broker: Broker, crowd: Waiters, weather: RedisHealth, lock: threading.Lock) -> None:
        #: notified when a waiter arrives
        self.called = threading.Condition(lock)
        self._broker = broker
        self._crowd = crowd
        self._weather = weather
        self._lock = lock
        self._thread: threading.Thread | None = None
        self._waker: Waker | None = None
        self._names: frozenset[str] = frozenset()
        #: queues that received tokens although they have no waiters any more
        self._strays: set[str] = set()

    def hears(self, names: frozenset[str]) -> bool:
        """Return True if the thread listens to these queues. Called under the lock."""
        return self._waker is not None and names <= self._names

    def call(self, names: frozenset[str]) -> None:
        """Make the thread listen to these queues. The request may be missed; then the waiter repeats it."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._live, name="delayq-pull", daemon=True)
                self._thread.start()
            waker = self._waker
            if waker is None or names <= self._names:
                return
        with contextlib.suppress(Exception):  # it may be about to block
            waker.close()

    def put_back(self, hints: Iterable[tuple[str, int]]) -> None:
        """Return unused tokens. A token in a list reaches only one process, so another process gets it."""
        if self._broker.connection.cluster:
            return
        for name, number in hints:
            with contextlib.suppress(Exception), clear_errors():  # a lost token costs the others a safety check
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
                    self._crowd.ask_anew()  # tokens sent meanwhile may be lost with the connection

    def _wait_for_waiters(self) -> frozenset[str]:
        """Return the queues to listen to; empty if there was no waiter for long."""
        with self._lock:
            if not self.called.wait_for(lambda: bool(self._crowd.names()), LINGER):
                self._thread = self._waker = None
                self._names = frozenset()
            return self._crowd.names()

    def _waker_of(self, names: frozenset[str]) -> Waker:
        """Return the waker for at least these queues.

        It keeps listening to earlier ones, so that a thread that alternates between queues does not need a new
        connection each time.
        """
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
                self._crowd.ask_anew()  # a channel keeps no messages for late subscribers
        return waker

    def _hear(self, waker: Waker) -> None:
        hints = waker.wait(BLOCK)
        self._weather.fine()
        with self._lock:
            strays = [hint for hint in hints if not self._crowd.token(*hint)]
            self._strays.update(name for name, _ in strays)
        self.put_back(strays)
