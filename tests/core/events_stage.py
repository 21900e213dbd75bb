"""Calls that leave events, and what is read of them."""

from __future__ import annotations

from django_delayq.core import events, streams
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.queue import Queue
from django_delayq.core.records.events import EventEntry
from django_delayq.core.settlement import ack

from .epochs_stage import take_all


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
