"""Access to the event streams of shards: their events by position, and the state of each stream.

A reader resumes after a *position* (:mod:`.records.events`). The next event has the next number; if the oldest one left
there has a greater number, the events between were removed unread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .records.events import BEGINNING, EventEntry, between, parts, unpack_entry
from .records.layout import ENDED
from .redis.faults import REDIS_ERRORS
from .redis.scripts import clear_errors, pack_argument

if TYPE_CHECKING:
    from .broker import Broker

#: a queue and the number of one of its shards
Place: TypeAlias = tuple[str, int]

#: shards queried in one round trip
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Stream:
    """State of the stream of one shard at the moment of the query."""

    #: position before the oldest event that is left; None = there is none
    before: str | None = None
    #: position of the newest event ever added; kept when its shard is retired or deleted
    last: str = BEGINNING
    #: True if the shard is a tombstone: its epoch is retired, or its queue deleted
    ended: bool = False

    @property
    def size(self) -> int:
        """Number of events in the stream."""
        return 0 if self.before is None else distance(self.before, self.last)


def distance(after: str, until: str) -> int:
    """Return the number of events after a position, up to another one of the same stream."""
    return max(0, parts(until)[1] - parts(after)[1])


def entries(
    broker: Broker, queue: str, number: int, after: str = BEGINNING, until: str | None = None, limit: int = 500
) -> list[EventEntry]:
    """Return the events of one shard after a position, oldest first.

    Args:
        until: the last position to include.
        limit: maximum number of entries.
    """
    return begin(broker, queue, number, after, until, limit)()


def begin(
    broker: Broker, queue: str, number: int, after: str, until: str | None, limit: int
) -> Callable[[], list[EventEntry]]:
    """Send the request of :func:`entries` and return a function that reads the reply; the function must be called.

    If sending or reading fails, the request is repeated under the retry policy of the connection.
    """
    key = broker.shard(queue, number).names["event"]
    # The last event may lie in the middle of an entry, whose id is that of a later one.
    low, high = f"({after}", "+" if until is None else str(parts(until)[0])

    def again() -> list[Any]:
        with clear_errors():
            entries_read = broker.client.xrange(key, min=low, max=high, count=limit)
        return [(ident, [word for pair in fields.items() for word in pair]) for ident, fields in entries_read]

    # redis-py makes a dict of each entry, which takes longer than the rest of the read.
    words = (b"XRANGE", key, low, high, b"COUNT", limit)
    packed = b"*%d\r\n" % len(words) + b"".join(map(pack_argument, words))
    patience = broker.connection.patience
    pending = None
    with suppress(*REDIS_ERRORS):
        pending = broker.connection.pool(key).begin(packed, time.monotonic() + patience)

    def read() -> list[Any]:
        if pending is not None:
            with suppress(*REDIS_ERRORS):
                entries_read: list[Any] = pending.reply(time.monotonic() + patience)
                return entries_read
        return again()

    return lambda: between([unpack_entry(raw) for raw in read()], after, until)


def streams(broker: Broker, places: Iterable[Place]) -> dict[Place, Stream]:
    """Return the stream state of these shards ``(queue, number)``, including retired and deleted ones."""
    by_place: dict[Place, Stream] = {}
    for chunk in chunks(list(places)):
        with clear_errors(), broker.client.pipeline(transaction=False) as pipe:
            for queue, number in chunk:
                names = broker.shard(queue, number).names
                pipe.xrange(names["event"], count=1)
                pipe.hmget(names["meta"], "last_event", "rules")
            replies = pipe.execute()
        for place, oldest, (last, rules) in zip(chunk, replies[::2], replies[1::2], strict=True):
            first = _first_of(oldest)
            by_place[place] = Stream(
                first.before if first else None,
                last.decode() if last else BEGINNING,
                bool(rules) and bool(rules[0] & ENDED),
            )
    return by_place


def following(broker: Broker, positions: Mapping[Place, str]) -> dict[Place, EventEntry | None]:
    """Return the oldest events after each of the positions; None = there are none."""
    by_place: dict[Place, EventEntry | None] = {}
    for chunk in chunks(list(positions)):
        with clear_errors(), broker.client.pipeline(transaction=False) as pipe:
            for place in chunk:
                pipe.xrange(broker.shard(*place).names["event"], min=f"({positions[place]}", count=1)
            replies = pipe.execute()
        for place, reply in zip(chunk, replies, strict=True):
            first = _first_of(reply)
            by_place[place] = next(iter(between([first] if first else [], positions[place])), None)
    return by_place


def _first_of(reply: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> EventEntry | None:
    for ident, fields in reply:
        return unpack_entry((ident, [word for pair in fields.items() for word in pair]))
    return None


def chunks(places: Sequence[Place]) -> list[Sequence[Place]]:
    """Split shards into groups that fit one round trip each."""
    return [places[start : start + _AT_ONCE] for start in range(0, len(places), _AT_ONCE)]
