"""Steps of the package at whose lines tests pre-empt a thread, and parts of it that several threads share."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, Final

from django_delayq.core import Queue, Registry
from django_delayq.core.actions import Kick
from django_delayq.core.figures import Tally
from django_delayq.core.redis.event_loops import EventLoops
from django_delayq.core.redis.pool import PoolLimits
from django_delayq.core.registry import QueueRegistry
from django_delayq.core.resharding import EpochChanges, visit
from django_delayq.core.sending.bulk_loads import _epochs_now
from django_delayq.core.sending.many import JobSender
from django_delayq.core.sending.quotas import read_room

READING_A_LAYOUT: Final = QueueRegistry.read_layout
READING_ALL_LAYOUTS: Final = QueueRegistry.queues
READING_THE_SERVED: Final = QueueRegistry.served
ADOPTING_ONE_OF_ALL: Final = QueueRegistry._opened
STORING_A_LAYOUT: Final = QueueRegistry.swap_layout
INSTALLING_A_LAYOUT: Final = Queue.install
READING_PROGRESS: Final = EpochChanges.progress

CHOOSING_A_SHARD: Final = JobSender._batches
SENDING_MANY: Final = JobSender.send
VISITING_SHARDS: Final = visit
FINDING_HOME: Final = Queue.home
KICKING: Final = Kick.anywhere
READING_ROOM: Final = read_room
CHOOSING_EPOCHS: Final = _epochs_now

CLOSING_LOOPS: Final = EventLoops.close
FLUSHING: Final = Tally.flush
POSTING: Final = Tally._post
NOTING_LIMITS: Final = Registry._note_limited


class _SharedClients(EventLoops):
    """Clients of event loops, with those of each loop in sight."""

    def __init__(self) -> None:
        super().__init__({}, PoolLimits())
        self.by_loop: dict[asyncio.AbstractEventLoop, Any] = self._clients


def clients_of_loop(loop: asyncio.AbstractEventLoop) -> _SharedClients:
    """Return clients of which one belongs to this event loop."""
    clients = _SharedClients()
    clients.by_loop[loop] = SimpleNamespace(start_closing=None)
    return clients


def flush_of_another_thread(tally: Tally) -> AbstractContextManager[object]:
    """Return a block during which another thread's flush of the counters hangs."""
    return tally._sending
