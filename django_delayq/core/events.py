"""The capped streams of finished attempts: reading them from a position on, and the cursors of those who do.

A *consumer* is a name under which somebody reads on and on; its *cursor* in a shard is the position (:mod:`.streams`)
up to which it has read there. A shard's stream is trimmed up to the slowest cursor, whose entry stays as a tombstone:
whoever finds the entry at its own position knows that nothing behind it was taken off unread. The cap of the stream
counts for all: a consumer that does not read makes nothing grow, it loses, and sees by the missing tombstone that it
did.

The registry of consumers, ``{<prefix>}:cursors`` (hash: consumer -> ``<ms when last heard of>:<queues, or *>``), knows
them before they have a cursor in a shard: in queues and epochs that they have not seen yet. An old epoch is not retired
before all who follow the queue have read what happened in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .errors import InvalidJob
from .redis.scripts import clear_errors
from .streams import BEGINNING, Place, Stream, chunks, entries, parts, streams

if TYPE_CHECKING:
    from .broker import Broker

#: every queue, those to come included
EVERY: Final = "*"
_CONSUMER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Event:
    """One finished attempt, or one bulk write (``outcome`` "bulk", with ``jobs`` and ``created`` in ``fields``)."""

    queue: str
    shard: int
    position: str
    outcome: str
    id: str
    fields: dict[str, str]


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer as the registry knows it."""

    name: str
    #: when it was last heard of, Unix ms on Redis's clock
    heard_ms: int
    #: the queues that it follows; empty = every one
    queues: tuple[str, ...]

    def follows(self, queue: str) -> bool:
        """Whether it reads the events of a queue."""
        return not self.queues or queue in self.queues


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer is behind in one shard."""

    queue: str
    shard: int
    cursor: str
    last: str
    #: entries that it has still to read, at most
    entries: int
    #: from the event at its cursor to the newest one, ms; 0 when it has no cursor here yet
    behind_ms: int


def read(broker: Broker, queue: str, shard: int, after: str = BEGINNING, limit: int = 1000) -> list[Event]:
    """Events of one shard behind a position, oldest first.

    Args:
        after: ``Event.position`` of the last one seen.
        limit: at most so many.
    """
    if broker.known_queue(queue) is None:
        return []
    events = []
    for position, words in entries(broker, queue, shard, f"({after}", limit=limit):
        texts = [word.decode(errors="replace") for word in words]
        fields = dict(zip(texts[::2], texts[1::2], strict=True))
        outcome, ident = fields.pop("outcome", ""), fields.pop("id", "")
        events.append(Event(queue, shard, position.decode(), outcome, ident, fields))
    return events


def last(broker: Broker, queue: str, number: int) -> str:
    """The position of the newest event that a shard ever had; ``"0-0"`` if it never had any."""
    return streams(broker, [(queue, number)])[queue, number].last


# -- cursors ---------------------------------------------------------------------------------------------------------


def cursors_key(broker: Broker) -> str:
    """Key of the registry of consumers."""
    return f"{{{broker.prefix}}}:cursors"


def check_consumer(name: object) -> str:
    """``name`` if it can name a consumer.

    Raises:
        InvalidJob: it cannot.
    """
    if isinstance(name, str) and _CONSUMER.fullmatch(name):
        return name
    raise InvalidJob(f"consumer name {str(name)[:80]!r} is not usable: 1 to 64 letters, digits, '_', '.' or '-'")


def follow(broker: Broker, consumer: str, queues: Iterable[str] = ()) -> None:
    """A consumer says which queues it reads, and that it lives. What it has not read there is kept, up to the cap.

    Args:
        queues: their names; none = every queue, those to come included.
    """
    said = f"{broker.now_ms():.0f}:{','.join(sorted(queues)) or EVERY}"
    with clear_errors():
        broker.client.hset(cursors_key(broker), check_consumer(consumer), said)


def consumers(broker: Broker) -> list[Consumer]:
    """Everybody who follows queues here, by name."""
    with clear_errors():
        stored = broker.client.hgetall(cursors_key(broker))
    found = []
    for name, said in sorted(stored.items()):
        heard, _, queues = said.decode().partition(":")
        found.append(Consumer(name.decode(), int(heard), () if queues == EVERY else tuple(queues.split(","))))
    return found


def followers(broker: Broker, queue: str) -> list[str]:
    """The names of those who follow a queue."""
    return [consumer.name for consumer in consumers(broker) if consumer.follows(queue)]


def advance(
    broker: Broker, queue: str, number: int, consumer: str, position: str, *, others: Iterable[str] | None = None
) -> str | None:
    """Notes how far a consumer has read a shard, and trims the stream up to the slowest of all consumers.

    A cursor never goes back. On a shard that is retired, or whose stream was lost, nothing is noted.

    Args:
        others: who follows the queue (:func:`followers`); None = look it up.

    Returns:
        The consumer's cursor now; None = it has none here, because the position lies behind the end of the stream.

    Raises:
        InvalidJob: the consumer's name or the position is not usable.
    """
    parts(position)
    check_consumer(consumer)
    names = followers(broker, queue) if others is None else others
    shard = broker.shard(queue, number)
    cursor: bytes = broker.scripts.call("advance", shard.keys, b"", shard.constants, consumer, position, *names)
    return cursor.decode() or None


def advance_all(
    broker: Broker, consumer: str, positions: Mapping[str, Mapping[int, str]], queues: Iterable[str] = ()
) -> None:
    """:func:`follow`, then :func:`advance` in each shard.

    Args:
        positions: queue -> number of the shard -> position.
        queues: which queues the consumer follows; none = every one.
    """
    follow(broker, consumer, queues)
    everybody = consumers(broker)
    for queue, shards in positions.items():
        names = [one.name for one in everybody if one.follows(queue)]
        for number, position in shards.items():
            if position != BEGINNING:
                advance(broker, queue, number, consumer, position, others=names)


def cursors(broker: Broker, queue: str, number: int) -> dict[str, str]:
    """Consumer -> cursor, of those that have one in this shard."""
    with clear_errors():
        meta = broker.client.hgetall(broker.shard(queue, number).names["meta"])
    found = {field[7:].decode(): position.decode() for field, position in meta.items() if field.startswith(b"cursor:")}
    return dict(sorted(found.items()))


def forget(broker: Broker, consumer: str) -> bool:
    """Takes a consumer off with all its cursors: nothing is kept for it any longer.

    For one that will not come again: what it has not read is else kept up to the cap, and the old epochs of the queues
    that it follows are never retired. One that does come again is known again with its next step.

    Returns:
        False when nobody of that name is known.
    """
    check_consumer(consumer)
    with clear_errors():
        known = broker.client.hdel(cursors_key(broker), consumer)
    for chunk in chunks([(queue.name, number) for queue in broker.queues() for number in queue.numbers]):
        with clear_errors(), broker.client.pipeline(transaction=False) as pipe:
            for queue, number in chunk:
                pipe.hdel(broker.shard(queue, number).names["meta"], f"cursor:{consumer}")
            known += sum(pipe.execute())
    return bool(known)


def lag(broker: Broker, consumer: str) -> list[Lag]:
    """How far a consumer is behind, in every shard that it follows and that ever had events; no event is read."""
    check_consumer(consumer)
    followed = next((one for one in consumers(broker) if one.name == consumer), None)
    places = [
        (queue.name, number)
        for queue in broker.queues()
        if followed is None or followed.follows(queue.name)
        for number in queue.numbers
    ]
    at: dict[Place, str] = {}
    for chunk in chunks(places):
        with clear_errors(), broker.client.pipeline(transaction=False) as pipe:
            for queue, number in chunk:
                pipe.hget(broker.shard(queue, number).names["meta"], f"cursor:{consumer}")
            at.update(
                (place, cursor.decode() if cursor else BEGINNING)
                for place, cursor in zip(chunk, pipe.execute(), strict=True)
            )
    return [_lag(place, at[place], stream) for place, stream in streams(broker, places).items() if stream.there]


def _lag(place: Place, cursor: str, stream: Stream) -> Lag:
    (since, _), (newest, _) = parts(cursor), parts(stream.last)
    done = parts(cursor) >= parts(stream.last)
    # The entry at the cursor is the tombstone, as long as nobody slower keeps more.
    left = 0 if done else stream.length - (stream.first == cursor)
    return Lag(*place, cursor, stream.last, left, 0 if done or cursor == BEGINNING else newest - since)
