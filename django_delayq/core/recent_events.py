"""Newest events, for people: bounded reads from the ends of the streams. A reader of all events uses :mod:`.events`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .events import Event, events_of
from .records.events import parts
from .streams import Place, entry_of, query

if TYPE_CHECKING:
    from .broker import Broker

#: stream entries that one reading takes at most, and the fewest of each shard
MOST_ENTRIES: Final = 2_000
FEWEST_ENTRIES: Final = 5


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


def newest(
    broker: Broker,
    conditions: EventFilter,
    limit: int = 200,
    *,
    most_entries: int = MOST_ENTRIES,
    fewest_entries: int = FEWEST_ENTRIES,
) -> list[Event]:
    """Return the newest events that are wanted, the latest first.

    It reads at most ``most_entries`` entries, an equal number of each shard (at least ``fewest_entries``); an entry has
    the events of one call. With the queue and the id known, only the shards of that id are read.
    """
    if conditions.queue:
        queue = broker.known_queue(conditions.queue)
        queues = [] if queue is None else [queue]
    else:
        queues = broker.queues()
    ident = conditions.id
    places = [(queue.name, number) for queue in queues for number in (queue.homes(ident) if ident else queue.numbers)]
    count = max(fewest_entries, most_entries // max(1, len(places)))
    events = [event for event in _read(broker, places, count) if conditions.matches(event)]
    return sorted(events, key=lambda event: parts(event.position), reverse=True)[:limit]


def _read(broker: Broker, places: Sequence[Place], count: int) -> list[Event]:
    newest_first = query(broker, places, lambda pipe, _, names: pipe.xrevrange(names["event"], count=count))
    return [event for place, (reply,) in newest_first for one in reply for event in events_of(*place, entry_of(*one))]
