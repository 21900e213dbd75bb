"""Verbs on an event loop. Each verb is written once, as blocking code; here it runs without blocking.

A verb is run until it needs a reply that is not there yet. The reply is awaited, and the verb is run again with the
replies that are known so far, until it returns. Between its calls of scripts a verb only packs, routes and reads
replies, so that running it again takes microseconds and changes nothing. A verb that does something else (it opens a
queue, or waits until another process has changed the number of shards) runs in a thread; this is rare.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from .errors import DelayQError
from .operations.inspector import Inspector

if TYPE_CHECKING:
    from .broker import Broker
    from .queue import Queue
    from .records.layout import Layout

B = TypeVar("B", bound="Broker")
T = TypeVar("T")


async def run_verb(broker: B, verb: Callable[[B], T]) -> T:
    """Return the result of ``verb(broker)``; the event loop continues while Redis is called.

    Args:
        verb: calls Redis through the broker that it gets, and has no other effects. It is run several times, and only
            its last call may change something in Redis.

    Raises:
        Exception: any error of the verb.
    """
    replies: list[Any] = []
    before: dict[str, Queue | None] = {}
    while True:
        try:
            return verb(_replayed(broker, _Replies(replies), before))
        except _ReplyNeeded as needed:
            call = needed
        except _ThreadNeeded:
            return await asyncio.to_thread(verb, broker)
        try:
            replies.append(await call.send(broker))
        except DelayQError as error:
            replies.append(error)


@dataclass(eq=False)
class _ReplyNeeded(BaseException):
    """Call whose reply is needed. It is no ``Exception``, which a verb might catch.

    Attributes:
        send: makes the call and returns its reply.
    """

    send: Callable[[Broker], Awaitable[Any]]


class _ThreadNeeded(BaseException):
    """Raised by a verb that waits for something else than such a call."""


class _Replies:
    """Known replies in the order of the calls, behind which a verb stops.

    Args:
        replies: the replies, or the errors in their place.
    """

    def __init__(self, replies: Sequence[Any]) -> None:
        self._replies = deque(replies)

    def to(self, send: Callable[[Broker], Awaitable[Any]]) -> Any:
        """Return the reply to the next call, or raise its error."""
        if not self._replies:
            raise _ReplyNeeded(send)
        reply = self._replies.popleft()
        if isinstance(reply, DelayQError):
            raise reply
        return reply


class _Blocking:
    """Part of a broker that blocks, except for what is replayed."""

    def __init__(self, **replayed: Any) -> None:
        self.__dict__.update(replayed)

    def __getattr__(self, name: str) -> Any:
        raise _ThreadNeeded


class _ReplayedQueues(dict[str, "Queue"]):
    """Queues of one run: copies of those that were known before the first run, so that all runs take the same way.

    Args:
        known: the queues that this process knows.
        before: copies of them, made when a run first needs them.
        view: the broker of the run.
    """

    def __init__(self, known: Mapping[str, Queue], before: dict[str, Queue | None], view: Broker) -> None:
        super().__init__()
        self._known = known
        self._before = before
        self._view = view

    def get(self, name: str, default: Any = None) -> Any:
        """Return the queue of this name, if it is known."""
        if name not in self:
            if name not in self._before:
                known = self._known.get(name)
                self._before[name] = None if known is None else copy.copy(known)
            before = self._before[name]
            if before is None:
                return default
            self[name] = copy.copy(before)
            self[name].broker = self._view
        return self[name]


def _replayed(broker: B, known: _Replies, before: dict[str, Queue | None]) -> B:
    """Return a copy of the broker that calls no server."""
    view = copy.copy(broker)

    def call(name: str, keys: tuple[bytes, ...], *args: Any, until: float | None = None) -> Any:
        return known.to(lambda broker: broker.scripts.call_async(name, keys, *args))

    def read_field(key: str, name: str) -> Any:
        return known.to(lambda broker: broker.connection.execute_async("HGET", key, name))

    def install(name: str, layout: Layout) -> Queue:
        broker._install(name, layout)
        return type(view)._install(view, name, layout)

    vars(view).update(
        scripts=_Blocking(call=call),
        connection=_Blocking(
            cluster=broker.connection.cluster,
            confirmation=broker.connection.confirmation,
            client=_Blocking(hget=read_field),
        ),
        epochs=_Blocking(),
        _queues=_ReplayedQueues(broker._queues, before, view),
        _install=install,
        _open=_need_thread,
    )
    view.inspector = Inspector(cast("Broker", view))
    return view


def _need_thread(*_: object) -> NoReturn:
    raise _ThreadNeeded
