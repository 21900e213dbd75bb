"""Entries of event streams, written as the scripts do."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from django_delayq.core import events
from django_delayq.core.broker import Broker


def pack(**words: Any) -> bytes:
    """Return one event; columns that are not named are empty."""
    assert set(words) <= set(events.COLUMNS)
    values = (words.get(column, "") for column in events.COLUMNS)
    return b"".join((value if isinstance(value, bytes) else str(value).encode()) + b"\0" for value in values)


def add(
    broker: Broker, queue: str, number: int, entries: Sequence[tuple[int, Sequence[bytes]]], worker: str = ""
) -> None:
    """Write entries ``(ms, events)`` to a shard, numbered on from its last event."""
    names = broker.shard(queue, number).names
    place = (broker.client.hget(names["meta"], "last_event") or b"0-0").decode()
    last, _ = events.parts(place)
    with broker.client.pipeline(transaction=False) as pipe:
        for ms, packed in entries:
            last += len(packed)
            place = f"{last}-{ms}"
            pipe.xadd(names["event"], {"worker": worker, events.FIELD: b"".join(packed)}, id=place)
        pipe.hset(names["meta"], "last_event", place)
        pipe.execute()


def add_column(monkeypatch: pytest.MonkeyPatch, name: str, *readers: ModuleType) -> bytes:
    """Add a column in a version of its own, for readers of events and other modules; return its entries' field."""
    version = events.VERSION + 1
    columns = (*events.COLUMNS, name)
    monkeypatch.setitem(events.SINCE, name, version)
    monkeypatch.setattr(events, "VERSION", version)
    monkeypatch.setattr(events, "FIELD", b"events-%d" % version)
    for module in (events, *readers):
        monkeypatch.setattr(module, "COLUMNS", columns)
        monkeypatch.setattr(module, "WIDTH", len(columns))
    return events.FIELD
