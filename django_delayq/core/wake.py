"""Wait for wake-ups without polling: by a wake list per queue, or on a cluster by a channel per queue.

The tokens carry no data: each is the number of a shard to check. A lost token only delays work until the next safety
check.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from .records.keys import wake_key
from .redis.connection import Connection
from .redis.link import end_of
from .redis.scripts import clear_errors

Hints = list[tuple[str, int]]

#: one wait for messages, and that for the confirmation of a subscription
_LISTEN_SECONDS: Final = 0.5
_SUBSCRIBE_SECONDS: Final = 5.0


class Waker:
    """Source of wake-ups. One thread waits; any thread may close."""

    #: True if the waker misses tokens sent before it was created: check every shard once
    forgetful: bool

    def __init__(self, connection: Connection, prefix: str, queues: Sequence[str]) -> None:
        self._queues = {wake_key(prefix, name).encode(): name for name in queues}
        self._ends_at = end_of(connection.max_age)
        self._closed = threading.Event()

    def wait(self, timeout: float) -> Hints:
        """Block up to ``timeout`` seconds and return the (queue, shard) pairs to check; none at the timeout."""
        raise NotImplementedError

    def is_old(self) -> bool:
        """Return True if its connection has reached ``max_connection_age``: replace the waker between two waits."""
        return time.monotonic() >= self._ends_at

    def close(self) -> None:
        """Make the current and all later calls of :meth:`wait` return soon."""
        self._closed.set()


class ListWaker(Waker):
    """Waker that uses BLPOP on the wake lists: one token wakes one waiter (standalone Redis, Sentinel)."""

    forgetful = False

    def __init__(self, connection: Connection, prefix: str, queues: Sequence[str]) -> None:
        super().__init__(connection, prefix, queues)
        self._commands = connection.client
        # A client bound to one connection, so that its client id identifies the blocking connection.
        self._blocking: Any = connection.blocking().client()
        self._client_id: int | None = None

    def wait(self, timeout: float) -> Hints:
        """Wait for a wake-up; see :meth:`Waker.wait`."""
        if self._closed.is_set():
            return []
        with clear_errors():
            self._client_id = self._blocking.client_id()
            if self._closed.is_set():
                return []
            popped = self._blocking.blpop(list(self._queues), timeout)
        self._client_id = None
        if not popped:
            return []
        key, token = popped
        return [(self._queues[key], int(token))]

    def close(self) -> None:
        """End the waits, the current one too; see :meth:`Waker.close`."""
        super().close()
        client_id = self._client_id
        if client_id is not None:
            with clear_errors():
                self._commands.client_unblock(client_id)


class ChannelWaker(Waker):
    """Waker that uses channels: every waiter receives every token (Redis Cluster relays them to all nodes)."""

    forgetful = True

    def __init__(self, connection: Connection, prefix: str, queues: Sequence[str]) -> None:
        super().__init__(connection, prefix, queues)
        self._pubsub: Any = connection.blocking().pubsub()
        with clear_errors():
            self._pubsub.subscribe(*self._queues)
            for _ in self._queues:  # until Redis confirms the subscription, tokens may be missed
                self._pubsub.get_message(timeout=_SUBSCRIBE_SECONDS)

    def wait(self, timeout: float) -> Hints:
        """Wait for a wake-up; see :meth:`Waker.wait`."""
        until = time.monotonic() + timeout
        with clear_errors():
            while not self._closed.is_set() and (left := until - time.monotonic()) > 0:
                # A local wait on the socket; no command is sent.
                message = self._pubsub.get_message(timeout=min(left, _LISTEN_SECONDS))
                if message and message["type"] == "message":
                    return [(self._queues[message["channel"]], int(message["data"]))]
        return []
