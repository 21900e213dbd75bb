"""Waiting of processes in simulated time: which shards they look at, what they listen to, what they send when idle.

The fetch loops, limits, slots, duties and scripts are the real ones. In a :class:`WaitingWorld` fetch loops and wake
listeners run step by step, in any order; left out are the threads, the handlers, and the safety nets: checks without a
token, and dispatchers. In an :class:`IdleProcess` the duties run one after another, each at its moment.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from django_delayq.core import Broker, NewJob, QueueUnavailable, Registry, Task, TaskOptions, ack
from django_delayq.core.limits import Block, LaneNotes
from django_delayq.core.options import Limits
from django_delayq.core.records.keys import number_of
from django_delayq.core.wake import Waker
from django_delayq.worker.dispatcher import dispatcher_duties
from django_delayq.worker.fetch import Consumer, ReadinessGate, Stage
from django_delayq.worker.hooks import Hooks
from django_delayq.worker.limits import ProcessLimits
from django_delayq.worker.loop import Duty, RedisHealth
from django_delayq.worker.shards import DueShard, Pace, Scope, ShardSelector, ShardState, Source, stalest
from django_delayq.worker.slots import Slots
from django_delayq.worker.wake import BLOCK, WakeListener
from tests.core.stage import T0

from .attempt_stage import NEVER, idle_slots, make_attempt
from .duty_stage import heartbeat_of, make_process
from .worker_stage import config, registry_of

TASKS = ("plain", "limited")
#: s; within which a due job has to reach a free slot. Longer than the pause between two reminders
SOON = 2.5
#: turns of all processes after which they should rest
MOST_TURNS = 1500


class Clock:
    """Clock of the worker's parts for the length of a block; calls to Redis take real time."""

    def __init__(self) -> None:
        self.now = 1000.0

    @contextmanager
    def running(self) -> Iterator[Clock]:
        """Let all parts of the worker read this clock."""
        stopped = SimpleNamespace(monotonic=lambda: self.now, time=time.time, sleep=self._sleep)
        parts = [module for name, module in sys.modules.items() if name.startswith("django_delayq.worker.")]
        changes: list[tuple[Any, str, Any]] = [
            (part, "time", stopped) for part in parts if vars(part).get("time") is time
        ]
        changes += [(part, "CALL_SECONDS", 1e9) for part in parts if "CALL_SECONDS" in vars(part)]
        originals = [(part, name, getattr(part, name)) for part, name, _ in changes]
        for part, name, value in changes:
            setattr(part, name, value)
        try:
            yield self
        finally:
            for part, name, value in originals:
                setattr(part, name, value)

    def _sleep(self, seconds: float) -> None:
        raise AssertionError("an error in a fetch loop")


class SteppedListener(WakeListener):
    """Wake listener without a thread: a read begins, or returns what there is, when the test wants."""

    def __init__(self, world: WaitingWorld, selector: ShardSelector) -> None:
        super().__init__(world.broker, selector, RedisHealth(), selector.lock)
        self.reading_names: frozenset[str] | None = None
        #: number of the present read among those of all processes
        self.began = 0
        self._world = world
        self._selector = selector
        self._dice = world.dice

    def listens_to(self, names: frozenset[str]) -> bool:
        return self.reading_names is not None and names <= self.reading_names

    def call(self, names: frozenset[str]) -> None:
        if self.reading_names is not None and not names <= self.reading_names and self._dice.random() < 0.7:
            self.reading_names = None  # else the call is missed

    def step(self) -> bool:
        """Begin a read, or end it if there is a token. Return False if nothing happened."""
        if self.reading_names is None:
            self.reading_names = self._selector.awaited_queues() or None
            self.began = next(self._world.reads)
            return self.reading_names is not None
        hints = self._take(self.reading_names)
        if not hints:
            return False
        self.reading_names = None
        self.put_back(self._selector.tokens(hints))
        return True

    def _take(self, names: frozenset[str]) -> list[tuple[str, int]]:
        some = sorted(names)
        self._dice.shuffle(some)
        for name in some:
            if any(name in (one.reading_names or ()) and one.began < self.began for one in self._others()):
                continue  # Redis serves the client that has waited longest
            token = self._broker.client.lpop(self._broker.wake_key(name))
            if token is not None:
                return [(name, int(token))]
        return []

    def _others(self) -> list[SteppedListener]:
        return [member.listener for member in self._world.members if member.listener is not self]


