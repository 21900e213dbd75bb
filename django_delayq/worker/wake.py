"""Wake listener: a thread that keeps one blocking read open for all consumers of a process and passes on its tokens."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..core.redis.faults import Backoff, Fault, classify
from ..core.wake import wake
from .loop import RedisHealth

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.wake import Hints, Waker

#: longest seconds of one blocking read; due times never depend on it
BLOCK: Final = 25.0
#: seconds for which the thread stays although no consumer is waiting
LINGER: Final = 30.0
#: seconds after which :meth:`WakeListener.call` is to be repeated, until the thread listens
REPEAT: Final = 0.1


class Audience(Protocol):
    """Consumers of a process. They are *waiting* while they have room and know of no due job."""

    def awaited_queues(self) -> frozenset[str]:
        """Return the queues with waiting consumers. Called under the lock; without them no read begins."""

    def tokens(self, hints: Hints) -> Hints:
        """Handle wake tokens, (queue, shard) pairs. Return those that no consumer here can use now."""

    def serves(self, name: str) -> bool:
        """Return True if there are or may soon be consumers of this queue here."""

    def check_all(self) -> None:
        """Handle the possible loss of tokens."""


@dataclass(eq=False, repr=False)
class WakeListener:
    """Wake listener. Its thread starts with the first waiting consumer and ends when there was none for long."""

    _broker: Broker
    #: gets the tokens
    _audience: Audience
    _health: RedisHealth
    #: lock of the audience
    _lock: Any
    _thread: threading.Thread | None = field(default=None, init=False)
    #: the waker, and the queues of the last one; None = the next read needs another one
    _waker: Waker | None = field(default=None, init=False)
    _names: frozenset[str] = field(default=frozenset(), init=False)
    #: queues of the present read; empty while the thread waits for a waiting consumer
    _reading: frozenset[str] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        #: notified when a consumer becomes waiting
        self._called = threading.Condition(self._lock)
        self._closing = threading.Event()

    def listens_to(self, names: frozenset[str]) -> bool:
        """Return True if the thread listens to these queues, or is about to because the audience awaits them."""
        with self._lock:
            return self._waker is not None and names <= self._reading

    def call(self, names: frozenset[str]) -> None:
        """Make the thread listen to these queues. A call may be missed: repeat it until :meth:`listens_to` is true."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run_thread, name="delayq-waker", daemon=True)
                self._thread.start()
            self._called.notify()
            waker = self._waker
            if waker is None or not self._reading or names <= self._reading:
                return
            end_read = waker.interrupt if names <= self._names else waker.close
            if not names <= self._names:
                self._waker = None
        with contextlib.suppress(Exception):  # it may be about to block
            end_read()

    def put_back(self, hints: Iterable[tuple[str, int]]) -> None:
        """Return unused tokens. A token in a list reaches only one process, so another process gets it."""
        if self._broker.connection.cluster:
            return
        with contextlib.suppress(Exception):  # a lost token costs the others a safety check
            wake(self._broker, list(hints))

    def close(self) -> None:
        """End the outstanding read and the thread."""
        with self._lock:
            self._closing.set()
            self._called.notify()
            thread = self._thread
        until = time.monotonic() + 2.0
        while thread is not None and thread.is_alive() and time.monotonic() < until:
            waker = self._waker
            if waker is not None:
                with contextlib.suppress(Exception):
                    waker.close()
            thread.join(0.1)  # a read that began just after the close needs a second one

    def _run_thread(self) -> None:
        pause = Backoff(cap=1.0)
        while names := self._wait_for_demand():
            try:
                self._listen(self._waker_of(names), names)
                pause.reset()
            except Exception as error:
                self._drop()
                with self._lock:
                    waiting = self._audience.awaited_queues()
                if self._closing.is_set():
                    return
                if waiting:  # else nobody misses it; the broker may have been closed
                    # A read may notice long after an outage that its connection was lost in it: Redis is away if a new
                    # connection fails, too.
                    fault = classify(error)
                    if pause.failures or fault is not Fault.TRANSIENT:
                        fault = self._health.failed("the wake listener", error)
                    self._closing.wait(pause.next(fault))
                self._audience.check_all()  # tokens sent meanwhile may be lost with the connection

    def _wait_for_demand(self) -> frozenset[str]:
        """Wait until a consumer has room for jobs; return the queues to listen to, or none if the thread must end."""
        with self._lock:
            self._reading = frozenset()
            self._called.wait_for(lambda: self._closing.is_set() or bool(self._audience.awaited_queues()), LINGER)
            names = frozenset[str]() if self._closing.is_set() else self._audience.awaited_queues()
            if not names:
                self._thread = None
                self._drop()
            self._reading = self._names if self._waker is not None and self._waker.forgetful else names
            return names

    def _waker_of(self, names: frozenset[str]) -> Waker:
        """Return the waker for at least these queues.

        It keeps listening to earlier ones, so that a process that alternates between queues does not need a new
        connection each time.
        """
        waker = self._waker
        if waker is not None and not waker.is_old() and names <= self._names:
            return waker
        names |= self._names
        self._drop()
        waker = self._broker.waker(sorted(names))
        with self._lock:
            self._waker, self._names = waker, names
            self._reading = names if waker.forgetful else self._reading
        if waker.forgetful:
            self._audience.check_all()
        return waker

    def _listen(self, waker: Waker, names: frozenset[str]) -> None:
        hints = waker.wait(BLOCK, names)
        if hints:
            self._health.recovered()
            unused = self._audience.tokens(hints)
            if not all(self._audience.serves(name) for name, _ in unused):
                self._drop()  # the next one listens to no queue that is not served any more
            self.put_back(unused)

    def _drop(self) -> None:
        with self._lock:
            waker, self._waker, self._names = self._waker, None, frozenset()
        if waker is not None:
            with contextlib.suppress(Exception):
                waker.close()
