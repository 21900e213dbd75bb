"""Bounded pool of connections, shared by plain commands and packed script calls, and the time limit of one call.

redis-py's own pools were tried: taking a connection from ``BlockingConnectionPool`` makes a call a fifth slower, and
the wait for it, connecting, and each attempt have time limits of their own. Here they share one deadline.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar, cast
from weakref import WeakSet

from redis import exceptions as redis_errors
from redis.connection import AbstractConnection, ConnectionPool
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from .faults import REDIS_ERRORS, Fault, classify

T = TypeVar("T")
_Base: Any = AbstractConnection

#: seconds in which a node of a cluster has to name the slots
SLOTS_SECONDS: Final = 1.0
#: age of a connection that is closed when its caller releases it
CLOSED: Final = -math.inf


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of a pool and of each call over it.

    Args:
        connections: maximum number of connections, idle ones included.
        patience: time limit of a call in seconds, including the wait for a connection, connecting and every retry.
        max_age: seconds after which a connection is replaced; None = never.
    """

    connections: int = 100
    patience: float = math.inf
    max_age: float | None = None


def end_of(max_age: float | None) -> float:
    """Return when (``time.monotonic()``) a new connection is to be replaced; the moments are spread."""
    return math.inf if max_age is None else time.monotonic() + max_age * random.uniform(0.8, 1.0)


# --- deadline of a thread


class _Thread(threading.local):
    until: float | None = None
    sent_at = -math.inf


_thread: Final = _Thread()


@contextmanager
def within(until: float | None) -> Iterator[None]:
    """Set the deadline (monotonic) of all commands that this thread sends in the block; an earlier one stays.

    For calls whose connections redis-py takes: a cluster's client queries several nodes, a Sentinel's pool its
    Sentinels.
    """
    outer = _thread.until
    _thread.until = until if outer is None else outer if until is None else min(outer, until)
    try:
        yield
    finally:
        _thread.until = outer


def end_of_call(patience: float) -> float:
    """Return the end (monotonic) of a call that begins now: the deadline of this thread, or that of its patience."""
    return time.monotonic() + patience if _thread.until is None else _thread.until


def last_sent(since: float) -> float:
    """Return when (monotonic) this thread last began to send something; ``since`` if it has sent nothing since then.

    Of a call that was just made it is the beginning of the attempt that was answered.
    """
    return max(since, _thread.sent_at)


# --- connections


class CallRetry(Retry):
    """Retry policy of one connection. All attempts of a call share one deadline."""

    def __init__(self, policy: Retry, patience: float) -> None:
        super().__init__(policy._backoff, policy._retries, policy._supported_errors)
        #: time limit of a call in seconds
        self.patience = patience
        #: end (monotonic) of the call in progress; None = its patience counts from its first attempt
        self.until: float | None = None
        #: True while the connection connects, which is part of an attempt and never retried by itself
        self.connecting = False

    def call_with_retry(
        self,
        do: Callable[[], T],
        fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None,
        with_failure_count: bool = False,
    ) -> T:
        """Return the result of ``do``, after as many attempts as the policy and the deadline allow."""
        if self.connecting:
            return do()
        if self.until is None:
            self.until = time.monotonic() + self.patience
        failures = 0
        try:
            while True:
                try:
                    return do()
                except self._supported_errors as error:
                    failures += 1
                    fail(error, failures) if with_failure_count else fail(error)
                    if is_retryable and not is_retryable(error):
                        raise
                    self.pause_after(error, failures)
        finally:
            self.until = None

    def pause_after(self, error: BaseException, failures: int) -> None:
        """Wait before the next attempt; raise the error of the last one if there may be none."""
        if not isinstance(error, self._supported_errors) or classify(error) is not Fault.TRANSIENT:
            raise error
        pause = self._backoff.compute(failures)
        if failures > self._retries or time.monotonic() + pause >= cast(float, self.until):
            raise error
        time.sleep(pause)

    def limited(self, seconds: float | None) -> float | None:
        """Return the time limit of a step: its own one, or the time left for the call."""
        if self.until is None or self.until == math.inf:
            return seconds
        remaining = self.until - time.monotonic()
        if remaining <= 0:
            raise redis_errors.TimeoutError("no answer within the time that a call may take")
        return remaining if seconds is None else min(seconds, remaining)


