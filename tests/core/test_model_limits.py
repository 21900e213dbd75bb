"""Random lives of jobs behind limits: what callers do with offers, grants and permits, in any order, with faults.

A model that knows only the numbers of the limits counts leases, starts and pauses by itself. Never are there more
leases than a limit allows, no window of time has more starts than its burst and rate, a paused limit grants nothing,
and a due job that no limit forbids is handed out. Shards and limiter have different clocks.
``DELAYQ_MODEL_EXAMPLES=2000`` makes a long campaign with new lives every time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from django_delayq.core import Broker, Job, NewJob, Registry, Settlement, Task, TaskOptions, ack, fail, release
from django_delayq.core.options import GROUP_LIMITS, Limits
from tests.support.core_figures import Limiter
from tests.support.core_stored import Offer, Place, assert_invariants, limits_of, offer_of_job, pause_scope
from tests.support.memory_server import StoppedClock, memory_connection

from .bulk_stage import cancel_action
from .limits_stage import RETRY_US, Caller, LimitBook
from .model_draws import START_US
from .random_machine import run_machine

LEASE_MS = 6000
#: how long a permit lasts, us
PERMIT_US = LEASE_MS * 1100
SHARDS = {"q": 2, "r": 1}
TASKS = ("a", "b", "free")
GROUPS = ("", "", "x", "y")
MOST_CALLERS = 3

numbers = st.one_of(
    st.none(),
    st.builds(
        lambda total, rate: Limits(total, None, *rate) if total or rate[0] else None,
        st.sampled_from([None, 1, 2, 3]),
        st.sampled_from([(None, 0), (None, 0), (200_000.0, 1), (500_000.0, 3), (1_700_000.0, 2)]),
    ),
)
weights = st.sampled_from([1, 3])


@dataclass(eq=False)
class Running:
    """Job that is held: by whom, since when its start was granted, and until when."""

    job: Job
    caller: Caller
    granted_us: int
    until_us: int


@dataclass
class Waiting:
    task: str
    group: str
    due_us: int


class LimitedLives(RuleBasedStateMachine):
    """Callers, shards and the limiter; and a model of what limits allow."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = StoppedClock(START_US)
        self.broker = Broker(memory_connection(self.clock), prefix="m", lease_ms=LEASE_MS, test_clock=True)
        self.limiter = Limiter(self.broker.registry)
        self.callers = [Caller("c0")]
        self.made = 0
        self.jobs: dict[tuple[str, str], Waiting] = {}
        self.running: dict[tuple[str, str], Running] = {}
        self.own: set[str] = set()
        self.book = LimitBook(self.limiter, lambda: self.clock.us)

    @initialize(
        skews=st.lists(st.sampled_from([0, 0, -400, 700]), min_size=2, max_size=2),
        declared=st.fixed_dictionaries(dict.fromkeys(("queue:q", "queue:r", "task:a", "task:b", "x", "y"), numbers)),
        weights=st.fixed_dictionaries({"x": weights, "y": weights}),
    )
    def begin(self, skews: list[int], declared: dict[str, Limits | None], weights: dict[str, int]) -> None:
        self.weights = weights
        self.skew_us = dict(zip(SHARDS, (ms * 1000 for ms in skews), strict=True))
        self.group_limits = {name: declared.pop(name) for name in ("x", "y")}
        self.declared = {name: one for name, one in declared.items() if one}
        self.registry = Registry()
        for name in TASKS:
            of_task = self.declared.get(f"task:{name}")
            self.registry.add(Task(lambda: None, name=name, options=TaskOptions(concurrency=of_task)))
        self.queues = {name: self.broker.queue(name, shards=shards) for name, shards in SHARDS.items()}
        self.places = [(name, number) for name, queue in self.queues.items() for number in queue.numbers]
        for name in [*(f"queue:{name}" for name in SHARDS), *(f"task:{name}" for name in TASKS)]:
            self.book.set(name, self.declared.get(name) or Limits())
        for queue in SHARDS:
            for group in ("x", "y"):
                self.book.set(f"group:{queue}:{group}", self.group_limits[group] or Limits())
        self.set_clocks()

    def set_clocks(self) -> None:
        for place, number in self.places:
            key = self.queues[place].shard(number).names["meta"]
            self.broker.client.hset(key, "test_clock", self.clock.us + self.skew_us[place])

    @property
    def us(self) -> int:
        return self.clock.us

    # -- what may happen ---------------------------------------------------------------------------------------------

    @rule(
        queue=st.sampled_from(["q", "q", "r"]),
        task=st.sampled_from(TASKS),
        group=st.sampled_from(GROUPS),
        count=st.sampled_from([1, 1, 4]),
        delay=st.sampled_from([0, 0, 0, 900]),
        priority=st.sampled_from([4, 4, 0]),
    )
    def schedule(self, queue: str, task: str, group: str, count: int, delay: int, priority: int) -> None:
        one = self.group_limits.get(group)
        stored = {GROUP_LIMITS: [one.total or 0, one.interval_us or 0, one.burst, self.weights[group]]} if one else {}
        for _ in range(count):
            self.made += 1
            ident = f"j{self.made}"
            options = json.dumps(stored).encode() if stored else b""
            new = NewJob(ident, task, delay_ms=delay, priority=priority, options=options, group=group)
            self.queues[queue].schedule(new)
            self.jobs[queue, ident] = Waiting(task, group, self.us + delay * 1000)

    @precondition(lambda self: len(self.callers) < MOST_CALLERS)
    @rule()
    def a_caller_starts(self) -> None:
        self.made += 1
        self.callers.append(Caller(f"c{self.made}"))

    @rule(which=st.integers(0, 5), place=st.integers(0, 2), room=st.sampled_from([1, 2, 5, 0]))
    def reserve(self, which: int, place: int, room: int) -> None:
        self.reserve_by(self.callers[which % len(self.callers)], self.places[place], room)

    @rule(which=st.integers(0, 5), lost=st.integers(0, 7))
    def exchange(self, which: int, lost: int) -> None:
        """Ask for permits and return others; sometimes the reply is lost, and the call is sent again."""
        self.exchange_by(self.callers[which % len(self.callers)], twice=lost == 0)

    @precondition(lambda self: self.held())
    @rule(which=st.integers(0, 9), verb=st.sampled_from(["ack", "ack", "fail", "release"]))
    def end(self, which: int, verb: str) -> None:
        held = self.held()
        one = held[which % len(held)]
        made = {"ack": ack(one.job, 1, 2), "fail": fail(one.job, 1, 2, delay_ms=500), "release": release(one.job)}[verb]
        self.settle(one, made, {"ack": None, "fail": 500, "release": 0}[verb])

    @precondition(lambda self: self.held())
    @rule(
        which=st.integers(0, 9),
        scope=st.sampled_from(["group", "task", "queue"]),
        ms=st.sampled_from([300, 2500]),
    )
    def end_rate_limited(self, which: int, scope: str, ms: int) -> None:
        """Let a handler meet a refusal of its partner."""
        held = self.held()
        one = held[which % len(held)]
        settlement = release(one.job, pause=(scope, ms))
        limits = self.limits_of(one.job.queue, offer_of_job(one.job))
        pause_scope(self.limiter, settlement, limits)
        for limit in limits:
            if limit.startswith(f"{scope}:"):
                self.book.pause(limit, ms)
        self.settle(one, settlement, settlement.delay_ms or 0)

    def settle(self, one: Running, settlement: Settlement, again_ms: int | None) -> None:
        place = one.job.queue, one.job.id
        del self.running[place]
        assert self.queues[one.job.queue].settle([settlement]) == [True]
        if again_ms is None:
            del self.jobs[place]
        elif again_ms:
            self.jobs[place].due_us = self.us + again_ms * 1000
        one.caller.ended += [one.job.permit] if one.job.permit else []

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        """Take a job away, perhaps between its grant and its reserve."""
        queue, ident = list(self.jobs)[which % len(self.jobs)]
        if (queue, ident) not in self.running:
            assert cancel_action().anywhere(self.queues[queue], ident) == "cancelled"
            del self.jobs[queue, ident]

    @rule(ms=st.sampled_from([1, 100, 200, 500, 1900, 5000]))
    def time_passes(self, ms: int) -> None:
        self.advance(ms * 1000)

    @rule(ms=st.sampled_from([2000, 9000]), which=st.integers(0, 5))
    def a_caller_dies(self, ms: int, which: int) -> None:
        caller = self.callers.pop(which % len(self.callers))
        self.callers = self.callers or [Caller("next")]
        assert caller not in self.callers
        self.book.lose(PERMIT_US + RETRY_US)

    @rule(
        name=st.sampled_from(["queue:q", "task:a", "task:free", "group:q:x", "group:r:y"]),
        new=numbers,
    )
    def set_a_limit(self, name: str, new: Limits | None) -> None:
        """Set a limit at run time, or clear it."""
        if new is None and name not in self.own:
            return
        code = self.group_limits[name[-1]] if name.startswith("group:") else self.declared.get(name)
        code, own = code or Limits(), new or Limits()
        self.limiter.set(name, new)
        (self.own.add if new else self.own.discard)(name)
        rate = own if own.interval_us else code
        self.book.set(name, Limits(own.total or code.total, None, rate.interval_us, rate.burst))

    @rule()
    def all_that_may_start_starts(self) -> None:
        """Let callers finish what they have begun, and take all that they get: limits forbid the rest."""
        while self.us < self.book.lossy_us:
            self.advance(1_000_000)
        for _ in range(2):  # the end of a block is a whole ms
            self.advance(2000)
            self.work_until_nothing_moves()
        for (queue, ident), waiting in self.jobs.items():
            if (queue, ident) not in self.running and waiting.due_us <= self.us - 10_000:
                assert any(self.forbids(name) for name in self.names(queue, waiting.task, waiting.group)), (
                    f"{ident} waits ({queue}, {waiting}), and no limit forbids it"
                )

    # -- the protocol ------------------------------------------------------------------------------------------------

    def work_until_nothing_moves(self) -> None:
        idle, caller = 0, self.callers[0]
        while idle < 3:
            before = len(self.running)
            for one in self.callers:
                for place in self.places:
                    if one is caller or place in one.notes:
                        self.reserve_by(one, place, 20)
                self.exchange_by(one)
            idle = idle + 1 if len(self.running) == before else 0

    def reserve_by(self, caller: Caller, place: Place, room: int) -> None:
        name = f"queue:{place[0]}"
        tasks = [*self.registry.limited, *(name[5:] for name in self.own if name.startswith("task:"))]
        whole = name in self.declared or name in self.own
        for job, grant in caller.reserve(self.queues[place[0]], place[1], room, tasks=tasks, whole=whole):
            assert (job.queue, job.id) not in self.running and self.jobs[job.queue, job.id].due_us <= self.us
            granted_us = self.book.start(job, grant)
            self.running[job.queue, job.id] = Running(job, caller, granted_us, self.us + LEASE_MS * 1000)

    def exchange_by(self, caller: Caller, *, twice: bool = False) -> None:
        caller.exchange(self.book, self.limits_of, twice=twice)

    def limits_of(self, queue: str, offer: Offer) -> dict[str, Any]:
        of_queue = self.declared.get(f"queue:{queue}")
        return limits_of(queue, of_queue, self.registry.get(offer.task), offer, self.own)

    def advance(self, us: int) -> None:
        """Let time pass; callers renew what they hold, and a dispatcher settles what nobody does."""
        while us > 0:
            self.clock.us += min(us, 1_000_000)
            us -= 1_000_000
            self.set_clocks()
            held = self.held()
            if permits := [(one.job.permit, PERMIT_US // 1000) for one in held if b"\0" in one.job.permit]:
                self.limiter.call(renew=permits)
            for one in held:
                assert self.queues[one.job.queue].touch([one.job]) == ["held"]
                one.until_us = self.us + LEASE_MS * 1000
            for name, number in self.places:
                queue = self.queues[name]
                ran_out = queue.expired(number)
                for job in queue.take_over(ran_out, "heir") if ran_out else ():
                    del self.running[name, job.id]
                    assert queue.settle([release(job)]) == [True]
                    self.limiter.give_back([job.permit])

    def held(self) -> list[Running]:
        return [one for one in self.running.values() if one.caller in self.callers]

    # -- the model ---------------------------------------------------------------------------------------------------

    @staticmethod
    def names(queue: str, task: str, group: str) -> list[str]:
        return [f"queue:{queue}", f"task:{task}", *([f"group:{queue}:{group}"] if group else [])]

    def leases(self, name: str) -> list[Running]:
        """Return the jobs with this limit whose leases have not ended."""

        def has(one: Running) -> bool:
            return one.until_us > self.us and name in self.names(one.job.queue, one.job.task, one.job.group)

        return [one for one in self.running.values() if has(one)]

    def forbids(self, name: str) -> bool:
        """Return True if a limit allows no further start now."""
        return self.book.forbids(name, len(self.leases(name)))

    @invariant()
    def no_limit_has_more_leases_than_it_allows(self) -> None:
        for name in self.book.history:
            self.book.check_leases(name, [one.granted_us for one in self.leases(name)])

    def teardown(self) -> None:
        self.all_that_may_start_starts()
        assert_invariants(self.broker)


def test_random_lives_of_limited_jobs_are_within_their_limits_and_nothing_waits_for_nothing() -> None:
    run_machine(LimitedLives, 30)
