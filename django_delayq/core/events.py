"""Reading the capped streams of finished attempts, from a position on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .scripts import clear_errors

if TYPE_CHECKING:
    from .broker import Broker

BEGINNING = "0-0"


@dataclass(frozen=True, slots=True)
class Event:
    """One finished attempt, or one bulk write (``outcome`` "bulk", with ``jobs`` and ``created`` in ``fields``)."""

    queue: str
    shard: int
    position: str
    outcome: str
    id: str
    fields: dict[str, str]


def read(broker: Broker, queue: str, shard: int, after: str = BEGINNING, limit: int = 1000) -> list[Event]:
    """Events of one shard behind a position, oldest first.

    Args:
        after: ``Event.position`` of the last one seen.
        limit: at most so many.
    """
    opened = broker.known_queue(queue)
    if opened is None:
        return []
    key = opened.shard(shard).names["event"]
    with clear_errors():
        entries = broker.client.xrange(key, min=f"({after}", count=limit)
    events = []
    for position, raw in entries:
        fields = {name.decode(): value.decode(errors="replace") for name, value in raw.items()}
        events.append(Event(queue, shard, position.decode(), fields.pop("outcome", ""), fields.pop("id", ""), fields))
    return events
