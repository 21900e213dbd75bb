"""Wait for wake-ups without polling: by a wake list per queue, or on a cluster by a channel per queue.

The tokens carry no data: each is the number of a shard to check. A lost token only delays work until the next safety
check.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from redis import exceptions as redis_errors

from .deployment import Deployment
from .records.keys import wake_key
from .redis.connection import Connection
from .redis.pool import end_of
from .redis.scripts import clear_errors

Hints = list[tuple[str, int]]

#: one wait for messages; connecting and subscribing, and the wait for the confirmation of a subscription
_LISTEN_SECONDS: Final = 0.5
_SUBSCRIBE_SECONDS: Final = 2.0
#: silence of a node after which it gets a PING, and the time for its reply
_SILENT_SECONDS: Final = 5.0
_PING_SECONDS: Final = 1.0


def wake(deployment: Deployment, places: Sequence[tuple[str, int]]) -> None:
    """Wake consumers of these shards (queue and number), as the scripts do: a list has at most one token of a shard."""
    with clear_errors():
        for queue, number in places:
            key = deployment.wake_key(queue)
            if deployment.connection.cluster:
                client: Any = deployment.client
                client.publish(key, number, target_nodes=client.get_node_from_key(key))
            else:
                pipeline = deployment.client.pipeline()
                pipeline.lrem(key, 0, str(number))
                pipeline.rpush(key, number)
                pipeline.execute()


class Waker:
    """Source of wake-ups. One thread waits; any thread may close."""

    #: True if the waker misses tokens sent before it was created: check every shard once
    forgetful: bool

    def __init__(self, connection: Connection, prefix: str, queues: Sequence[str]) -> None:
        self._queues = {wake_key(prefix, name).encode(): name for name in queues}
        self._ends_at = end_of(connection.max_age)
        self._closed = threading.Event()

    def wait(self, timeout: float, names: frozenset[str] | None = None) -> Hints:
        """Block up to ``timeout`` seconds and return the (queue, shard) pairs to check; none at the timeout.

        Args:
            timeout: seconds.
            names: take tokens of these queues only; None = of all. Channels deliver those of all in any case.
        """
        raise NotImplementedError

    def interrupt(self) -> None:
        """Make the current call of :meth:`wait` return soon; one that is about to begin may miss it."""

    def is_old(self) -> bool:
        """Return True if its connection has reached ``max_connection_age``: replace the waker between two waits."""
        return time.monotonic() >= self._ends_at

    def close(self) -> None:
        """Make the current and all later calls of :meth:`wait` return soon."""
        self._closed.set()
        self.interrupt()


class ListWaker(Waker):
    """Waker that uses BLPOP on the wake lists: one token wakes one waiter (standalone Redis, Sentinel).

    BLPOP prefers the first list. The list that had a token comes last in the next call, so that no queue with many
    tokens hides those of another one.
    """

    forgetful = False

    def __init__(self, connection: Connection, prefix: str, queues: Sequence[str]) -> None:
        super().__init__(connection, prefix, queues)
        self._commands = connection.client
        # A client bound to one connection, so that its client id identifies the blocking connection.
        self._blocking: Any = connection.blocking().client()
        self._client_id: int | None = None

    def wait(self, timeout: float, names: frozenset[str] | None = None) -> Hints:
        """Wait for a wake-up; see :meth:`Waker.wait`."""
        keys = [key for key, name in self._queues.items() if names is None or name in names]
        with clear_errors():
            self._client_id = self._blocking.client_id()
            popped = self._blocking.blpop(keys, timeout) if keys and not self._closed.is_set() else None
        self._client_id = None
        if not popped:
            return []
        key, token = popped
        self._queues[key] = name = self._queues.pop(key)
        return [(name, int(token))]

    def interrupt(self) -> None:
        """End the current wait; see :meth:`Waker.interrupt`."""
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
            # The next waker gets another node, so none waits long for one that accepts connections and does not answer.
            with connection.limited(_SUBSCRIBE_SECONDS):
                self._pubsub.subscribe(*self._queues)
            for _ in self._queues:  # until Redis confirms the subscription, tokens may be missed
                if self._pubsub.get_message(timeout=_SUBSCRIBE_SECONDS) is None:
                    raise redis_errors.TimeoutError("the node does not confirm a subscription")
        self._heard_at = time.monotonic()
        self._pinged_at: float | None = None

    def wait(self, timeout: float, names: frozenset[str] | None = None) -> Hints:
        """Wait for a wake-up; see :meth:`Waker.wait`. Returns all that have arrived, because nobody else keeps them."""
        until = time.monotonic() + timeout
        hints: dict[tuple[str, int], None] = {}
        with clear_errors():
            while not self._closed.is_set() and (left := until - time.monotonic()) > 0:
                # A local wait on the socket; no command is sent.
                message = self._pubsub.get_message(timeout=0.0 if hints else min(left, _LISTEN_SECONDS))
                self._check_node(heard=message is not None)
                if message and message["type"] == "message":
                    hints[self._queues[message["channel"]], int(message["data"])] = None
                elif hints and not message:
                    break
        return list(hints)

    def _check_node(self, *, heard: bool) -> None:
        """Raise an error if the node has been silent, a PING included.

        A node that was cut off or stopped leaves its connections open. Its subscribers would miss the tokens of all
        other nodes until TCP gives up.
        """
        now = time.monotonic()
        if heard:
            self._heard_at, self._pinged_at = now, None
        elif self._pinged_at is not None and now - self._pinged_at > _PING_SECONDS:
            raise redis_errors.TimeoutError("the node of the wake-ups does not answer")
        elif self._pinged_at is None and now - self._heard_at > _SILENT_SECONDS:
            self._pubsub.ping()
            self._pinged_at = now
