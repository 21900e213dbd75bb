"""In-memory broker that replaces Redis in tests."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ..connections import DjangoBroker
from ..core import workers
from ..core.errors import DelayQError, InvalidJob, QueueNotEmpty, QueueUnavailable
from ..core.queue import Queue
from ..core.records import layout as layouts
from ..core.records.layout import Layout
from ..core.timings import Figures, Level
from ..core.wake import Hints, Waker
from ..core.workers import Heard, WorkerCommand
from ..settings.conf import Conf, conf
from .inspector import MemoryInspector
from .queue import MemoryQueue
from .shard import Shard
from .times import Clock


class NoConnection:
    """Stand-in for a connection to Redis."""

    cluster = False
    max_age = None

    @property
    def client(self) -> NoReturn:
        """Raise an error, because there is no client."""
        raise DelayQError(
            "the in-memory broker of django_delayq.testing has no Redis client; what sends commands of "
            "its own is tested against a real Redis"
        )

    def close(self) -> None:
        """Do nothing; there is no connection to close."""


class MemoryBroker(DjangoBroker):
    """Broker that keeps its jobs in this process, with a clock that moves only on request.

    It implements every verb of the real broker with the same results. It does not support scripts, events, other
    processes, or changes of the number of shards.

    Args:
        clock: the clock.
        prefix, lease_ms: see :class:`~django_delayq.core.broker.Broker`.
    """

    inspector: MemoryInspector

    def __init__(self, clock: Clock | None = None, *, prefix: str = "delayq", lease_ms: int = 15_000) -> None:
        super().__init__(NoConnection(), prefix=prefix, lease_ms=lease_ms)
        self.clock = clock or Clock()
        self.inspector = MemoryInspector(self)
        #: error message while a test simulates an outage
        self.down = ""
        #: there was an outage, so the outbox may hold jobs that were never sent
        self.owes = False
        #: called with the ids of scheduled jobs: :func:`~django_delayq.testing.immediate`
        self.on_scheduled: Callable[[MemoryQueue, Sequence[str]], None] | None = None
        #: shared by all shards, so that jobs run in the order of the test's calls
        self._arrivals = itertools.count(1)
        self._stores: dict[tuple[str, int], Shard] = {}
        self._layouts: dict[str, Layout] = {}
        self._announced: dict[str, dict[str, Any]] = {}
        self._tasks: dict[str, bytes] = {}
        self._told: dict[tuple[str, str], str] = {}
        self._dumps: dict[str, tuple[float, str]] = {}
        self._figures = Figures()
        self._wakers: list[MemoryWaker] = []
        self._settings: Conf | None = None
        #: lock for all access to the records
        self.turn = threading.RLock()

    # -- shared by its parts ----------------------------------------------------------------------------------------

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Hold the lock around an operation that would be a call to Redis; raise during an outage."""
        with self.turn:
            if self.down:
                raise QueueUnavailable(self.down)
            yield

    def store(self, queue: str, number: int) -> Shard:
        """Return the records of a shard."""
        found = self._stores.get((queue, number))
        if found is None:
            found = self._stores[queue, number] = Shard(queue, number, self.lease_ms, self.clock, self._arrivals)
        return found

    def stores(self) -> list[Shard]:
        """Return all shards that were ever used."""
        return [self._stores[place] for place in sorted(self._stores)]

    def scheduled(self, queue: MemoryQueue, idents: Sequence[str]) -> None:
        """Report scheduled jobs to ``on_scheduled``."""
        if idents and self.on_scheduled is not None:
            self.on_scheduled(queue, idents)

    def wake(self, queue: str, number: int) -> None:
        """Notify the wakers of a shard."""
        for waker in self._wakers:
            waker.note(queue, number)

    # -- the registry of queues --------------------------------------------------------------------------------------

    def queue(self, name: str, *, shards: int | None = None, kind: str | None = None) -> Queue:
        """See :meth:`DjangoBroker.queue`."""
        if self._settings is not conf():  # a test may override them at any time
            self._follow(conf())
        return super().queue(name, shards=shards, kind=kind)

    def _follow(self, settings: Conf) -> None:
        """Remove the limits of the previous settings; in tests there are no limits from another source."""
        former = self._settings.queues.keys() if self._settings is not None else ()
        self._settings = settings
        self._limited.clear()
        for name in former:
            if name not in settings.queues and self.existing(name) is not None:
                self.limit(name, max_length=0, morgue_max=0, morgue_ttl_ms=0, weighted=False)

    def read_layout(self, name: str) -> tuple[bytes, Layout | None]:
        """See :meth:`Broker.read_layout`."""
        with self.reached():
            layout = self._layouts.get(name)
            if layout is None:
                return b"", None
            self._install(name, layout)
            return layouts.encode(layout), layout

    def swap_layout(self, name: str, stored: bytes, layout: Layout) -> bool:
        """See :meth:`Broker.swap_layout`."""
        with self.reached():
            known = self._layouts.get(name)
            if (b"" if known is None else layouts.encode(known)) != stored:
                return False
            self._layouts[name] = layout
            self._install(name, layout)
            return True

    def _install(self, name: str, layout: Layout) -> Queue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = MemoryQueue(self, name, layout)
        elif queue.layout != layout:
            queue.install(layout)
        return queue

    def queues(self) -> list[Queue]:
        """See :meth:`Broker.queues`."""
        with self.reached():
            return [self._queues[name] for name in sorted(self._layouts) if not self._queues[name].deleted]

    def served(self, names: Sequence[str], *, every: bool = False, awaited: Container[str] = ()) -> list[Queue]:
        """See :meth:`Broker.served`."""
        for name in names:
            if name not in self._layouts and name not in awaited:
                self.queue(name)
        wanted = {queue.name for queue in self.queues() if every or queue.name in names}
        return [self.queue(name) for name in sorted(wanted)]

    def delete_queue(self, name: str, *, force: bool = False) -> bool:
        """See :meth:`Broker.delete_queue`."""
        queue = self.known_queue(name)
        if queue is None:
            return False
        with self.reached():
            held = [
                shard
                for number in queue.numbers
                if (shard := self.store(name, number)).lives or shard.graves or shard.begun
            ]
            if held and not force:
                raise QueueNotEmpty(
                    f"queue {name!r} holds jobs, their open runs, or graves in its morgue; empty it first, or use force"
                )
            for number in queue.numbers:
                self._stores.pop((name, number), None)
            self._figures = self._figures.without(name)
        return self.swap_layout(name, layouts.encode(queue.layout), layouts.tombstone(queue.layout, wiped=True))

    def reshard(self, name: str, shards: int) -> Layout:
        """Raise an error, because this is not supported in memory."""
        raise InvalidJob(
            "the in-memory broker of django_delayq.testing does not change numbers of shards; "
            "test this against a real Redis"
        )

    # -- workers, counters and server --------------------------------------------------------------------------------

    def announce(
        self, name: str, info: dict[str, Any], *, done: Sequence[str] | None = (), tasks: Iterable[str] | None = None
    ) -> Heard:
        """See :meth:`Broker.announce`."""
        with self.reached():
            self._announced[name] = {**info, "name": name, "seen_ms": self.clock.now_ms}
            if tasks is not None:
                self._tasks[name] = workers.pack_tasks(tasks)
            for word in workers.WORDS:
                if done is None or self._told.get((name, word)) in done:
                    self._told.pop((name, word), None)
            told = [WorkerCommand(word, self._told[name, word]) for word in workers.WORDS if (name, word) in self._told]
            return Heard(float(self.clock.now_ms), tuple(told))

    def forget(self, name: str) -> None:
        """See :meth:`Broker.forget`."""
        with self.reached():
            self._announced.pop(name, None)
            self._tasks.pop(name, None)
            for word in workers.WORDS:
                self._told.pop((name, word), None)

    def workers(self) -> list[dict[str, Any]]:
        """See :meth:`Broker.workers`."""
        with self.reached():
            return [self._announced[name] for name in sorted(self._announced)]

    def knows_task(self, queue: str, task: str, now_ms: float) -> bool:
        """See :meth:`Broker.knows_task`."""
        with self.reached():
            return any(
                workers.is_among(task, self._tasks.get(worker["name"]))
                for worker in self._announced.values()
                if workers.runs_jobs_of(worker, queue, now_ms)
            )

    def tell_worker(self, name: str, word: str) -> bool:
        """See :meth:`Broker.tell_worker`."""
        workers.check_word(word)
        with self.reached():
            if name in self._announced:
                self._told[name, word] = f"{next(self._arrivals):016x}"
            return name in self._announced

    def keep_dump(self, name: str, text: str, now_ms: float) -> None:
        """See :meth:`Broker.keep_dump`."""
        with self.reached():
            self._dumps[name] = now_ms, workers.cut(text).decode()

    def dump_of(self, name: str) -> tuple[float, str] | None:
        """See :meth:`Broker.dump_of`."""
        with self.reached():
            found = self._dumps.get(name)
            return found if found and self.clock.now_ms < found[0] + workers.DUMP_KEPT * 1000 else None

    def figures(self) -> Figures:
        """See :meth:`Broker.figures`; includes what this process has counted so far."""
        self.tally.flush()
        with self.reached():
            return self._figures

    def note_figures(self, deltas: Figures, request: bytes | None = None) -> None:
        """See :meth:`Broker.note_figures`; repeated requests do not occur here."""
        with self.reached():
            self._figures += deltas

    def set_level(self, name: str, value: int) -> None:
        """See :meth:`Broker.set_level`."""
        with self.reached():
            self._figures += Figures(levels={name: Level(value, self.clock.now_ms)})

    def waker(self, queues: Sequence[str]) -> Waker:
        """See :meth:`Broker.waker`."""
        made = MemoryWaker(self, queues)
        self._wakers.append(made)
        return made

    def now_ms(self) -> float:
        """Return the time of the clock in Unix ms."""
        with self.reached():
            return self.clock.us / 1000

    def server_info(self) -> dict[str, Any]:
        """Return the oldest supported version, because there is no server."""
        with self.reached():
            return {"redis_version": "6.2.0", "redis_mode": "in-memory"}

    def check_server(self) -> None:
        """See :meth:`Broker.check_server`."""
        with self.reached():
            pass

    def drop_waker(self, waker: MemoryWaker) -> None:
        """Stop notifying a waker."""
        if waker in self._wakers:
            self._wakers.remove(waker)


class MemoryWaker:
    """Waker for threads of a test that wait in ``Queue.reserve(wait=…)``."""

    forgetful = False

    def __init__(self, broker: MemoryBroker, queues: Sequence[str]) -> None:
        self._broker = broker
        self._queues = frozenset(queues)
        self._hints: Hints = []
        self._closed = False
        self._bell = threading.Condition()

    def note(self, queue: str, number: int) -> None:
        """Record that a shard may have a due job."""
        if queue in self._queues:
            with self._bell:
                self._hints.append((queue, number))
                self._bell.notify()

    def wait(self, timeout: float) -> Hints:
        """See :meth:`Waker.wait`."""
        with self._bell:
            until = time.monotonic() + timeout
            while not self._hints and not self._closed and (left := until - time.monotonic()) > 0:
                self._bell.wait(left)
            found, self._hints = list(dict.fromkeys(self._hints)), []
            return found

    def is_old(self) -> bool:
        """See :meth:`Waker.is_old`."""
        return False

    def close(self) -> None:
        """See :meth:`Waker.close`."""
        with self._bell:
            self._closed = True
            self._bell.notify()
        self._broker.drop_waker(self)
