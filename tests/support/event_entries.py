"""Entries of event streams, written as the scripts do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_delayq.core import events
from django_delayq.core.broker import Broker
from django_delayq.core.events import Event, entries, events_of


def pack(**words: Any) -> bytes:
    """Return one event; columns that are not named are empty."""
    assert set(words) <= set(events.COLUMNS)
    values = (words.get(column, "") for column in events.COLUMNS)
    return b"".join((value if isinstance(value, bytes) else str(value).encode()) + b"\0" for value in values)


def add(
    broker: Broker, queue: str, number: int, written: Sequence[tuple[int, Sequence[bytes]]], worker: str = ""
) -> None:
    """Write entries ``(ms, events)`` to a shard, numbered on from its last event."""
    names = broker.shard(queue, number).names
    place = (broker.client.hget(names["meta"], "last_event") or b"0-0").decode()
    last, _ = events.parts(place)
    with broker.client.pipeline(transaction=False) as pipe:
        for ms, packed in written:
            last += len(packed)
            place = f"{last}-{ms}"
            pipe.xadd(names["event"], {"worker": worker, events.FIELD: b"".join(packed)}, id=place)
        pipe.hset(names["meta"], "last_event", place)
        pipe.execute()


def read_events(
    broker: Broker, queue: str, shard: int, after: str = events.BEGINNING, limit: int = 1000
) -> list[Event]:
    """Return events of one shard after a position, oldest first, until there are ``limit``; the last entry is whole."""
    found: list[Event] = []
    while len(found) < limit and (page := entries(broker, queue, shard, after, min(limit, 100))):
        for entry in page:
            if len(found) < limit:
                found += events_of(queue, shard, entry)
        after = page[-1].position
    return found


def last_position(broker: Broker, queue: str, shard: int) -> str:
    """Return the position of the newest event that a shard ever had; ``"0-0"`` if it never had any."""
    return events.streams(broker, [(queue, shard)])[queue, shard].last