class Link(_Base):  # type: ignore[misc]  # half of its methods have no annotations
    """Mixin for redis-py's connections: connecting is tried once and shares the deadline of the call that needs it.

    It connects at the first send, so that connecting, the handshake and the command make one attempt.

    Args:
        limits: those of its pool.
    """

    retry: CallRetry
    socket_timeout: float | None
    socket_connect_timeout: float | None

    def __init__(self, *, limits: PoolLimits, **options: Any) -> None:
        super().__init__(**options)
        self.retry = CallRetry(self.retry, limits.patience)
        self._max_age = limits.max_age
        #: True while a caller of its pool has it
        self.in_use = False
        #: moment (monotonic) at which it is to be replaced
        self.old_at = math.inf

    # --- interface of redis-py

    def connect(self) -> None:
        """Connect and shake hands, unless connected."""
        if self._sock is not None:
            return
        self.retry.connecting = True
        try:
            with within(self.retry.until):
                super().connect()
        finally:
            self.retry.connecting = False
        self.old_at = end_of(self._max_age)

    def _connect(self) -> Any:
        limits = self.socket_timeout, self.socket_connect_timeout
        self.socket_timeout, self.socket_connect_timeout = map(self.retry.limited, limits)
        try:
            return super()._connect()
        finally:
            self.socket_timeout, self.socket_connect_timeout = limits

    def send_command(self, *args: Any, **options: Any) -> None:
        """Send a command; connect first if necessary.

        redis-py asks one node after another for the slots of a cluster, under a lock for which the calls of all threads
        to another node wait, so a silent one must not take the whole time limit of a call.
        """
        if args[0] == "CLUSTER SLOTS":
            self.retry.until = min(self.retry.until or math.inf, time.monotonic() + SLOTS_SECONDS)
        super().send_command(*args, **options)

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send a packed command; connect first if necessary."""
        self._begin()
        super().send_packed_command(command, check_health)

    def _begin(self) -> None:
        if self._sock is None:
            self.connect()
        self.allow(self.retry.limited(self.socket_timeout))
        _thread.sent_at = time.monotonic()

    # --- for the pool and packed calls

    def exchange(self, packed: bytes) -> Any:
        """Send a packed command and return the reply, after as many attempts as the policy and the deadline allow."""
        failures = 0
        while True:
            try:
                self._begin()
                super().send_packed_command([packed], False)
                return self.read_response()
            except BaseException as error:
                failures += 1
                if not isinstance(error, redis_errors.ResponseError):
                    self.disconnect()  # a reply may be left on it
                self.retry.pause_after(error, failures)
                self.disconnect()

    def allow(self, seconds: float | None) -> None:
        """Give the next step so much time, even beyond the deadline of the call."""
        sock = self._sock  # None if another thread closed it
        if sock is not None and sock.gettimeout() != seconds:  # to set it takes a system call
            sock.settimeout(seconds)


@cache
def _link_class(base: type) -> type[Link]:
    """Return redis-py's class of connections as one of links."""
    if issubclass(base, Link):
        return base
    return cast(type[Link], type(f"{base.__name__}Link", (Link, base), {}))


# --- pools


