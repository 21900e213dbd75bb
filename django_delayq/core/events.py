"""Events of finished attempts, in one capped stream for each shard: their form, and reading them.

An entry has the events of one call, each with a number of its own, in two fields: ``worker``, and :data:`FIELD`, its
events one after another. An event is :data:`COLUMNS`, each word followed by a zero byte, which no id contains; so one
split of many events gives their columns as slices. Workers pack the events of attempts (:mod:`.records.frames`),
scripts those of cancellations and bulk loads (``lua/lib/event.lua``). Other columns are another field: an entry of
another release is refused.

The events of a shard are numbered without gaps from 1. The id of an entry is ``<number of its last event>-<ms>``, and
the *position* of an event ``<its number>-<ms of its entry>``. A reader keeps the position of the last entry that it has
read. If the next entry does not begin with the next number, events were removed unread, and the numbers say how many.

The stream of a shard whose epoch is retired stays for a day, so a reader that returns within a day misses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from .broker import Broker
from .deployment import Deployment
from .errors import InvalidJob, Misconfigured
from .layouts import all_numbers
from .records.frames import unpack_fields
from .redis.scripts import clear_errors

#: a queue and the number of one of its shards
Place: TypeAlias = tuple[str, int]

BEGINNING: Final = "0-0"
#: ``extra`` is "<name>:<value>", or empty. Times and durations are in ms; an empty word is a missing value
COLUMNS: Final = (
    "outcome",
    "id",
    "task",
    "key",
    "due",
    "started",
    "ms",
    "attempt",
    "error",
    "jobs",
    "created",
    "extra",
)
WIDTH: Final = len(COLUMNS)
#: field with the events of an entry; the one that ``lua/lib/event.lua`` writes. Other columns need another number
FIELD: Final = b"events-1"

_POSITION: Final = re.compile(r"\d{1,20}-\d{1,15}")
_OTHER_FIELD: Final = re.compile(rb"events-[1-9]\d*")


class EventEntry(NamedTuple):
    """Events of one entry."""

    #: number of the last event
    last: int
    ms: int
    worker: bytes
    events: bytes

    @property
    def size(self) -> int:
        """Number of events."""
        return self.events.count(b"\0") // WIDTH

    @property
    def position(self) -> str:
        """Position of the last event."""
        return f"{self.last}-{self.ms}"

    @property
    def before(self) -> str:
        """Position before the first event."""
        return f"{self.last - self.size}-{self.ms}"


def parts(position: str) -> tuple[int, int]:
    """Return a position as ``(number, ms)``; these pairs sort in the order of the positions.

    Raises:
        InvalidJob: the text is not a position.
    """
    if not isinstance(position, str) or not _POSITION.fullmatch(position):
        raise InvalidJob(f"{str(position)[:60]!r} is no position of an event; give one like '1-1700000000000'")
    number, _, ms = position.partition("-")
    return int(number), int(ms)


def entry_of(ident: bytes, fields: Mapping[bytes, bytes]) -> EventEntry:
    """Return an entry as read from Redis. One that no script of ours wrote is a single event without any value.

    Raises:
        Misconfigured: another release wrote the entry.
    """
    last, _, ms = ident.partition(b"-")
    packed = fields.get(FIELD, b"")
    if packed.endswith(b"\0") and packed.count(b"\0") % WIDTH == 0:
        return EventEntry(int(last), int(ms), fields.get(b"worker", b""), packed)
    if any(name != FIELD and _OTHER_FIELD.fullmatch(name) for name in fields):
        raise Misconfigured(
            f"another release of django_delayq wrote event entry {ident.decode()}; upgrade django_delayq in the "
            "process that reads the events"
        )
    return EventEntry(int(last), int(ms), b"", b"\0" * WIDTH)


def words_of(entries: Iterable[EventEntry]) -> list[bytes]:
    """Return the words of all events, one event after another; column n is the slice ``[n::WIDTH]``."""
    return b"".join([entry.events for entry in entries]).split(b"\0")[:-1]


# -- streams ----------------------------------------------------------------------------------------------------------


#: shards queried in one round trip
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Stream:
    """State of the stream of one shard at the moment of the query."""

    #: position before the oldest event that is left; None = there is none
    before: str | None = None
    #: position of the newest event ever added; kept when its shard is retired or deleted
    last: str = BEGINNING
    #: True if the shard is a tombstone: its epoch is retired, and its events stay for a day; or its queue is deleted
    ended: bool = False

    @property
    def is_gone(self) -> bool:
        """True if there are no events of an ended shard any more."""
        return self.ended and self.before is None

    @property
    def size(self) -> int:
        """Number of events in the stream."""
        return 0 if self.before is None else distance(self.before, self.last)


def distance(after: str, until: str) -> int:
    """Return the number of events after a position, up to another one of the same stream."""
    return max(0, parts(until)[0] - parts(after)[0])


def known_places(broker: Broker, queues: Sequence[str] = ()) -> list[Place]:
    """Return every shard of these queues, of every queue if none is named; also those of retired epochs."""
    return [
        (queue.name, number)
        for queue in broker.queues()
        if not queues or queue.name in queues
        for number in (*all_numbers(queue.layout.get("past", ())), *queue.numbers)
    ]


def entries(
    deployment: Deployment,
    queue: str,
    number: int,
    after: str = BEGINNING,
    limit: int = 500,
    *,
    until: str | None = None,
) -> list[EventEntry]:
    """Return the first entries of one shard after a position.

    Args:
        limit: maximum number of entries.
        until: position of the last entry to include.
    """
    key = deployment.shard(queue, number).names["event"]
    with clear_errors():
        stored = deployment.client.xrange(key, min=f"({after}", max=until or "+", count=limit)
    return [entry_of(*one) for one in stored]


def streams(deployment: Deployment, places: Iterable[Place]) -> dict[Place, Stream]:
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
        for place, (oldest, (last, rules)) in query(deployment, places, command)
    }


def following(deployment: Deployment, positions: Mapping[Place, str]) -> dict[Place, EventEntry | None]:
    """Return the oldest entry after each of the positions; None = there is none."""

    def command(pipe: Any, place: Place, names: Mapping[str, bytes]) -> None:
        pipe.xrange(names["event"], min=f"({positions[place]}", count=1)

    return {
        place: entry_of(*oldest[0]) if oldest else None for place, (oldest,) in query(deployment, positions, command)
    }


def query(
    deployment: Deployment, places: Iterable[Place], command: Callable[[Any, Place, Mapping[str, bytes]], object]
) -> Iterator[tuple[Place, list[Any]]]:
    """Yield shards with their replies, in round trips of 500 shards.

    Args:
        command: puts the commands for a shard into a pipeline, given the names of its keys.
    """
    pending = iter(places)
    while chunk := list(islice(pending, _AT_ONCE)):
        with clear_errors(), deployment.client.pipeline(transaction=False) as pipe:
            for place in chunk:
                command(pipe, place, deployment.shard(*place).names)
            replies = pipe.execute()
        each = len(replies) // len(chunk)
        for n, place in enumerate(chunk):
            yield place, replies[n * each : (n + 1) * each]


# -- events -----------------------------------------------------------------------------------------------------------


#: stream entries that one reading takes at most, and the fewest of each shard
MOST_ENTRIES: Final = 2_000
FEWEST_ENTRIES: Final = 5


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


def events_of(queue: str, shard: int, entry: EventEntry) -> list[Event]:
    """Return the events of an entry, the oldest first."""
    texts = [word.decode(errors="replace") for word in words_of([entry])]
    first, worker = entry.last - entry.size + 1, entry.worker.decode(errors="replace")
    events = []
    for place in range(entry.size):
        row = dict(zip(COLUMNS, texts[place * WIDTH : (place + 1) * WIDTH], strict=True))
        outcome, ident = row.pop("outcome"), row.pop("id")
        name, _, value = row.pop("extra").partition(":")
        fields = {column: text for column, text in {**row, "worker": worker, name: value}.items() if text}
        events.append(Event(queue, shard, f"{first + place}-{entry.ms}", outcome, ident, fields))
    return events


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag of a reader in one shard."""

    queue: str
    shard: int
    position: str
    last: str
    #: number of events still to read
    events: int
    #: ms from the event at its position to the newest one; 0 without a position in this shard
    behind_ms: int


