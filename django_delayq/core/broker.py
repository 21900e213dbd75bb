"""Entry point to one Redis deployment under one prefix: its queues, its workers, its clock."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Final

from . import figures, rules, workers
from .errors import InvalidJob, Misconfigured
from .operations.inspector import Inspector
from .operations.resharding import Epochs
from .queue import Queue
from .records import layout as layouts
from .records.keys import MAX_SHARDS, Shard, make_shard, queues_key, wake_key
from .records.layout import Layout
from .records.reserve_frames import BrokenJob
from .redis.connection import Connection
from .redis.observed import ObservedScripts, Observer
from .redis.scripts import Scripts, clear_errors, server_version
from .tally import Tally
from .timings import Figures
from .wake import Waker, make_waker
from .workers import Heard

log = logging.getLogger(__name__)

OLDEST_SERVER: Final = (6, 2)
DEFAULT_LEASE_MS: Final = 15_000
DEFAULT_EVENT_CAP: Final = 10_000


class Broker:
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
        self.connection = connection
        self.prefix = prefix
        self.lease_ms = lease_ms
        self.event_cap = event_cap
        self._test_clock = test_clock
        self.observe(observe)
        self.inspector = Inspector(self)
        self.epochs = Epochs(self)
        #: change counter of the registry of queues, as of the last announcement
        self.changes = ""
        self.queues_key = queues_key(prefix)
        #: counters of finished attempts in this process that are not in Redis yet
        self.tally = Tally(self.note_figures)
        #: called with reserved jobs whose bodies cannot be read, before they are buried
        self.on_unreadable: Callable[[Sequence[BrokenJob]], None] = lambda jobs: None
        self._queues: dict[str, Queue] = {}
        self._lock = threading.Lock()

    def observe(self, observer: Observer | None) -> None:
        """Call ``observer(verb, seconds, failed)`` after every script call from now on; None = no observer.

        The observer runs in the thread of the call, also when the call raises. Calls already in progress are not
        reported.
        """
        if observer is None:
            self.scripts = Scripts(self.connection, test_clock=self._test_clock)
        else:
            self.scripts = ObservedScripts(self.connection, observer, test_clock=self._test_clock)

    @property
    def client(self) -> Any:
        """redis-py client, for commands that are not verbs."""
        return self.connection.client

    def queue(self, name: str, *, shards: int | None = None, kind: str = "python") -> Queue:
        """Return the queue of this name; create it if necessary.

        The first call of the deployment writes the layout into Redis. From then on Redis is authoritative, and a
        different number of shards only causes a warning: see ``delayq_reshard``. A deleted queue is created again.

        Args:
            shards: number of shards of a new queue; None = one.
            kind: ``python`` or ``pull``.
        """
        found = self._queues.get(name)
        return found if found is not None and not found.deleted else self._open(name, shards, kind)

    def known_queue(self, name: str) -> Queue | None:
        """Return the queue of this name if the deployment has it now; never create it."""
        _, layout = self.read_layout(name)
        return self._queues[name] if layout is not None and not layouts.is_deleted(layout) else None

    def _open(self, name: str, shards: int | None, kind: str) -> Queue:
        layout = self.create(
            name,
            lambda stone: layouts.again(stone, shards or 1, kind) if stone else layouts.new_layout(shards or 1, kind),
        )
        if shards is not None and layout["shards"] != shards:
            log.warning(
                "queue %r has %d shards in Redis, but %d are configured; Redis decides. To change it: "
                "manage.py delayq_reshard %s --shards %d",
                name,
                layout["shards"],
                shards,
                name,
                shards,
            )
        return self._queues[name]

    # -- the registry of queues --------------------------------------------------------------------------------------

    def read_layout(self, name: str) -> tuple[bytes, Layout | None]:
        """Return the registry's layout of a queue, as stored and decoded; a known queue adopts it.

        Epochs only grow. If this process has seen a later epoch, a failover to a replica lost it, and it is written
        back.
        """
        while name:  # the registry keeps its change counter under ""
            with clear_errors():
                stored: bytes | None = self.client.hget(self.queues_key, name)
            if stored is None:
                return b"", None
            layout, known = layouts.decode(stored), self._queues.get(name)
            if known is None or known.layout["epoch"] <= layout["epoch"]:
                self._install(name, layout)
                return stored, layout
            log.warning("the registry forgot epoch %d of queue %r; it is put back", known.layout["epoch"], name)
            self.swap_layout(name, stored, known.layout)
        return b"", None

    def swap_layout(self, name: str, stored: bytes, layout: Layout) -> bool:
        """Replace the registry's layout of a queue; return False if it changed since ``stored`` was read."""
        done: bytes = self.scripts.call("layout", (self.queues_key.encode(),), name, stored, layouts.encode(layout))
        if done == b"1":
            self._install(name, layout)
        return done == b"1"

    def change_layout(self, name: str, change: Callable[[Layout], Layout]) -> Layout:
        """Change a layout with ``change(present one) -> new one``, safely under concurrent changes.

        Raises:
            InvalidJob: there is no such queue.
        """
        while True:
            stored, layout = self.read_layout(name)
            if layout is None or layouts.is_deleted(layout):
                raise InvalidJob(f"there is no queue {name!r}; known are: {', '.join(self.queue_names()) or 'none'}")
            changed = change(layout)
            if changed == layout or self.swap_layout(name, stored, changed):
                return changed

    def create(self, name: str, make: Callable[[Layout | None], Layout]) -> Layout:
        """Return the layout of a queue; if there is none, store and return ``make(its tombstone, if any)``."""
        while True:
            stored, layout = self.read_layout(name)
            if layout is not None and not layouts.is_deleted(layout):
                return layout
            if layout is not None and "old" in layout:
                self.epochs.finish(name)
            elif self.swap_layout(name, stored, fresh := make(layout)):
                return fresh

    def _install(self, name: str, layout: Layout) -> Queue:
        with self._lock:
            queue = self._queues.get(name)
            if queue is None:
                queue = self._queues[name] = self.queue_class(self, name, layout)
            elif queue.layout != layout:
                queue.install(layout)
        return queue

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
            cluster=self.connection.cluster,
        )

    def queue_names(self) -> list[str]:
        """Return the names of all queues of this deployment, sorted."""
        return [queue.name for queue in self.queues()]

    def queues(self) -> list[Queue]:
        """Return all queues of this deployment, sorted by name."""
        with clear_errors():
            stored = self.client.hgetall(self.queues_key)
        return self._opened(stored)

    def _opened(self, stored: dict[bytes, bytes]) -> list[Queue]:
        opened = [self._install(name.decode(), layouts.decode(stored[name])) for name in sorted(stored) if name]
        return [queue for queue in opened if not queue.deleted]

    def served(self, names: Sequence[str], *, every: bool = False, awaited: Container[str] = ()) -> list[Queue]:
        """Return the queues that a process serves, as currently registered.

        Missing queues are created. Queues known locally but missing from Redis (after data loss) are restored,
        tombstones included. Deleted queues are skipped until a job is scheduled into them.

        Args:
            every: also all queues that are not named.
            awaited: names of queues that are not created: each is left out until the registry has it.
        """
        with clear_errors():
            if every:
                stored = self.client.hgetall(self.queues_key)
            else:
                found = zip(names, self.client.hmget(self.queues_key, list(names)), strict=True)
                stored = {name.encode(): layout for name, layout in found if layout is not None}
        wanted = {*names, *(self._queues if every else ())}
        for name in sorted(wanted):
            if name.encode() not in stored and (name in self._queues or name not in awaited):
                stored[name.encode()] = layouts.encode(self._put_back(name))
        return self._opened(stored)

    def _put_back(self, name: str) -> Layout:
        known = self._queues.get(name)
        if known is None or known.deleted:
            return self.queue(name).layout
        layout = self.create(name, lambda _: layouts.restored(known.layout))
        self.epochs.close_former(known)
        return layout

    def reshard(self, name: str, shards: int) -> Layout:
        """Change a queue's number of shards while it is in use (:mod:`.operations.resharding`); return its layout.

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
        return gone

    # -- policy of a queue
    # -----------------------------------------------------------------------------------------------

    def pause(self, name: str, direction: str = "both") -> None:
        """Pause a queue. Waiting jobs stay in place; running jobs continue and are settled as usual.

        Args:
            name: the queue.
            direction: in (schedule is refused with QueuePaused), out (no job is reserved) or both.

        Raises:
            InvalidJob: there is no such queue or direction.
        """
        rules.pause(self, name, direction)

    def resume(self, name: str, direction: str = "both") -> None:
        """End a pause and wake the workers; ``direction`` and errors as for :meth:`pause`."""
        rules.resume(self, name, direction)

    def limit(
        self,
        name: str,
        *,
        max_length: int | None = None,
        morgue_max: int | None = None,
        morgue_ttl_ms: int | None = None,
        weighted: bool | None = None,
    ) -> None:
        """Set limits of a queue. None leaves a limit unchanged.

        Args:
            name: the queue.
            max_length: most live jobs, divided among the shards; further ones are refused with QueueFull. 0 = no limit.
            morgue_max: most jobs in its morgue, divided among the shards; the oldest are removed first. 0 = no limit.
            morgue_ttl_ms: how long its morgue keeps a job. 0 = for ever.
            weighted: serve more urgent classes more often instead of always first.

        Raises:
            InvalidJob: there is no such queue, or a limit is negative.
        """
        rules.limit(
            self, name, max_length=max_length, morgue_max=morgue_max, morgue_ttl_ms=morgue_ttl_ms, weighted=weighted
        )

    # -- workers -----------------------------------------------------------------------------------------------------

    def announce(
        self, name: str, info: dict[str, Any], *, done: Sequence[str] | None = (), tasks: Iterable[str] | None = None
    ) -> Heard:
        """Store a worker's heartbeat and state; return Redis's time and the pending commands for the worker.

        ``changes`` has another value afterwards if a queue was created, changed or deleted, or if Redis lost all of
        them.

        Args:
            done: ids of the commands that the worker has executed; None = the worker is new, so pending commands were
                meant for an earlier worker of its name and are dropped.
            tasks: names of the tasks that it can run; None = as announced before.
        """
        heard, self.changes = workers.announce(self, name, info, done, tasks)
        return heard

    def forget(self, name: str) -> None:
        """Remove a worker and its pending commands from the registry."""
        workers.forget(self, name)

    def workers(self) -> list[dict[str, Any]]:
        """Return the last announced state of each worker, with ``name`` and ``seen_ms`` (Redis time).

        ``jobs`` lists what its threads ran then: at most 64 of ``slot``, ``queue``, ``id``, ``task``, ``started_ms``
        (Unix ms) and ``ids`` (number of jobs that this attempt handles together).
        """
        return workers.read(self)

    def knows_task(self, queue: str, task: str, now_ms: float) -> bool:
        """Return True if a live worker that reserves from a queue has announced that it can run a task.

        Args:
            now_ms: the time on Redis's clock.
        """
        return workers.knows_task(self, queue, task, now_ms)

    def tell_worker(self, name: str, word: str) -> bool:
        """Send a command to a worker, which receives it with its next announcement.

        Args:
            name: as returned by :meth:`workers`.
            word: stop (like SIGTERM to its program: all its processes end, with their grace period), drain (like
                SIGUSR1 to it: they finish the jobs that they hold) or dump (the worker logs the stacks of its threads
                and keeps them for :meth:`dump_of`).

        Returns:
            False if no such worker is registered.

        Raises:
            InvalidJob: an unknown command.
        """
        return workers.tell(self, name, word)

    def keep_dump(self, name: str, text: str, now_ms: float) -> None:
        """Store a worker's stacks, taken at ``now_ms``, for 10 minutes; text beyond 64 KiB is cut off."""
        workers.keep_dump(self, name, text, now_ms)

    def dump_of(self, name: str) -> tuple[float, str] | None:
        """Return the time (Unix ms) and the stacks of a worker's last "dump" command; None after 10 minutes."""
        return workers.dump_of(self, name)

    # -- counters of finished attempts
    # -----------------------------------------------------------------------------------

    def figures(self) -> Figures:
        """Return the counters of finished attempts of all processes, by one command; the most recent may be missing."""
        return figures.read(self)

    def note_figures(self, deltas: Figures, request: bytes | None = None) -> None:
        """Add to the counters. Levels are not added, see :meth:`set_level`.

        Args:
            request: of calls with the same id only the first counts.
        """
        figures.note(self, deltas, request)

    def set_level(self, name: str, value: int) -> None:
        """Store a measured level in place of the previous one."""
        figures.set_level(self, name, value)

    # -- server ------------------------------------------------------------------------------------------------------

    def waker(self, queues: Sequence[str]) -> Waker:
        """Return a blocking wait for wake-ups of these queues, on a connection of its own. Only consumers need one."""
        return make_waker(self.connection, self.prefix, queues)

    def now_ms(self) -> float:
        """Return Redis's time, Unix ms."""
        with clear_errors():
            answer = self.client.time()
        seconds, micros = next(iter(answer.values())) if isinstance(answer, dict) else answer
        return float(seconds * 1000 + micros / 1000)

    def server_info(self) -> dict[str, Any]:
        """Return the reply of ``INFO``; on a cluster, of its first node."""
        with clear_errors():
            info: dict[str, Any] = self.client.info()
        return info if "redis_version" in info else next(iter(info.values()))

    def check_server(self) -> None:
        """Refuse a server that is too old.

        Raises:
            Misconfigured: Redis is older than 6.2.
        """
        with clear_errors():
            version = server_version(self.client.info)
        if version < OLDEST_SERVER:
            raise Misconfigured(f"Redis {'.'.join(map(str, version))} is too old; django_delayq needs 6.2 or newer")