class ChannelListener(SteppedListener):
    """The same for channels: what arrived while nothing was read is still there."""

    subscribed: Waker | None = None

    def _take(self, names: frozenset[str]) -> list[tuple[str, int]]:
        if self.subscribed is None:
            self.subscribed = self._broker.waker(sorted(self._selector.names))
            self._selector.check_all()
        return self.subscribed.wait(0.03, names)


class Member:
    """One process."""

    def __init__(self, world: WaitingWorld, name: str, threads: int, queues: Sequence[str]) -> None:
        broker, self.world = world.broker, world
        settings = config(queues=tuple(queues), threads=threads, limits=world.queue_limits, safety_check=1e6)
        process = make_process(broker, world.registry, settings, name=name)
        self.selector = ShardSelector(on_unknown=self.refresh)
        self.scope = Scope(broker, settings, self.selector.serve)
        self.refresh()
        self.selector.rest = self._rest  # type: ignore[method-assign]
        self.slots = Slots(threads, lambda attempt: None, Hooks(), self.selector.nudge)
        kind = ChannelListener if broker.connection.cluster else SteppedListener
        self.listener = kind(world, self.selector)
        self.consumer = Consumer(process, self.selector, self.slots, self.listener, ReadinessGate())
        self.until = 0.0
        self.stopping = False

    def refresh(self) -> None:
        self.scope.refresh()

    def serves(self, queue: str, shard: int) -> bool:
        """Return True if it reserves from a shard."""
        return (queue, shard) in self.selector.by_place

    def _rest(self, until: float) -> None:
        self.until = until if self.selector.resting else 0.0

    @property
    def calls(self) -> bool:
        """True while it repeats a call of its listener."""
        return bool(self.selector.waiting) and not self.listener.listens_to(self.selector.waiting)

    @property
    def awake(self) -> bool:
        return not self.selector.resting or self.until <= self.world.clock.now

    def turn(self) -> bool:
        """Run the fetch loop once, unless it rests. Return False if it does."""
        if not self.awake:
            return False
        self.selector.resting = False
        if self.consumer._is_over():
            self.consumer._run_thread()  # no further turn: what the loop does at its end
            self.world.members.remove(self)
            return True
        self.consumer._turn()
        while self.slots.inbox and None in self.slots.running:
            attempt = self.slots.inbox.popleft()
            attempt.started = self.world.clock.now
            self.slots.running[self.slots.running.index(None)] = attempt
        return True

    def end_one(self) -> None:
        """End one attempt."""
        running = [attempt for attempt in self.slots.running if attempt is not None]
        if not running:
            return
        attempt = self.world.dice.choice(running)
        attempt.settlement, attempt.ended = ack(attempt.job, T0, 1), self.world.clock.now
        self.slots.running[self.slots.running.index(attempt)] = None
        self.slots.done.append(attempt)
        self.world.ended.add(attempt.job.id)
        self.selector.nudge()

    def stop(self) -> None:
        self.stopping = True
        self.consumer.advance(Stage.GIVE_BACK)

    def holds(self, name: str = "") -> int:
        """Return the number of jobs that it holds, of all or of one queue or task."""
        return len([one for one in self.consumer.held if name in ("", one.job.queue, one.job.task)])


