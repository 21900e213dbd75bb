"""Calls that leave events, and what is read of them."""

from __future__ import annotations

from django_delayq.core import Broker, NewJob, Queue, ack, events, streams
from django_delayq.core.events import Event
from django_delayq.core.events import advance as advance_cursor
from django_delayq.core.events import advance_all as advance_cursors
from django_delayq.core.events import lag as lag_of
from django_delayq.core.events import last as last_position
from django_delayq.core.events import read as read_events
from django_delayq.core.recent_events import EventFilter, newest
from django_delayq.core.records.events import FIELD, SINCE, VERSION, EventEntry
from django_delayq.core.records.events import latest as latest_position
from django_delayq.core.records.events import parts as position_parts
from django_delayq.core.streams import Stream
from django_delayq.core.streams import entries as read_entries
from django_delayq.core.streams import following as entries_behind
from django_delayq.core.streams import streams as read_streams

from .epochs_stage import take_all

__all__ = [
    "FIELD",
    "SINCE",
    "VERSION",
    "Event",
    "EventEntry",
    "EventFilter",
    "Stream",
    "advance_cursor",
    "advance_cursors",
    "entries",
    "entries_behind",
    "ids",
    "lag_of",
    "last_position",
    "latest_position",
    "newest",
    "position_parts",
    "read_entries",
    "read_events",
    "read_streams",
    "run",
    "run_singly",
]


def run(queue: Queue, number: int) -> None:
    """Schedule and complete ``number`` jobs."""
    queue.schedule_many(NewJob(f"j{n}", "work") for n in range(number))
    while jobs := take_all(queue):
        assert all(queue.settle([ack(job, 1, 2) for job in jobs]))


def run_singly(queue: Queue, number: int) -> None:
    """Schedule and complete ``number`` jobs, each by a call of its own."""
    queue.schedule_many(NewJob(f"j{n}", "work") for n in range(number))
    while jobs := take_all(queue):
        for job in jobs:
            assert queue.settle([ack(job, 1, 2)]) == [True]


def ids(broker: Broker, number: int = 0) -> list[str]:
    """Return the positions of all events of a shard."""
    return [event.position for event in events.read(broker, "q", number, limit=10_000)]


def entries(broker: Broker, number: int = 0) -> list[EventEntry]:
    return streams.entries(broker, "q", number, limit=1000)