class BoundedPool(ConnectionPool):
    """Pool that lets a caller wait, in the order of arrival, while all connections are in use.

    A connection that its holder lost without releasing it is dropped with its last reference, so that it stops
    counting. After a fork the child makes connections of its own.
    """

    _available_connections: list[Link]

    def __init__(self, *args: Any, limits: PoolLimits, **options: Any) -> None:
        self.limits = limits
        super().__init__(*args, **options | {"max_connections": limits.connections})
        self.connection_class = _link_class(self.connection_class)

    def __repr__(self) -> str:
        # redis-py 6 and 7 print all arguments here, the password among them.
        return f"<{type(self).__name__}>"

    # --- interface of redis-py

    def reset(self) -> None:
        """Forget all connections after a fork, without closing them: they belong to the parent process."""
        self._lock = threading.RLock()  # the parent's may have been held when it forked
        self._waiting: deque[SimpleQueue[Link]] = deque()
        #: all existing connections, in use or idle
        self._links: WeakSet[Link] = WeakSet()
        super().reset()

    @property
    def _in_use_connections(self) -> set[Link]:
        with self._lock:  # other threads add connections
            return {link for link in self._links if link.in_use}

    @_in_use_connections.setter
    def _in_use_connections(self, _: object) -> None:
        """Ignore the empty set of redis-py's ``reset()``."""

    def make_connection(self) -> Any:
        """Return a new connection, which connects on first use."""
        return self.connection_class(**self.connection_kwargs, limits=self.limits)

    def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> Any:
        """Return a connection for a command of redis-py; see :meth:`take`."""
        link = self.take()
        try:
            if link._sock is not None and link.can_read():  # the peer closed it, or unread data is left on it
                link.disconnect()
        except REDIS_ERRORS:
            link.disconnect()
        return link

    def release(self, connection: Any) -> None:
        """Take a connection back, and pass it to the longest-waiting caller."""
        self._checkpid()
        with self._lock:
            if not connection.in_use or connection.pid != self.pid:  # released before, or the parent process's
                return
            connection.retry.until = None
            if connection.old_at == CLOSED:
                connection.disconnect()
            if self._waiting:
                self._waiting.popleft().put(connection)
                return
            connection.in_use = False
            self._available_connections.append(connection)

    def close(self) -> None:
        """Close the idle connections now, and those in use as soon as their callers release them."""
        self._checkpid()
        with self._lock:  # other threads take connections
            for link in self._links:
                if link.in_use:
                    link.old_at = CLOSED
                else:
                    link.disconnect()

    # --- for packed calls

    def take(self, until: float | None = None) -> Link:
        """Return a connection, to be returned by :meth:`release`.

        Args:
            until: end (monotonic) of the call; None = that of the thread (:func:`within`), or of its patience.

        Raises:
            MaxConnectionsError: all connections were in use until then.
        """
        self._checkpid()
        with self._lock:
            link = self._find_free()
            if link is None:
                place: SimpleQueue[Link] = SimpleQueue()
                self._waiting.append(place)
        until = _thread.until if until is None else until
        if link is None:
            until = end_of_call(self.limits.patience) if until is None else until
            link = self._wait(place, until)
        link.retry.until = until
        if (now := time.monotonic()) >= link.old_at:
            link.disconnect()  # it reconnects before it sends
            with self._lock:
                for idle in self._available_connections:
                    if now >= idle.old_at:
                        idle.disconnect()
        return link

    @property
    def has_spare(self) -> bool:
        """True if another connection is free. Callers that use their connection later do not take the last one."""
        return not self._waiting and bool(self._available_connections or len(self._links) < self.max_connections)

    # ---

    def _find_free(self) -> Link | None:
        """Return an unused or new connection; None = all are in use. The caller must hold the lock."""
        if self._available_connections:
            link = self._available_connections.pop()
        elif len(self._links) < self.max_connections:
            link = cast(Link, self.make_connection())
            self._links.add(link)
        else:
            return None
        link.in_use = True
        return link

    def _wait(self, place: SimpleQueue[Link], until: float) -> Link:
        try:
            return place.get(timeout=None if until == math.inf else max(0.0, until - time.monotonic()))
        except BaseException as error:
            with self._lock, suppress(ValueError):
                self._waiting.remove(place)
            with suppress(Empty):
                link = place.get_nowait()  # it arrived at the last moment
                if isinstance(error, Empty):
                    return link
                self.release(link)
            if isinstance(error, Empty):
                raise redis_errors.MaxConnectionsError(
                    f"Too many connections: all {self.max_connections} of this process were in use; "
                    f"use fewer threads or raise MAX_CONNECTIONS"
                ) from None
            raise


class BoundedSentinelPool(BoundedPool, SentinelConnectionPool):
    """Bounded pool for the master that Sentinels name."""

    def release(self, connection: Any) -> None:
        """Release a connection, see :meth:`BoundedPool.release`. A connection to an earlier master is closed."""
        if self.master_address != (connection.host, connection.port):
            connection.disconnect()
        super().release(connection)
