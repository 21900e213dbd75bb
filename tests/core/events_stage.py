"""Calls that leave events, and what is read of them."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker, NewJob, Queue, ack, events
from django_delayq.core.events import (
    FIELD,
    Event,
    EventEntry,
    EventFilter,
    Stream,
    known_places,
    newest,
)
from django_delayq.core.events import entries as read_entries
from django_delayq.core.events import following as entries_behind
from django_delayq.core.events import parts as position_parts
from django_delayq.core.events import streams as read_streams
from tests.support.event_entries import last_position, read_events

from .epochs_stage import take_all

__all__ = [
    "FIELD",
    "Event",
    "EventEntry",
    "EventFilter",
    "Stream",
    "entries",
    "entries_behind",
    "ids",
    "known_places",
    "last_position",
    "newest",
    "position_parts",
    "read_entries",
    "read_events",
    "read_one_entry",
    "read_streams",
    "run",
    "run_singly",
]


def run(queue: Queue, number: int) -> None:
    """Schedule and complete ``number`` jobs."""
    queue.schedule_many(NewJob(f"j{n}", "work") for n in range(number))
    while jobs := take_all(queue):
        assert all(queue.settle([ack(job, 1, 2) for job in jobs]))


def read_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a reading of the newest events take one entry of each shard."""
    monkeypatch.setattr(events, "MOST_ENTRIES", 1)
    monkeypatch.setattr(events, "FEWEST_ENTRIES", 1)


def run_singly(queue: Queue, number: int) -> None:
    """Schedule and complete ``number`` jobs, each by a call of its own."""
    queue.schedule_many(NewJob(f"j{n}", "work") for n in range(number))
    while jobs := take_all(queue):
        for job in jobs:
            assert queue.settle([ack(job, 1, 2)]) == [True]


def ids(broker: Broker, number: int = 0) -> list[str]:
    """Return the positions of all events of a shard."""
    return [event.position for event in read_events(broker, "q", number, limit=10_000)]


def entries(broker: Broker, number: int = 0) -> list[EventEntry]:
    return read_entries(broker, "q", number, limit=1000)
