"""Bounded pool of connections, shared by plain commands and packed script calls.

redis-py's own pool raises as soon as all connections are in use, and taking a connection from it takes longer than
packing and parsing a call.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import Any, Final, cast
from weakref import WeakSet

from redis import exceptions as redis_errors
from redis.connection import ConnectionPool
from redis.sentinel import SentinelConnectionPool

from .link import Link, deadline_of_thread

#: options of a connection that name its server
_ADDRESS: Final = ("host", "port", "path")


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
        #: all existing connections, in use or not
        self._links: WeakSet[Link] = WeakSet()
        super().reset()

    @property
    def _in_use_connections(self) -> Any:
        """Connections in use, for the other methods of redis-py."""
        with self._lock:  # other threads add connections
            return {link for link in self._links if link.in_use}

    @_in_use_connections.setter
    def _in_use_connections(self, connections: Any) -> None:
        """Ignore the assignment: redis-py only empties its own set here."""

    def make_connection(self) -> Any:
        """Return a new connection, which connects on first use."""
        patience, max_age = self.limits.patience, self.limits.max_age
        return self.connection_class(**self.connection_kwargs, patience=patience, max_age=max_age)

    def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> Any:
        """Return a connection for a command of redis-py; see :meth:`take`."""
        link = self.take()
        if link.is_stale():
            link.disconnect()
        return link

    def release(self, connection: Any) -> None:
        """Take a connection back, and pass it to the longest-waiting caller."""
        if self.pid != os.getpid():
            self._checkpid()
        with self._lock:
            if not connection.in_use or connection.pid != self.pid:  # released before, or the parent process's
                return
            connection.retry.until = None
            if connection.closes:
                connection.closes = False
                connection.disconnect()
            if self._waiting:
                self._waiting.popleft().put(connection)
                return
            connection.in_use = False
            if connection.is_open:
                self._available_connections.append(connection)
            else:
                self._available_connections.insert(0, connection)  # open ones are used first

    def close(self) -> None:
        """Close the idle connections now, and those in use as soon as their callers release them."""
        if self.pid != os.getpid():
            self._checkpid()
        with self._lock:
            for link in self._links:
                if link.in_use:
                    link.closes = True
                else:
                    link.disconnect()

    def address(self) -> tuple[tuple[str, Any], ...]:
        """Return the options that name the server of the pool, for pools of another kind."""
        return tuple((name, self.connection_kwargs[name]) for name in _ADDRESS if name in self.connection_kwargs)

    @property
    def in_use(self) -> int:
        """Number of connections that callers hold."""
        return len(self._in_use_connections)

    # --- for packed calls

    def take(self, until: float | None = None) -> Link:
        """Return a connection, to be returned by :meth:`release`.

        Args:
            until: end (monotonic) of the call; None = that of the thread (:func:`.link.within`), or of its patience.

        Raises:
            MaxConnectionsError: all connections were in use until then.
        """
        if self.pid != os.getpid():
            self._checkpid()
        with self._lock:
            link = self._find_free()
            if link is None:
                place: SimpleQueue[Link] = SimpleQueue()
                self._waiting.append(place)
        if until is None:
            until = deadline_of_thread()
        if link is None:
            until = time.monotonic() + self.limits.patience if until is None else until
            link = self._wait(place, until)
        if until is not None:
            link.limit(until)
        self._renew(link)
        return link

    def take_spare(self, until: float) -> Link | None:
        """Return a connection for a call that ends at ``until``; None = at most one is free.

        For callers that may hold several while they wait for another one. The last one is reserved for callers that
        hold none: otherwise callers could wait for each other in a circle.
        """
        if self.pid != os.getpid():
            self._checkpid()
        with self._lock:
            free = len(self._available_connections) + self.max_connections - len(self._links)
            if self._waiting or free < 2:
                return None
            link = self._find_free()
        if link is not None:
            link.limit(until)
            self._renew(link)
        return link

    def begin(self, packed: bytes, until: float) -> Pending | None:
        """Send a packed command, once, for a caller that reads the reply later; None = no spare connection."""
        link = self.take_spare(until)
        if link is None:
            return None
        try:
            link.send_before(packed, until)
        except BaseException:
            self.release(link)
            raise
        return Pending(link.read_before, partial(self.release, link))

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

    def _renew(self, link: Link) -> None:
        """Close a connection that is too old."""
        if self.limits.max_age is not None and time.monotonic() >= link.old_at:
            link.disconnect()  # it reconnects before it sends
            self._close_old()

    def _close_old(self) -> None:
        now = time.monotonic()
        with self._lock:
            for idle in self._available_connections:
                if now >= idle.old_at:
                    idle.disconnect()


class BoundedSentinelPool(BoundedPool, SentinelConnectionPool):
    """Bounded pool for the master that Sentinels name."""

    def address(self) -> tuple[tuple[str, Any], ...]:
        """Return host and port of the master to which this pool has connected last."""
        if self.master_address is None:
            raise redis_errors.ConnectionError("the Sentinels were not asked for the master yet")
        return tuple(zip(("host", "port"), self.master_address, strict=True))

    def release(self, connection: Any) -> None:
        """Release a connection, see :meth:`BoundedPool.release`. A connection to an earlier master is closed."""
        if self.master_address != (connection.host, connection.port):
            connection.disconnect()
        super().release(connection)


class Pending:
    """Command that was sent, and whose reply has to be read once.

    Args:
        read: returns the reply or raises the error; gets the end (monotonic) of the wait for it.
        release: returns the connection to the pool.
    """

    __slots__ = ("_read", "_release")

    def __init__(self, read: Callable[[float], Any], release: Callable[[], None]) -> None:
        self._read = read
        self._release = release

    def reply(self, until: float) -> Any:
        """Return the reply or raise the error. The wait for it ends at ``until`` (monotonic)."""
        try:
            return self._read(until)
        finally:
            self._release()


@cache
def _link_class(base: type) -> type[Link]:
    """Return redis-py's class of connections as one of links."""
    if issubclass(base, Link):
        return base
    return cast(type[Link], type(f"{base.__name__}Link", (Link, base), {}))
