"""Calls of one script on many shards: one round trip for each node, however many shards there are.

The calls to a node are sent in one piece over one connection, and their replies are read one after another. A call that
fails on a node (the slot has moved, the script is not loaded, the connection broke) is repeated alone, on the path that
follows slots and loads scripts. Therefore this is only for scripts that change nothing, or carry a request id.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import NoScriptError, ResponseError

from ..errors import QueueUnavailable
from ..records.keys import Shard
from .connection import PARTIAL_SECONDS
from .faults import REDIS_ERRORS
from .link import deadline_of_thread, within
from .pool import BoundedPool
from .scripts import clear_errors, pack_command, raise_clear

if TYPE_CHECKING:
    from ..broker import Broker

#: the shard, and the further arguments of the script
ShardCall = tuple[Shard, tuple[Any, ...]]
#: shards whose calls are sent in one piece, 2 kB each
PIPELINE: Final = 16_384


def gather(
    broker: Broker, script: str, calls: Sequence[ShardCall], *, shards: int = 1, partial: bool = False
) -> list[Any]:
    """Return the replies to the calls of a script, in their order.

    Args:
        shards: number of shards whose keys a call has, at most.
        partial: on a cluster, return a :class:`QueueUnavailable` in place of each reply that a node did not give
            within ``PARTIAL_SECONDS``. For what people look at; decisions need all replies.

    Raises:
        QueueUnavailable, QueueFull, Misconfigured: a part of the calls failed; see :meth:`Scripts.call`.
    """
    gathering = _Gathering(broker, script, calls, PIPELINE // shards)
    return gathering.partial_answers() if partial and broker.connection.cluster else gathering.answers()


class _Gathering:
    def __init__(self, broker: Broker, script: str, calls: Sequence[ShardCall], at_once: int) -> None:
        self._broker = broker
        self._script = script
        self._calls = calls
        self._at_once = at_once
        #: a reply, or the error in its place
        self._found: list[Any] = [None] * len(calls)
        #: end (monotonic) of all calls; None = that of the thread
        self._until: float | None = deadline_of_thread()

    def answers(self) -> list[Any]:
        if len(self._calls) == 1:
            return [self._call_alone(0)]
        self._call_nodes(self._group_by_node())
        return [
            self._call_alone(place) if isinstance(reply, Exception) else reply
            for place, reply in enumerate(self._found)
        ]

    def partial_answers(self) -> list[Any]:
        """Return a reply or a :class:`QueueUnavailable` for each call.

        Each node has a time limit of its own, so that one that hangs costs the others nothing. Of each node with failed
        calls one is repeated alone, and the others only if that one succeeds.
        """
        outer = self._until or math.inf
        by_node = self._group_by_node()
        without_node = [place for place, reply in enumerate(self._found) if isinstance(reply, Exception)]
        for pool, places in (*by_node.items(), (None, without_node)):
            self._until = min(outer, time.monotonic() + PARTIAL_SECONDS)
            with within(self._until):
                if pool is not None:
                    self._call_nodes({pool: places})
                self._repeat_failed([place for place in places if isinstance(self._found[place], Exception)])
        return self._found

    def _repeat_failed(self, places: Sequence[int]) -> None:
        for done, place in enumerate(places):
            try:
                self._found[place] = self._call_alone(place)
            except QueueUnavailable as error:
                for left in places[done:]:
                    self._found[left] = error
                return

    def _call_nodes(self, by_node: Mapping[BoundedPool, list[int]]) -> None:
        with clear_errors():
            sha, _ = self._broker.scripts.loaded(self._script)
        for pool, places in by_node.items():
            for start in range(0, len(places), self._at_once):
                self._call_node(pool, places[start : start + self._at_once], sha)

    def _group_by_node(self) -> dict[BoundedPool, list[int]]:
        parts: dict[BoundedPool, list[int]] = {}
        for place, (shard, _) in enumerate(self._calls):
            try:
                parts.setdefault(self._broker.connection.pool(shard.keys[0]), []).append(place)
            except REDIS_ERRORS as error:  # no node is known that has the slot
                self._found[place] = error
        return parts

    def _call_node(self, pool: BoundedPool, places: Sequence[int], sha: str) -> None:
        self._send(pool, places, sha)
        unknown = [place for place in places if isinstance(self._found[place], NoScriptError)]
        if len(unknown) > 1:
            self._found[unknown[0]] = self._call_alone(unknown[0])  # this loads the script there
            self._send(pool, unknown[1:], sha)

    def _send(self, pool: BoundedPool, places: Sequence[int], sha: str) -> None:
        packed = b"".join(self._packed(place, sha) for place in places)
        try:
            link = pool.take(self._until)
        except REDIS_ERRORS as error:
            self._record_loss(places, error)
            return

        def read() -> None:
            for place in places:
                try:
                    self._found[place] = link.read_response()
                except ResponseError as error:
                    self._found[place] = error

        try:
            link.exchange(packed, read)
        except REDIS_ERRORS as error:
            self._record_loss(places, error)
        finally:
            pool.release(link)

    def _record_loss(self, places: Iterable[int], error: Exception) -> None:
        """Record the error on a cluster, where another node may have the slots now; raise it for a single server."""
        if not self._broker.connection.cluster:
            raise_clear(error)
        for place in places:
            self._found[place] = error

    def _packed(self, place: int, sha: str) -> bytes:
        shard, args = self._calls[place]
        return pack_command(b"EVALSHA", sha, len(shard.keys), *shard.keys, b"", shard.constants, *args)

    def _call_alone(self, place: int) -> Any:
        shard, args = self._calls[place]
        return self._broker.scripts.call(self._script, shard.keys, b"", shard.constants, *args, until=self._until)
