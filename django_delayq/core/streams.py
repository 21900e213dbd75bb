"""Access to the event streams of shards: their events by position, and the state of each stream.

A reader resumes after a *position* (:mod:`.records.events`). The next event has the next number; if the oldest one left
there has a greater number, the events between were removed unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .records.events import BEGINNING, EventEntry, between, parts, unpack_entry
from .records.frames import unpack_fields
from .redis.connection import ELSEWHERE
from .redis.scripts import clear_errors, pack_command

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
    key = broker.shard(queue, number).names["event"]
    # The last event may lie in the middle of an entry, whose id is that of a later one.
    low, high = f"({after}", "+" if until is None else str(parts(until)[0])
    return between(_read(broker, key, low, high, limit), after, until)


def _read(broker: Broker, key: bytes, low: str, high: str, limit: int) -> list[EventEntry]:
    # redis-py makes a dict of each entry, which takes longer than the rest of the read.
    packed = pack_command(b"XRANGE", key, low, high, b"COUNT", limit)
    with clear_errors():
        try:
            pool = broker.connection.pool(key)
            link = pool.take()
            try:
                return [unpack_entry(raw) for raw in link.exchange(packed)]
            finally:
                pool.release(link)
        except ELSEWHERE:
            return [entry_of(*stored) for stored in broker.client.xrange(key, min=low, max=high, count=limit)]


def streams(broker: Broker, places: Iterable[Place]) -> dict[Place, Stream]:
    """Return the stream state of these shards ``(queue, number)``, including retired and deleted ones."""

    def command(pipe: Any, _: Place, names: Mapping[str, bytes]) -> None:
        pipe.xrange(names["event"], count=1)
        pipe.hmget(names["meta"], "last_event", "rules")

    return {
        place: Stream(
            entry_of(*oldest[0]).before if oldest else None,
            last.decode() if last else BEGINNING,
            "ended" in unpack_fields(rules or b""),
        )
        for place, (oldest, (last, rules)) in query(broker, places, command)
    }


def following(broker: Broker, positions: Mapping[Place, str]) -> dict[Place, EventEntry | None]:
    """Return the oldest events after each of the positions; None = there are none."""

    def command(pipe: Any, place: Place, names: Mapping[str, bytes]) -> None:
        pipe.xrange(names["event"], min=f"({positions[place]}", count=1)

    return {
        place: next(iter(between([entry_of(*stored) for stored in oldest], positions[place])), None)
        for place, (oldest,) in query(broker, positions, command)
    }


def query(
    broker: Broker, places: Iterable[Place], command: Callable[[Any, Place, Mapping[str, bytes]], object]
) -> Iterator[tuple[Place, list[Any]]]:
    """Yield shards with their replies, in round trips of 500 shards.

    Args:
        command: puts the commands for a shard into a pipeline, given the names of its keys.
    """
    pending = iter(places)
    while chunk := list(islice(pending, _AT_ONCE)):
        with clear_errors(), broker.client.pipeline(transaction=False) as pipe:
            for place in chunk:
                command(pipe, place, broker.shard(*place).names)
            replies = pipe.execute()
        each = len(replies) // len(chunk)
        for n, place in enumerate(chunk):
            yield place, replies[n * each : (n + 1) * each]


def entry_of(ident: bytes, fields: Mapping[bytes, bytes]) -> EventEntry:
    """Return an entry as redis-py gives it."""
    return unpack_entry((ident, [word for pair in fields.items() for word in pair]))
