"""Steps of the package at whose lines tests pre-empt a thread, and parts of it that several threads share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from django_delayq.core import Queue, Registry
from django_delayq.core.actions import Kick
from django_delayq.core.figures import Tally
from django_delayq.core.loads import _epochs_now
from django_delayq.core.many import JobSender
from django_delayq.core.quotas import read_room
from django_delayq.core.registry import QueueRegistry
from django_delayq.core.resharding import EpochChanges, visit

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

FLUSHING: Final = Tally.flush
POSTING: Final = Tally._post
NOTING_LIMITS: Final = Registry._note_limited


def flush_of_another_thread(tally: Tally) -> AbstractContextManager[object]:
    """Return a block during which another thread's flush of the counters hangs."""
    return tally._sending
