"""Capped streams of finished attempts: reading from a position, and the cursors of consumers.

A *consumer* is a name under which events are read continuously; its *cursor* in a shard is the position
(:mod:`.records.events`) up to which it has read there. A shard's stream is trimmed up to the slowest cursor, except its
newest events (:data:`KEEP`), which :mod:`.recent_events` reads. The cap of the stream overrides cursors: a consumer
that stops reading never makes the stream grow. It loses events, and detects that because the number of the next event
does not follow its own.

The registry of consumers, ``{<prefix>}:cursors`` (hash: consumer -> ``<ms of its last heartbeat>:<queues, or *>``),
lists them before they have a cursor in a shard, that is, in queues and epochs that they have not read yet. An old epoch
is retired only after all consumers that follow the queue have read its events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .errors import InvalidJob
from .records.events import BEGINNING, COLUMNS, WIDTH, Entry, parts, words_of
from .redis.scripts import clear_errors
from .streams import Place, Stream, distance, entries, query, streams

if TYPE_CHECKING:
    from .broker import Broker

#: every queue, future ones included
EVERY: Final = "*"
#: newest events of a shard that stay although all consumers have read them. The script notes a place in the stream
#: after every eighth of the cap, so up to that many more may stay
KEEP: Final = 1000
_CONSUMER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: entries requested in one call
_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class Event:
    """Event of one finished attempt, of a cancellation, or of one bulk load; ``fields`` has what is not empty.

    A bulk load has the ``outcome`` "bulk", with ``jobs`` and ``created`` in ``fields``.
    """

    queue: str
    shard: int
    position: str
    outcome: str
    id: str
    fields: dict[str, str]


@dataclass(frozen=True, slots=True)
class Consumer:
    """Consumer as registered."""

    name: str
    #: last heartbeat, Unix ms on Redis's clock
    heard_ms: int
    #: queues that it follows; empty = every queue
    queues: tuple[str, ...]

    def follows(self, queue: str) -> bool:
        """Return True if it reads the events of a queue."""
        return not self.queues or queue in self.queues


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag of a consumer in one shard."""

    queue: str
    shard: int
    cursor: str
    last: str
    #: number of events still to read
    events: int
    #: ms from the event at its cursor to the newest one; 0 without a cursor in this shard
    behind_ms: int


def read(broker: Broker, queue: str, shard: int, after: str = BEGINNING, limit: int = 1000) -> list[Event]:
    """Return events of one shard after a position, oldest first.

    Args:
        after: ``Event.position`` of the last event read.
        limit: maximum number of events.
    """
    if broker.known_queue(queue) is None:
        return []
    events: list[Event] = []
    while len(events) < limit and (page := entries(broker, queue, shard, after, limit=min(limit, _PAGE))):
        events += [event for entry in page for event in events_of(queue, shard, entry)]
        after = page[-1].position
    return events[:limit]


def events_of(queue: str, shard: int, entry: Entry) -> list[Event]:
    """Return the events of an entry, the oldest first."""
    texts = [word.decode(errors="replace") for word in words_of([entry])]
    first, worker = entry.last - entry.size + 1, entry.worker.decode(errors="replace")
    events = []
    for place in range(entry.size):
        row = dict(zip(COLUMNS, texts[place * WIDTH : (place + 1) * WIDTH], strict=True))
        outcome, ident = row.pop("outcome"), row.pop("id")
        name, _, value = row.pop("extra").partition(":")
        fields = {column: text for column, text in {**row, "worker": worker, name: value}.items() if text}
        events.append(Event(queue, shard, f"{entry.ms}-{first + place}", outcome, ident, fields))
    return events


def last(broker: Broker, queue: str, number: int) -> str:
    """Return the position of the newest event that a shard ever had; ``"0-0"`` if it never had any."""
    return streams(broker, [(queue, number)])[queue, number].last


# -- cursors ---------------------------------------------------------------------------------------------------------


def cursors_key(broker: Broker) -> str:
    """Return the key of the registry of consumers."""
    return f"{{{broker.prefix}}}:cursors"


def check_consumer(name: object) -> str:
    """Return ``name`` if it is a valid name of a consumer.

    Raises:
        InvalidJob: it is not.
    """
    if isinstance(name, str) and _CONSUMER.fullmatch(name):
        return name
    raise InvalidJob(f"consumer name {str(name)[:80]!r} is not usable: 1 to 64 letters, digits, '_', '.' or '-'")


def follow(broker: Broker, consumer: str, queues: Iterable[str] = ()) -> None:
    """Register a consumer with its queues, and renew its heartbeat. Its unread events are kept, up to the cap.

    Args:
        queues: their names; none = every queue, future ones included.
    """
    stored = f"{broker.now_ms():.0f}:{','.join(sorted(queues)) or EVERY}"
    with clear_errors():
        broker.client.hset(cursors_key(broker), check_consumer(consumer), stored)


