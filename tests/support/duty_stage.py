"""Duties of a worker process, each run when the test wants: looks at shards, heartbeats, ticks, samples, commands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from django_delayq.core import Broker, NewJob, Queue, Registry, Task, TaskOptions, Tick
from django_delayq.core.registry import pause_recurring, recurring_pauses, resume_recurring
from django_delayq.core.workers import AnnouncementReply
from django_delayq.worker.attempt import Attempt, trusted
from django_delayq.worker.dead import Ends, LeaseReaper
from django_delayq.worker.dispatcher import DepthSampler, ShardPoller, clean_epochs, prune_workers
from django_delayq.worker.fetch import Consumer, ReadinessGate, Stage as FetchStage
from django_delayq.worker.heartbeat import Heartbeat
from django_delayq.worker.hooks import Hooks
from django_delayq.worker.loop import Changes, Loop, Parts, Periodic, RedisHealth
from django_delayq.worker.recurring import RecurringTicker
from django_delayq.worker.shards import Pace, ShardSelector, Source
from django_delayq.worker.slots import HangingCall, Slots, call_limited
from django_delayq.worker.worker import Worker
from tests.core.stage import T0, Stage

from .worker_stage import WorkerConfig, config


def make_process(
    broker: Broker | None = None, registry: Registry | None = None, settings: WorkerConfig | None = None, **changes: Any
) -> Worker:
    """Return a worker that was not started, for its parts; without a Redis unless there is a broker."""
    none: Any = SimpleNamespace(
        lease_ms=15_000,
        connection=SimpleNamespace(cluster=False),
        tally=SimpleNamespace(ended=lambda *_: None),
        registry=SimpleNamespace(deployment=None),
        worker_registry=SimpleNamespace(own_limits=frozenset()),
    )
    process = Worker(broker or none, registry or Registry(), settings or config())
    for name, value in {"name": "w", "program": "w", "health": RedisHealth(), **changes}.items():
        setattr(process, name, value)
    return process


def pauses_of(loop: Loop, count: int) -> list[float]:
    """Run so many turns of a loop without its pauses, and return these."""
    pauses: list[float] = []

    class Bell(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            loop._closing = len(pauses) == count
            return False

    loop._bell = Bell()
    loop._run_thread()
    return pauses


# --- looks at shards


class TickingQueue:
    """Queue with one shard whose next looks have these results, and that has no expired leases."""

    name, numbers, kind = "default", (0,), "python"

    def __init__(self, ticks: list[Any]) -> None:
        self.ticks = ticks
        #: of each look, whether it was to hold back the reaper
        self.holds: list[bool] = []
        self.reaped = 0

    def tick(self, shard: int, *, hold: bool = False) -> Any:
        self.holds.append(hold)
        return self.ticks.pop(0)

    def expired(self, shard: int, *, offset: int = 0) -> list[Any]:
        self.reaped += 1
        return []


def reaper_of(
    registry: Registry,
    hooks: Hooks | None = None,
    *,
    name: str = "",
    broker: Broker | None = None,
    runs_at_once: bool = False,
) -> LeaseReaper:
    """Return what settles expired leases, by the policies of these tasks; as soon as they are found if wanted."""
    reaper = LeaseReaper(Ends(registry, hooks), name, broker)
    if runs_at_once:
        reaper.attach(reaper.run)  # type: ignore[arg-type]
    return reaper


def reap(reaper: LeaseReaper, queue: Queue, now_ms: float) -> None:
    """Let a reaper settle what is lost in the first shard of a queue, as a look at this moment finds it."""
    reaper.reap(queue, queue.numbers[0], Tick(now_ms, None, None, expired=True, held_back=False, begun=1))
    reaper.run()


def poller_of(
    queues: Sequence[Queue | TickingQueue],
    *,
    lease: float = 15.0,
    heartbeat: float = 5.0,
    health: RedisHealth | None = None,
    reaper: LeaseReaper | None = None,
    changes: Changes | None = None,
    broker: Broker | None = None,
    selector: ShardSelector | None = None,
) -> ShardPoller:
    """Return a dispatcher's look at the shards of these queues; ``broker``: that of a cluster with dead nodes.

    Args:
        selector: what a consumer of the same process knows of the shards.
    """
    process = make_process(
        broker, settings=config(heartbeat=heartbeat), health=health or RedisHealth(), changes=changes or Changes()
    )
    if broker is None:
        process.broker.lease_ms = int(lease * 1000)
    served: Any = list(queues)
    return ShardPoller(process, lambda: served, selector, reaper)


def check_now(poller: ShardPoller) -> None:
    """Let a dispatcher look at every shard, also at those that it looked at a moment ago."""
    for beat in poller._beats:
        beat.check_at = beat.checked_at = 0.0
    poller.run()


def cleanup_of(broker: Broker, queues: Iterable[Queue]) -> Periodic:
    """Return what completes changes of the number of shards of these queues, which each turn reads."""
    parts = Parts("epoch-cleanup", broker)
    return Periodic(30.0, lambda: clean_epochs(broker, list(queues), parts))


def prune(broker: Broker) -> None:
    """Remove dead workers from the registry."""
    prune_workers(broker, "own", Parts("worker-pruning", broker))


# --- counters and samples


def sampler_of(broker: Broker, name: str = "w1") -> DepthSampler:
    """Return a worker's duty that samples the depths of all queues; its first turn only waits."""
    return DepthSampler(broker, name)


# --- heartbeats and commands

#: renewal of the leases of one shard
RENEWAL = Heartbeat._touch


