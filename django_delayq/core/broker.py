"""Entry point to one Redis deployment under one prefix: its queues, its workers, its clock."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial
from typing import Unpack

from . import figures, quotas
from .deployment import Deployment
from .figures import Tally
from .layouts import Layout, QueueLimits
from .queue import Queue
from .reading import Inspector
from .registry import QueueRegistry
from .resharding import EpochChanges
from .wake import ChannelWaker, ListWaker, Waker
from .workers import WorkerRegistry


class Broker(Deployment):
    """Entry point to the core. Safe to share between threads; create one per process.

    It is a deployment (see there for the arguments) with its parts; the methods of the registries of queues and workers
    have their names here, too.
    """

    def make_parts(self) -> None:
        """Make the registries, the inspector and the counters."""
        registry = self.registry = QueueRegistry(self, self.make_queue)
        self.inspector = Inspector(registry)
        self.epochs = EpochChanges(registry)
        self.worker_registry = workers = WorkerRegistry(registry)
        #: counters of finished attempts in this process that are not in Redis yet
        self.tally = Tally(partial(figures.note, self))

        self.queues, self.queue_names = registry.queues, registry.queue_names
        self.known_queue, self.require_queue = registry.known_queue, registry.require_queue
        self.reachable_queues, self.opened_queues = registry.reachable_queues, registry.opened_queues
        self.read_layout = registry.read_layout
        self.pause, self.resume = registry.pause, registry.resume
        self.pause_producers, self.resume_producers = registry.pause_producers, registry.resume_producers
        self.producers_paused_since = registry.producers_paused_since
        self.reshard = self.epochs.reshard

        self.workers, self.tell_worker = workers.workers, workers.tell_worker
        self.announce, self.forget = workers.announce, workers.forget
        self.knows_task = workers.knows_task
        self.keep_dump, self.dump_of = workers.keep_dump, workers.dump_of

        self.figures = partial(figures.read, self)
        self.note_figures = partial(figures.note, self)

    def make_queue(self, name: str, layout: Layout) -> Queue:
        """Return a queue with its layout, for the registry."""
        return Queue(self.registry, name, layout, self.tally)

    def queue(self, name: str, *, shards: int | None = None, kind: str | None = None) -> Queue:
        """Return the queue of this name; create it if necessary. See :meth:`.QueueRegistry.queue`."""
        return self.registry.queue(name, shards=shards, kind=kind)

    def served(self, names: Sequence[str], *, every: bool = False, awaited: Container[str] = ()) -> list[Queue]:
        """Return the queues that a process serves, as currently registered. See :meth:`.QueueRegistry.served`."""
        return self.registry.served(names, every=every, awaited=awaited)

    def delete_queue(self, name: str, *, force: bool = False) -> bool:
        """Delete a queue. Scheduling into it later re-creates it.

        Args:
            force: also with jobs in it, which are lost; the workers that run some of them are notified that their
                leases are lost.

        Returns:
            False if there is no such queue.

        Raises:
            QueueNotEmpty: it holds jobs, records in its morgue, completion marks of durable jobs, or open attempts of
                jobs that were acked before they began.
        """
        gone = self.epochs.delete(name, force=force)
        if gone:
            figures.drop(self, name)
        return gone

    def limit(self, name: str, **limits: Unpack[QueueLimits]) -> None:
        """Set limits of a queue; those that are not given stay.

        Args:
            limits: members of :class:`~.layouts.QueueLimits`.

        Raises:
            InvalidJob: there is no such queue or limit, or its value is not valid.
        """
        if self.registry.limit(name, limits) and limits.get("max_length"):
            quotas.divide(self.registry.queue(name))

    def waker(self, queues: Sequence[str]) -> Waker:
        """Return a blocking wait for wake-ups of these queues, on a connection of its own. Only consumers need one."""
        kind: type[Waker] = ChannelWaker if self.connection.cluster else ListWaker
        return kind(self.connection, self.prefix, queues)