def consumers(broker: Broker) -> list[Consumer]:
    """Return all consumers of this deployment, by name."""
    with clear_errors():
        stored = broker.client.hgetall(cursors_key(broker))
    registered = []
    for name, value in sorted(stored.items()):
        seen_ms, _, queues = value.decode().partition(":")
        registered.append(Consumer(name.decode(), int(seen_ms), () if queues == EVERY else tuple(queues.split(","))))
    return registered


def followers(broker: Broker, queue: str) -> list[str]:
    """Return the names of the consumers of a queue."""
    return [consumer.name for consumer in consumers(broker) if consumer.follows(queue)]


def advance(
    broker: Broker,
    queue: str,
    number: int,
    consumer: str,
    position: str,
    *,
    others: Iterable[str] | None = None,
    keep: int = KEEP,
) -> str | None:
    """Store how far a consumer has read a shard, and trim the stream up to the slowest of all consumers.

    A cursor never moves back. On a shard that is retired, or whose stream was lost, no cursor is stored.

    Args:
        others: the consumers of the queue (:func:`followers`); None = look them up.
        keep: newest events that stay in any case, up to the cap.

    Returns:
        The consumer's cursor now; None = it has none here, because the position lies after the end of the stream.

    Raises:
        InvalidJob: the consumer's name or the position is not usable.
    """
    parts(position)
    check_consumer(consumer)
    names = followers(broker, queue) if others is None else others
    shard = broker.shard(queue, number)
    cursor: bytes = broker.scripts.call(
        "advance", shard.keys, b"", shard.constants, consumer, position, str(keep), *names
    )
    return cursor.decode() or None


def advance_all(
    broker: Broker,
    consumer: str,
    positions: Mapping[str, Mapping[int, str]],
    queues: Iterable[str] = (),
    *,
    keep: int = KEEP,
) -> None:
    """Call :func:`follow`, then :func:`advance` for each shard.

    Args:
        positions: queue -> number of the shard -> position.
        queues: the queues that the consumer follows; none = every queue.
        keep: newest events of a shard that stay in any case, up to the cap.
    """
    follow(broker, consumer, queues)
    everybody = consumers(broker)
    for queue, shards in positions.items():
        names = [one.name for one in everybody if one.follows(queue)]
        for number, position in shards.items():
            if position != BEGINNING:
                advance(broker, queue, number, consumer, position, others=names, keep=keep)


def cursors(broker: Broker, queue: str, number: int) -> dict[str, str]:
    """Return consumer -> cursor, for consumers that have one in this shard."""
    with clear_errors():
        meta = broker.client.hgetall(broker.shard(queue, number).names["meta"])
    fields = {name[7:]: position for name, position in meta.items() if name.startswith(b"cursor:")}
    return {name.decode(): fields[name].decode() for name in sorted(fields)}


def forget(broker: Broker, consumer: str) -> bool:
    """Remove a consumer with all its cursors, so that no events are kept for it any longer.

    Use it for a consumer that will not return: otherwise its unread events are kept up to the cap, and the old epochs
    of its queues are never retired. A consumer that does return is registered again by its next call.

    Returns:
        False if there is no such consumer.
    """
    check_consumer(consumer)
    with clear_errors():
        removed = broker.client.hdel(cursors_key(broker), consumer)
    places = [(queue.name, number) for queue in broker.queues() for number in queue.numbers]
    cursor = f"cursor:{consumer}"
    for _, (count,) in query(broker, places, lambda pipe, _, names: pipe.hdel(names["meta"], cursor)):
        removed += count
    return bool(removed)


def lag(broker: Broker, consumer: str) -> list[Lag]:
    """Return the lag of a consumer in every shard that it follows and that ever had events, without reading events."""
    check_consumer(consumer)
    followed = next((one for one in consumers(broker) if one.name == consumer), None)
    places = [
        (queue.name, number)
        for queue in broker.queues()
        if followed is None or followed.follows(queue.name)
        for number in queue.numbers
    ]
    cursor = f"cursor:{consumer}"
    stored = dict(query(broker, places, lambda pipe, _, names: pipe.hget(names["meta"], cursor)))
    return [
        _lag(place, stored[place][0], stream)
        for place, stream in streams(broker, places).items()
        if stream.last != BEGINNING and not stream.ended
    ]


def _lag(place: Place, stored: bytes | None, stream: Stream) -> Lag:
    cursor = stored.decode() if stored else BEGINNING
    (since, _), (newest, _) = parts(cursor), parts(stream.last)
    done = parts(cursor) >= parts(stream.last)
    left = 0 if done else min(distance(cursor, stream.last), stream.size)
    return Lag(*place, cursor, stream.last, left, 0 if done or cursor == BEGINNING else newest - since)