class WaitingWorld:
    """Queues, jobs and processes."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        dice: random.Random,
        queues: Mapping[str, int],
        limits: Mapping[str, Limits],
    ) -> None:
        self.broker, self.clock, self.dice, self.limits = broker, clock, dice, limits
        self.queue_limits = {name: limits[name] for name in queues if name in limits}
        self.registry = Registry()
        for task in TASKS:
            self.registry.add(Task(lambda: None, name=task, options=TaskOptions(concurrency=limits.get(task))))
        self.members: list[Member] = []
        self.reads = itertools.count(1)
        self.jobs: dict[str, tuple[str, str, float]] = {}
        self.ended: set[str] = set()
        self.paused: set[str] = set()
        self.shards = dict(queues)
        for name, shards in queues.items():
            broker.queue(name, shards=shards)
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        """Move the clock on."""
        self.clock.now += seconds
        for name in self.shards:
            queue = self.broker.queue(name)
            epoch = queue.layout["epoch"]
            places = {*queue.numbers, *(number_of(epoch + 1, place) for place in range(4))}
            for number in places:  # also those that a change of shards is about to make
                key = self.broker.shard(name, number).names["meta"]
                self.broker.client.hset(key, "test_clock", self.us)

    @property
    def us(self) -> int:
        return T0 * 1000 + int((self.clock.now - 1000) * 1e6)

    # --- what may happen

    def put(self, queue: str, task: str, delay: float) -> None:
        ident = f"job-{len(self.jobs)}"
        self.broker.queue(queue).schedule(NewJob(ident, task, delay_ms=int(delay * 1000)))
        self.jobs[ident] = queue, task, self.clock.now + delay

    def pause(self, queue: str) -> None:
        if queue in self.paused:
            self.paused.remove(queue)
            self.broker.resume(queue, "out")
        else:
            self.paused.add(queue)
            self.broker.pause(queue, "out")

    def reshard(self, queue: str) -> None:
        self.broker.reshard(queue, self.dice.randint(1, 4))
        self.advance(0.0)

    # --- what must hold

    def settle_down(self) -> None:
        """Let all processes run until they rest, in any order, for some time."""
        for member in self.members:
            member.refresh()  # as after an announcement
        until, turns = self.clock.now + SOON, 0
        while True:
            steps = [step for member in self.members for step in (member.turn, member.listener.step)]
            self.dice.shuffle(steps)
            turns += 1
            assert turns < MOST_TURNS, "the processes do not come to rest"
            moved = [step() for step in steps]
            if any(moved):
                continue
            nearest = min((member.until for member in self.members), default=until)
            if nearest >= until and not any(member.calls for member in self.members):
                return
            self.advance(max(nearest - self.clock.now, 0.0) + 1e-3)

    def check(self) -> None:
        """Assert that no due job waits beside a free slot, and that who has free slots listens."""
        held = {attempt.job.id for member in self.members for attempt in member.consumer.held}
        for ident, (queue, task, due) in self.jobs.items():
            if ident not in held and ident not in self.ended and due <= self.clock.now - SOON:
                able = [member for member in self.members if self._able(member, queue, task)]
                assert not able, f"{ident} ({task} of {queue}) waits beside {[one.slots.free for one in able]} slots"
        for member in self.members:
            if member.slots.free and not member.stopping:
                names = member.selector.names - member.consumer.limits.full_queues
                assert not names or member.listener.listens_to(names), (
                    f"a process with {member.slots.free} free slots listens to {member.listener.reading_names}, "
                    f"not to {set(names)}; it awaits {set(member.selector.waiting)}"
                )

    def _able(self, member: Member, queue: str, task: str) -> bool:
        limits = [(self.limits[name], name) for name in (queue, task) if name in self.limits]
        return (
            queue in member.selector.names
            and queue not in self.paused
            and not member.stopping
            and member.slots.free > len(member.slots.inbox)
            and all(limit.local is None or member.holds(name) < limit.local for limit, name in limits)
            and all(
                limit.total is None or sum(one.holds(name) for one in self.members) < limit.total
                for limit, name in limits
            )
        )


def play(world: WaitingWorld, actions: int) -> None:
    """Let things happen in a random order, and check the world now and then."""
    dice, queues = world.dice, list(world.shards)
    for number in range(3):
        served = queues if number == 0 else dice.sample(queues, dice.randint(1, len(queues)))
        world.members.append(Member(world, f"w{number}", dice.randint(1, 4), served))
    for number in range(actions):
        member: Any = dice.choice(world.members)
        kind = dice.choices(
            ["put", "turn", "listen", "end", "advance", "pause", "reshard", "stop", "settle"],
            [8, 6, 6, 4, 3, 1, 0.4, 0.3, 3],
        )[0]
        if kind == "put":
            for _ in range(dice.choice([1, 1, 5])):
                world.put(dice.choice(queues), dice.choice(TASKS), dice.choice([0.0, 0.0, dice.uniform(0.1, 4.0)]))
        elif kind == "turn":
            member.turn()
        elif kind == "listen":
            member.listener.step()
        elif kind == "end":
            member.end_one()
        elif kind == "advance":
            world.advance(dice.uniform(0.0, 1.0))
        elif kind == "pause":
            world.pause(dice.choice(queues))
        elif kind == "reshard":
            world.reshard(dice.choice(queues))
        elif kind == "stop":
            member.stop()
            world.members.append(Member(world, f"n{number}", dice.randint(1, 4), queues))
        else:
            world.settle_down()
            world.check()
    world.settle_down()
    world.check()


# --- one process that has nothing to do

NAME = "idle"
#: blocking reads of the wake listener in a minute, which the simulation leaves out
BLOCKING_READS = 60 / BLOCK


class Fetching:
    """Duty that reserves as the fetch loop does while nothing runs."""

    def __init__(
        self, selector: ShardSelector, now: Callable[[], float], found_at: dict[str, float], safety_check: float
    ) -> None:
        self._selector = selector
        self._found_at = found_at
        self._now = now
        self._seconds = safety_check

    def run(self) -> float:
        now = self._now()
        while (source := self._selector.due(now)) is not None:
            self._selector.begin_reserve(source, now)
            batch = source.queue.reserve(source.shard, 100, worker=NAME)
            self._selector.apply_reply(source, now, batch.next_due_ms, batch.taken)
            source.queue.settle([ack(job, 1, 2) for job in batch.jobs])
            self._found_at.update((job.id, now) for job in batch.jobs)
        return min(self._selector.next_safety_check(now, self._seconds), self._selector.next_due_at()) - now


class IdleProcess:
    """Worker process whose duties run one after another, each at its moment. Time passes in between only."""

    def __init__(self, broker: Broker, clock: Clock, **changes: Any) -> None:
        self.broker = broker
        self.clock = clock
        #: when jobs were reserved, by id
        self.found_at: dict[str, float] = {}
        settings = config(queues=("default", "delayq"), **changes)
        #: seconds between two checks of a shard without a token
        self.safety_check = settings.safety_check
        process = make_process(broker, registry_of(idle_work), settings, name=NAME)
        scope = Scope(broker, settings)
        scope.refresh()
        self._shards = [queue.shard(number) for queue in scope.queues for number in queue.numbers]
        self._set_clock()
        selector = ShardSelector()
        selector.serve(scope.queues)
        checks = NEVER if settings.dispatcher else settings.safety_check
        self._duties: dict[str, Duty] = {
            "fetching": Fetching(selector, lambda: self.now, self.found_at, checks),
            "heartbeat": heartbeat_of(process),
        }
        if settings.dispatcher:
            self._duties |= dispatcher_duties(process, scope, selector)
        self._next_at = dict.fromkeys(self._duties, self.now)
        selector.nudge = lambda: self._next_at.update(fetching=self.now)  # type: ignore[method-assign]

    @property
    def now(self) -> float:
        return self.clock.now

    def pass_seconds(self, seconds: float = 60.0) -> None:
        """Run what is due within the next seconds."""
        until = self.now + seconds
        while (at := min(self._next_at.values())) < until:
            name = min(self._next_at, key=lambda name: self._next_at[name])
            self.clock.now = max(self.now, at)
            self._set_clock()
            if name == "depth-sampler":
                self.broker.client.delete(self.broker.key("sampler"))  # it expires on Redis's own clock
            self._next_at[name] = self.now + max(self._duties[name].run(), 0.0)
        self.clock.now = until
        self._set_clock()

    def commands_of_minutes(self, minutes: int) -> list[Counter[str]]:
        """Return the commands of each of the next minutes; scripts by their names."""
        client, scripts = self.broker.client, self.broker.scripts
        counted: list[Counter[str]] = []
        with client.monitor() as monitor:
            for _ in range(minutes):
                self.pass_seconds()
                client.echo("a minute")
                counted.append(Counter())
                while (seen := monitor.next_command())["command"] != "ECHO a minute":
                    if seen["client_type"] != "lua" and not seen["command"].startswith(("HSET", "DEL", "INFO")):
                        counted[-1][" ".join(seen["command"].split()[:2])] += 1
        names = {f"EVALSHA {sha}": name for name, (sha, _) in scripts._loaded.items()}
        return [Counter({names.get(word, word.split()[0]): n for word, n in minute.items()}) for minute in counted]

    def _set_clock(self) -> None:
        with self.broker.client.pipeline(transaction=False) as pipe:
            for shard in self._shards:
                pipe.hset(shard.names["meta"], "test_clock", int((T0 / 1000 + self.now) * 1e6))
            pipe.execute()


def idle_work() -> None: ...


def park_one(broker: Broker, ident: str, task: str = "work", *, ms: float = 5000) -> None:
    """Let another worker whose limit of the task is reached meet a job, so that it is parked."""
    queue = broker.queue("default")
    number = queue.shard_of(ident)
    offers = queue.reserve(number, 1, worker="other", lanes=LaneNotes([task], most=1).pack()).offers
    blocks = [Block(f"task:{task}", 1, ms, offer.lane[-3:-1]) for offer in offers]
    queue.reserve(number, 1, worker="other", lanes=LaneNotes([task], blocks=blocks).pack())


# --- parts of the waiting


class FetchRoom:
    """Fetch loop of one shard that never turns: how many jobs it would take.

    Args:
        batch_size: number of jobs that an attempt of this shard takes.
    """

    def __init__(self, registry: Registry, *, threads: int, batch_size: int) -> None:
        self._source = make_attempt().source
        self._slots = idle_slots(threads)
        process = make_process(registry=registry, settings=config(threads=threads))
        self._consumer = Consumer(process, ShardSelector([self._source]), self._slots, None, ReadinessGate())
        self._source.pace.size = batch_size

    def run_batches(self, count: int, size: int) -> None:
        """Let so many threads run batches of this size."""
        self._slots.running[:count] = [make_attempt()] * count
        self._consumer.held = {make_attempt() for _ in range(count * size)}

    @property
    def room(self) -> int:
        """Number of jobs that it would reserve."""
        return self._consumer._room(self._source)


def listener_threads() -> list[threading.Thread]:
    """Return the threads of this process that wait for wake-up tokens."""
    return [thread for thread in threading.enumerate() if thread.name == "delayq-waker"]


class UnreachableLimiter:
    """Limits of one process whose limiter does not answer: each call fails after so many seconds of the clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.calls = clock, seconds, 0
        self._limits = ProcessLimits(make_process(), ShardSelector())
        self._limits._connection.limited = lambda seconds: nullcontext()  # type: ignore[method-assign]
        self._limits._limiter.call = self._fail  # type: ignore[method-assign]
        self._limits._ended = [b"p.1\0task:a"]

    def _fail(self, *_: Any, **__: Any) -> Any:
        self.calls += 1
        self.clock.now += self.seconds
        raise QueueUnavailable("its node is gone")

    def turn(self) -> None:
        """Return a permit, as each turn of the fetch loop tries."""
        self._limits.exchange(self.clock.now, works=True, ready=1)
