"""Entry point to one Redis deployment under one prefix: its queues, its workers, its clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, Unpack

from . import depths, figures, rules
from .figures import Figures, Tally
from .inspector import Inspector
from .job import BrokenJob, pack_repeats
from .queue import Queue
from .records.keys import MAX_SHARDS, Shard, make_shard, wake_key
from .records.layout import Layout
from .redis.connection import Connection
from .redis.probe import by_server, check_version, server_version
from .redis.scripts import Observer, Scripts, clear_errors
from .resharding import EpochChanges
from .sending import quotas
from .wake import ChannelWaker, ListWaker, Waker
from .workers import WorkerRegistry

DEFAULT_LEASE_MS: Final = 15_000
DEFAULT_EVENT_CAP: Final = 10_000


class Broker(WorkerRegistry):
    """Entry point to the core. Safe to share between threads; create one per process.

    Args:
        connection: see :func:`django_delayq.core.redis.connection.connect`.
        prefix: put before every key; deployments with different prefixes are isolated from each other.
        lease_ms: how long a reserved job belongs to its holder without a heartbeat.
        event_cap: events kept in each shard's event stream.
        test_clock: take the time from each shard's meta field ``test_clock`` (µs) instead of Redis.
        observe: called after every script call; see :meth:`observe`.
    """

    #: class of its queues
    queue_class: type[Queue] = Queue
    #: longest time for which a queue that had no room is believed to be full (:mod:`.sending.quotas`)
    full_seconds: float = 0.05

    def __init__(
        self,
        connection: Connection,
        *,
        prefix: str = "delayq",
        lease_ms: int = DEFAULT_LEASE_MS,
        event_cap: int = DEFAULT_EVENT_CAP,
        test_clock: bool = False,
        observe: Observer | None = None,
    ) -> None:
        super().__init__(prefix)
        self.connection = connection
        self.lease_ms = lease_ms
        self.event_cap = event_cap
        #: for how long a call of this broker may be repeated, packed for the scripts (``lua/lib/window.lua``)
        self.repeats = pack_repeats(connection.patience)
        self.scripts = Scripts(connection, test_clock=test_clock)
        self.observe(observe)
        self.inspector = Inspector(self)
        self.epochs = EpochChanges(self)
        #: counters of finished attempts in this process that are not in Redis yet
        self.tally = Tally(self.note_figures)
        #: called with reserved jobs whose bodies cannot be read, before they are buried
        self.on_unreadable: Callable[[Sequence[BrokenJob]], None] = lambda jobs: None

    def observe(self, observer: Observer | None) -> None:
        """Call ``observer(verb, seconds, failed)`` after every script call from now on; None = no observer.

        The observer runs in the thread of the call, also when the call raises. Calls already in progress are not
        reported.
        """
        self.scripts.observer = observer

    def _make_queue(self, name: str, layout: Layout) -> Queue:
        return self.queue_class(self, name, layout)

    def wake_key(self, queue: str) -> str:
        """Return the key of a queue's wake list."""
        return wake_key(self.prefix, queue)

    def shard(self, queue: str, number: int) -> Shard:
        """Return keys and constants of a shard by its number (``keys.number_of``)."""
        epoch, place = divmod(number, MAX_SHARDS)
        return make_shard(
            self.prefix,
            queue,
            epoch,
            place,
            lease_ms=self.lease_ms,
            event_cap=self.event_cap,
            repeats=self.repeats,
            cluster=self.connection.cluster,
        )

    def reshard(self, name: str, shards: int) -> Layout:
        """Change a queue's number of shards while it is in use (:mod:`.resharding`); return its layout.

        Raises:
            InvalidJob: there is no such queue, or the number is not 1 … 1024.
        """
        return self.epochs.reshard(name, shards)

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
            depths.drop(self, name)
        return gone

    # -- policy of a queue -------------------------------------------------------------------------------------------

    def pause(self, name: str, direction: str = "both", *, seconds: float | timedelta | None = None) -> None:
        """Pause a queue. Waiting jobs stay in place; running jobs continue and are settled as usual.

        Args:
            direction: in (schedule is refused with QueuePaused), out (no job is reserved) or both.
            seconds: its length, on Redis's clock; None = until :meth:`resume`. A second pause replaces the end.

        Raises:
            InvalidJob: there is no such queue or direction, or the time is not above 0.
        """
        rules.pause(self, name, direction, seconds=seconds)

    def resume(self, name: str, direction: str = "both") -> None:
        """End a pause and wake the workers; ``direction`` and errors as for :meth:`pause`."""
        rules.resume(self, name, direction)

    def pause_producers(self) -> None:
        """Refuse new jobs in all queues of the deployment (QueuePaused), also in queues that are created later.

        Stored jobs are run and settled as usual. Pauses of single queues are independent of this.
        """
        rules.switch_producers(self, paused=True)

    def resume_producers(self) -> None:
        """End :meth:`pause_producers`."""
        rules.switch_producers(self, paused=False)

    def limit(self, name: str, **limits: Unpack[rules.QueueLimits]) -> None:
        """Set limits of a queue. None leaves a limit unchanged.

        Args:
            limits: members of :class:`~.rules.QueueLimits`.

        Raises:
            InvalidJob: there is no such queue or limit, or a limit is negative.
        """
        if rules.limit(self, name, **limits) and limits.get("max_length"):
            quotas.divide(self.queue(name))

    # -- counters of finished attempts -------------------------------------------------------------------------------

    def figures(self) -> Figures:
        """Return the counters of finished attempts of all processes, by one command; the most recent may be missing."""
        return figures.read(self)

    def note_figures(self, deltas: Figures, request: bytes | None = None, *, replace: bool = False) -> None:
        """Add to the counters.

        Args:
            request: of calls with the same id only the first counts.
            replace: store these values in place of the previous ones.
        """
        figures.note(self, deltas, request, replace=replace)

    # -- server ------------------------------------------------------------------------------------------------------

    def waker(self, queues: Sequence[str]) -> Waker:
        """Return a blocking wait for wake-ups of these queues, on a connection of its own. Only consumers need one."""
        kind: type[Waker] = ChannelWaker if self.connection.cluster else ListWaker
        return kind(self.connection, self.prefix, queues)

    def now_ms(self) -> float:
        """Return Redis's time, Unix ms."""
        with clear_errors():
            seconds, micros = self.connection.ask_any(self.client.time)
        return float(seconds * 1000 + micros / 1000)

    def server_info(self) -> dict[str, Any]:
        """Return the reply of ``INFO``; on a cluster, of its first node."""
        with clear_errors():
            info: dict[str, Any] = self.connection.ask_any(self.client.info)
        return by_server(info)[0]

    def check_server(self) -> None:
        """Refuse a server that is too old.

        Raises:
            Misconfigured: Redis is older than 6.2.
        """
        with clear_errors():
            check_version(server_version(self.client.info), self.connection.display_url)
