"""Outbox work of a worker in tests: sends pending rows to the queue and deletes the rows of finished jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import DatabaseError

from ..core.errors import QueueUnavailable
from ..settings.conf import conf
from ..worker.changes import Changes

if TYPE_CHECKING:
    from .broker import MemoryBroker


def dispatch(broker: MemoryBroker) -> None:
    """Do both, as far as there is anything to do."""
    if broker.has_unsent:
        send_rows(broker)
    store_completions(broker)


def send_rows(broker: MemoryBroker) -> None:
    """Run the relay: send the jobs whose rows were written while Redis was unavailable."""
    from ..outbox.duties import Relay
    from ..outbox.rows import waiting

    for alias in conf().outbox.databases:
        try:
            if not waiting(alias).exists():
                continue
        except (DatabaseError, AssertionError, RuntimeError):
            continue  # a test that may not use the database has written no rows
        relay = Relay(conf(), alias, broker)
        try:
            while relay.turn():
                pass
        except QueueUnavailable:
            return
    broker.has_unsent = False


def store_completions(broker: MemoryBroker) -> None:
    """Apply completions: delete the rows of finished jobs, and mark the rows of buried ones."""
    from ..outbox.duties import Marks

    if broker.server.down:
        return
    marks = Marks(conf().outbox.databases, broker, Changes())
    for queue in broker.queues():
        for number in queue.numbers:
            if broker.client.exists(queue.shard(number).names["marks"]):
                marks.take_down(queue.name, number)
