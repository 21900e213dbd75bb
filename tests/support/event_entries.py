"""Entries of event streams, written as the scripts do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_delayq.core.broker import Broker
from django_delayq.core.records.events import COLUMNS, parts


def pack(**words: Any) -> bytes:
    """Return one event; columns that are not named are empty."""
    assert set(words) <= set(COLUMNS)
    values = (words.get(column, "") for column in COLUMNS)
    return b"".join((value if isinstance(value, bytes) else str(value).encode()) + b"\0" for value in values)


def add(
    broker: Broker, queue: str, number: int, entries: Sequence[tuple[int, Sequence[bytes]]], worker: str = ""
) -> None:
    """Write entries ``(ms, events)`` to a shard, numbered on from its last event."""
    names = broker.shard(queue, number).names
    place = (broker.client.hget(names["meta"], "last_event") or b"0-0").decode()
    _, last = parts(place)
    with broker.client.pipeline(transaction=False) as pipe:
        for ms, events in entries:
            last += len(events)
            place = f"{ms}-{last}"
            pipe.xadd(names["event"], {"worker": worker, "events": b"".join(events)}, id=place)
        pipe.hset(names["meta"], "last_event", place)
        pipe.execute()