def lag(broker: Broker, positions: Mapping[Place, str]) -> list[Lag]:
    """Return the lag of a reader at these positions in every shard that has or had events, without reading them."""
    return [
        _lag(place, positions.get(place, BEGINNING), stream)
        for place, stream in streams(broker, known_places(broker)).items()
        if stream.last != BEGINNING and not stream.is_gone
    ]


def _lag(place: Place, position: str, stream: Stream) -> Lag:
    done = parts(position) >= parts(stream.last)
    left = 0 if done else min(distance(position, stream.last), stream.size)
    behind_ms = 0 if done or position == BEGINNING else parts(stream.last)[1] - parts(position)[1]
    return Lag(*place, position, stream.last, left, max(0, behind_ms))


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Events that are wanted; an empty text is no condition."""

    queue: str = ""
    task: str = ""
    outcome: str = ""
    id: str = ""

    def matches(self, event: Event) -> bool:
        """Return True if the event is wanted."""
        conditions = ((self.task, event.fields.get("task", "")), (self.outcome, event.outcome), (self.id, event.id))
        return event.outcome != "bulk" and all(one in ("", value) for one, value in conditions)


def newest(broker: Broker, conditions: EventFilter, limit: int = 200) -> list[Event]:
    """Return the newest events that are wanted, the latest first.

    It reads at most :data:`MOST_ENTRIES` entries, an equal number of each shard (at least :data:`FEWEST_ENTRIES`); an
    entry has the events of one call. With the queue and the id known, only the shards of that id are read.
    """
    if conditions.queue:
        queue = broker.known_queue(conditions.queue)
        queues = [] if queue is None else [queue]
    else:
        queues = broker.queues()
    ident = conditions.id
    numbers = [(queue.name, queue.shards_of(ident) if ident else queue.numbers) for queue in queues]
    places = [(name, number) for name, some in numbers for number in some]
    count = max(FEWEST_ENTRIES, MOST_ENTRIES // max(1, len(places)))
    events = [event for event in _read(broker, places, count) if conditions.matches(event)]
    return sorted(events, key=lambda event: parts(event.position)[::-1], reverse=True)[:limit]


def _read(deployment: Deployment, places: Sequence[Place], count: int) -> list[Event]:
    newest_first = query(deployment, places, lambda pipe, _, names: pipe.xrevrange(names["event"], count=count))
    return [event for place, (reply,) in newest_first for one in reply for event in events_of(*place, entry_of(*one))]
