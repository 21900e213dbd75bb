"""Verbs on an event loop. Each verb is written once, as blocking code; here it runs without blocking.

A verb is run until it needs a reply that is not there yet. The reply is awaited, and the verb is run again with the
replies that are known so far, until it returns. Between its calls of scripts a verb only packs, routes and reads
replies, so that running it again takes microseconds and changes nothing. A verb that does something else (it opens a
queue, or waits until another process has changed the number of shards) runs in a thread; this is rare.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, cast

from .errors import DelayQError
from .inspector import Inspector
from .redis.connection import ON_ANOTHER_NODE
from .redis.scripts import clear_errors, pack_command

if TYPE_CHECKING:
    from .broker import Broker
    from .queue import Queue
    from .records.layout import Layout

B = TypeVar("B", bound="Broker")
T = TypeVar("T")
Original = TypeVar("Original")


async def run_verb(broker: B, verb: Callable[[B], T]) -> T:
    """Return the result of ``verb(broker)``; the event loop continues while Redis is called.

    Args:
        verb: calls Redis through the broker that it gets, and has no other effects. It is run several times, and only
            its last call may change something in Redis. Its result does not use the broker.

    Raises:
        Exception: any error of the verb.
    """
    replay = _Replay(broker)
    while True:
        try:
            return replay.run(verb)
        except _ReplyNeeded as needed:
            send, arguments = needed.send, needed.arguments
        except _ThreadNeeded:
            return await asyncio.to_thread(verb, broker)
        try:
            replay.replies.append(await send(broker, *arguments))
        except DelayQError as error:
            replay.replies.append(error)


@dataclass(eq=False)
class _ReplyNeeded(BaseException):
    """Call whose reply is needed. It is no ``Exception``, which a verb might catch.

    Attributes:
        send: makes the call, given the broker and ``arguments``, and returns its reply.
    """

    send: Callable[..., Awaitable[Any]]
    arguments: tuple[Any, ...]


class _ThreadNeeded(BaseException):
    """Raised by a verb that waits for something else than such a call."""


class _Blocking:
    """Part of a broker that blocks, except for what is replayed: the attributes that are set."""

    __slots__ = ("call", "client", "cluster", "confirmation", "hget", "hgetall")
    call: Any
    client: Any
    cluster: Any
    confirmation: Any
    hget: Any
    hgetall: Any

    def __getattr__(self, name: str) -> Any:
        raise _ThreadNeeded


_BLOCKING: Final = _Blocking()


class _ReplayedQueues(dict[str, "Queue"]):
    """Queues of one run: copies of those that were known before the first run, so that all runs take the same way.

    Args:
        originals: the queues of this process.
        before: copies of them by name, made when a run first needs them.
        view: the broker of the run.
    """

    def __init__(self, originals: Mapping[str, Queue], before: dict[str, Queue | None], view: Broker) -> None:
        super().__init__()
        self._originals = originals
        self._before = before
        self._view = view

    def get(self, name: str, default: Any = None) -> Any:
        """Return the queue of this name, if it is known."""
        if name not in self:
            if name not in self._before:
                original = self._originals.get(name)
                self._before[name] = None if original is None else _twin(original)
            before = self._before[name]
            if before is None:
                return default
            self[name] = _twin(before)
            self[name].broker = self._view
        return self[name]


class _Replay(Generic[B]):
    """Runs of one verb on copies of a broker that call no server."""

    __slots__ = ("_before", "_broker", "_read", "_since", "replies")

    def __init__(self, broker: B) -> None:
        self._broker = broker
        self._since = broker._adopted
        self._before: dict[str, Queue | None] = {}
        self._read = 0
        #: known replies in the order of the calls, or the errors in their place
        self.replies: list[Any] = []

    def run(self, verb: Callable[[B], T]) -> T:
        """Run the verb from its beginning.

        Raises:
            _ReplyNeeded: it made more calls than there are replies.
        """
        self._read = 0
        view = _twin(self._broker)
        scripts, connection, client = _Blocking(), _Blocking(), _Blocking()
        scripts.call, client.hget, client.hgetall = self._call, self._read_field, self._read_hash
        own = self._broker.connection
        connection.client, connection.cluster, connection.confirmation = client, own.cluster, own.confirmation

        def install(name: str, layout: Layout, since: int) -> bool:
            # Each run reads the earlier replies again: the broker may know a later layout by now.
            self._broker._install(name, layout, self._since)
            return type(view)._install(view, name, layout, sys.maxsize)

        queues = _ReplayedQueues(self._broker._queues, self._before, view)
        vars(view).update(
            scripts=scripts,
            connection=connection,
            epochs=_BLOCKING,
            _queues=queues,
            _install=install,
            _open=_need_thread,
            layout_seconds=math.inf,
        )
        view.inspector = Inspector(cast("Broker", view))
        try:
            return verb(view)
        finally:
            # They refer to each other. A thousand concurrent verbs would give the garbage collector much to do.
            queues.clear()
            vars(view).clear()

    def _call(self, name: str, keys: tuple[bytes, ...], *args: Any, until: float | None = None) -> Any:
        return self._reply(_call_script, name, keys, *args)

    def _read_field(self, key: str, name: str) -> Any:
        return self._reply(_read, key.encode(), b"HGET", name)

    def _read_hash(self, key: bytes | str) -> dict[bytes, bytes]:
        reply = self._reply(_read, key if isinstance(key, bytes) else key.encode(), b"HGETALL")
        return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))

    def _reply(self, send: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Return the reply to the next call, or raise its error."""
        if self._read == len(self.replies):
            raise _ReplyNeeded(send, arguments)
        reply = self.replies[self._read]
        self._read += 1
        if isinstance(reply, DelayQError):
            raise reply
        return reply


def _twin(original: Original) -> Original:
    """Return a copy of an object with the same attributes; ``copy.copy`` takes ten times as long."""
    twin = object.__new__(type(original))
    twin.__dict__.update(original.__dict__)
    return twin


def _call_script(broker: Broker, name: str, keys: tuple[bytes, ...], *args: Any) -> Awaitable[Any]:
    return broker.scripts.call_async(name, keys, *args)


async def _read(broker: Broker, key: bytes, verb: bytes, *words: str) -> Any:
    until = time.monotonic() + broker.connection.patience
    with clear_errors():
        try:
            return await broker.connection.exchange_async(key, pack_command(verb, key, *words), until)
        except ON_ANOTHER_NODE:
            return await asyncio.to_thread(broker.client.execute_command, verb.decode(), key, *words)


def _need_thread(*_: object) -> NoReturn:
    raise _ThreadNeeded