def source_of(queue: Queue, number: int | None = None) -> Source:
    """Return a shard, by default the first one, as the fetch loop has it."""
    return Source(queue, queue.numbers[0] if number is None else number, Pace())


def hold(broker: Broker, count: int, name: str = "default", *, age: float = 5.0) -> list[Attempt]:
    """Runs of so many jobs, reserved under leases of which ``age`` seconds are over."""
    queue = broker.queue(name, shards=1)
    queue.schedule_many(NewJob(f"j{number}", "work") for number in range(count))
    attempts: list[Attempt] = []
    source, now = source_of(queue), time.monotonic()
    while batch := queue.reserve(0, 250, worker="w", ttr_ms=int((broker.lease_ms / 1000 - age) * 1000)).jobs:
        attempts += [Attempt(job, source, now, now + age, time.time() * 1000 - now * 1000) for job in batch]
    assert len(attempts) == count
    return attempts


def heartbeat_of(
    process: Worker,
    *,
    held: Sequence[Attempt] | None = None,
    renew: Callable[[object], None] = lambda attempts: None,
    describe: Callable[[], dict[str, Any]] = dict,
    end: Callable[[str], None] = lambda word: None,
) -> Heartbeat:
    """Return the heartbeat of a process that holds these runs; ``renew`` renews its permits, ``end`` ends it."""
    changed: Any = process
    changed.entry, changed.end_by_command = describe, end
    changed.scope = SimpleNamespace(follow=lambda choices: None)
    if held is not None:
        changed.consumer = SimpleNamespace(
            held=held, limits=SimpleNamespace(renew=renew), slots=SimpleNamespace(running=[])
        )
    return Heartbeat(process)


def beat(
    broker: Broker,
    attempts: list[Attempt],
    *,
    rest: float = 5.0,
    renew: Callable[[object], None] = lambda attempts: None,
) -> float:
    """One turn of the heartbeat of a process that holds these runs; returns the seconds until the next one."""
    process = make_process(broker, settings=config(heartbeat=rest))
    return heartbeat_of(process, held=attempts, renew=renew).run()


def command_receiver(broker: Broker, name: str, end: Callable[[str], None]) -> Heartbeat:
    """Return what carries out the commands for a worker; ``end`` is called with "stop" or "drain"."""
    return heartbeat_of(make_process(broker, name=name), end=end)


@contextmanager
def unwritable_workers(broker: Broker) -> Iterator[None]:
    """Let the registry of workers be of another type."""
    key = broker.key("workers")
    broker.client.set(key, "no hash")
    try:
        yield
    finally:
        broker.client.delete(key)


# --- storing ends


class Settling:
    """Fetch loop that never turns, with what a test gives it to store.

    Args:
        sources: the shards.
    """

    def __init__(self, *sources: Source) -> None:
        process = make_process()
        slots = Slots(1, lambda attempt: None, Hooks(), lambda: None)
        self._consumer = Consumer(process, ShardSelector(sources), slots, None, ReadinessGate())

    @property
    def held(self) -> set[Attempt]:
        """Attempts that are held."""
        return self._consumer.held

    @property
    def settled(self) -> int:
        """Number of attempts that were settled."""
        return self._consumer.settled

    def halt(self) -> None:
        """Let the process end now."""
        self._consumer.advance(FetchStage.HALT)

    def call(self, call: Callable[[], Any], attempts: list[Attempt], source: Source) -> Any:
        """Make a call to Redis that settles these attempts. Return its answer; None if there is none."""
        return self._consumer._call(call, attempts, source)

    def kept(self, source: Source) -> list[Attempt]:
        """Return the attempts of a shard whose ends are still to be stored."""
        return self._consumer._ends.get(source, [])

    def settle(self, attempts: list[Attempt]) -> None:
        """Store the ends of these attempts, which belong to one shard."""
        self._consumer._ends.setdefault(attempts[0].source, []).extend(attempts)
        self._consumer._settle_all()

    def settle_and_reserve(self, attempts: list[Attempt], limit: int) -> list[Attempt]:
        """Store them in one call with a reserve. Return the attempts at the jobs of that."""
        self._consumer._ends.setdefault(attempts[0].source, []).extend(attempts)
        self._consumer._fetch(attempts[0].source, limit)
        return list(self._consumer.slots.inbox)


# --- ticks of one recurring task

#: T0 is a tick of it
EVERY = 100_000
ID = "recurring:work"


def work() -> None: ...


def recurring(**options: Any) -> Registry:
    """A registry with the one task ``work``, every 100 s."""
    options = options if "cron" in options else {"every": EVERY / 1000, **options}
    registry = Registry()
    registry.add(Task(work, name="work", options=TaskOptions(**options)))
    return registry


class Tower(Stage):
    """A stage whose clock strikes: any number of dispatchers read it."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, name="default")
        self.broker.now_ms = lambda: self.us / 1000  # type: ignore[method-assign]

    def dispatcher(self, *, changes: Changes | None = None, **options: Any) -> RecurringTicker:
        """One more dispatcher for the task ``work``."""
        return RecurringTicker(self.broker, recurring(**options), changes=changes or Changes())

    def started(self, **options: Any) -> RecurringTicker:
        """A dispatcher that was there before the next tick."""
        made = self.dispatcher(**options)
        made.run()
        return made

    def pause(self, task: str) -> None:
        """Pause a recurring task."""
        pause_recurring(self.broker, task)

    def resume(self, task: str) -> None:
        """End the pause of a recurring task."""
        resume_recurring(self.broker, task)

    def paused_since(self) -> dict[str, Any]:
        """Return the paused tasks, each with the beginning of its pause."""
        return dict(recurring_pauses(self.broker))
