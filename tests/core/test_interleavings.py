"""Four workers and three merged ids in any order of calls: checks of the guarantees for one id and of limits.

A ledger kept beside the queue knows which payloads were accepted and not yet done. Whenever an id is handed out, it is
handed out to one holder only, with all of them, in the order of their scores. The world is that of the model besides.
Behind limits, workers also ask for permits, return and lose them in any order: no limit is exceeded, and no due job
waits that no limit forbids.
``DELAYQ_MODEL_EXAMPLES=5000`` makes a long campaign, as it does for ``test_model.py``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from django_delayq.core import (
    Broker,
    Connection,
    Job,
    NewJob,
    Payload,
    Settlement,
    Task,
    TaskOptions,
    ack,
    bury,
    fail,
    release,
)
from django_delayq.core.options import GROUP_LIMITS, Limits
from tests.support.core_figures import Limiter
from tests.support.core_stored import Limit, Offer, assert_invariants, limits_of, set_clock
from tests.support.memory_server import StoppedClock, memory_connection

from . import model_operators as operators
from .epochs_stage import forget_queues
from .limits_stage import RETRY_US, Caller, LimitBook
from .model import ModelShard
from .random_machine import run_machine
from .world import read_world

IDS = ("a", "b", "c")
WORKERS = ("w1", "w2", "w3", "w4")
LEASE_MS = 15_000
START_US = 1_700_000_000_000_000
#: groups of ids where limits are in force; c has none
GROUPS = {"a": "x", "b": "x"}
#: µs; how long a permit lasts
PERMIT_US = LEASE_MS * 1100

ids, workers = st.sampled_from(IDS), st.sampled_from(WORKERS)
delays = st.sampled_from([0, 0, 0, 1000, 20_000])
scores = st.sampled_from(["-2.5", "0", "1", "2", "10", "1e3"])
jobs_at_hand = st.integers(0, 5)

Place = tuple[float, int]


def bare(jobs: Iterable[Job]) -> list[Job]:
    """Return jobs without their permits, of which the model has none."""
    return [replace(job, permit=b"") for job in jobs]


class Interleavings(RuleBasedStateMachine):
    """State machine that calls ``real`` and ``model`` alike; ``open`` and ``buried`` are the ledger."""

    broker: Broker
    #: with which each id is scheduled
    groups: Mapping[str, str] = {}
    options = b""

    def __init__(self) -> None:
        super().__init__()
        self.broker.client.flushdb()
        forget_queues(self.broker)
        self.real = self.broker.queue("q", shards=1)
        self.model = ModelShard("q", 0, LEASE_MS)
        self.us = START_US
        self.numbers = itertools.count(1)
        self.open: dict[str, dict[bytes, Place]] = {ident: {} for ident in IDS}
        self.buried: dict[bytes, Place] = {}
        self.holders: dict[str, int] = {}  # id -> token of the one live lease
        self.hands: dict[str, list[Job]] = {worker: [] for worker in WORKERS}
        self.pass_time(0)

    def pass_time(self, ms: float) -> None:
        self.us += int(ms * 1000)
        set_clock(self.real, 0, self.us)

    # -- the moves ---------------------------------------------------------------------------------------------------

    @rule(ident=ids, score=scores, delay=delays)
    def schedule(self, ident: str, score: str, delay: int) -> None:
        number = next(self.numbers)
        payload = Payload(b"p%d" % number, score, number.to_bytes(16, "little"))
        new = NewJob(
            ident,
            "sync",
            delay_ms=delay,
            key=number.to_bytes(16, "big"),
            on_conflict="merge",
            due_policy="keep",
            payload=payload,
            group=self.groups.get(ident, ""),
            options=self.options if ident in self.groups else b"",
        )
        self.model.see(self.us)
        assert [self.real.schedule(new)] == self.model.schedule([new])
        self.open[ident][b"p%d" % number] = float(score), number

    @precondition(lambda self: self.model.waiting())
    @rule(worker=workers, limit=st.integers(1, 3), patient=st.booleans())
    def reserve(self, worker: str, limit: int, patient: bool) -> None:
        due = self.model.next_due_ms()
        if patient and due is not None:
            self.pass_time(max(0.0, due - self.us / 1000))
        self.reserve_by(worker, limit)

    def reserve_by(self, worker: str, limit: int) -> None:
        self.model.see(self.us)
        expected, _ = self.model.reserve(limit, worker)
        jobs = self.real.reserve(0, limit, worker=worker).jobs
        self.check_hand_out(worker, jobs, expected)

    def check_hand_out(self, worker: str, jobs: list[Job], expected: list[Job]) -> None:
        assert sorted(bare(jobs), key=lambda job: job.id) == sorted(expected, key=lambda job: job.id)
        for job in jobs:
            assert job.id not in self.holders, "two live leases of one id"
            self.holders[job.id] = job.token
            mine = self.open[job.id]
            assert [payload.data for payload in job.payloads] == sorted(mine, key=mine.__getitem__)
        self.hands[worker] += jobs

    @precondition(lambda self: any(self.hands.values()))
    @rule(which=jobs_at_hand)
    def ack(self, which: int) -> None:
        self.settle(ack(self.taken(which), 1, 2))

    @precondition(lambda self: any(self.hands.values()))
    @rule(which=jobs_at_hand, delay=delays)
    def fail(self, which: int, delay: int) -> None:
        self.settle(fail(self.taken(which), 1, 2, delay_ms=delay))

    @precondition(lambda self: any(self.hands.values()))
    @rule(which=jobs_at_hand)
    def release(self, which: int) -> None:
        self.settle(release(self.taken(which)))

    @precondition(lambda self: any(self.hands.values()))
    @rule(which=jobs_at_hand, oldest=st.booleans())
    def give_up(self, which: int, oldest: bool) -> None:
        self.settle(replace(bury(self.taken(which), 1, 2, reason="exhausted"), oldest=oldest))

    @precondition(lambda self: self.holders)
    @rule(late=st.sampled_from([0, 1, 500]), counted=st.booleans(), delay=delays)
    def leases_run_out(self, late: int, counted: bool, delay: int) -> None:
        """Let leases expire; their holders still settle the jobs later."""
        first = min(live.lease.deadline_ms for live in self.model.lives.values() if live.lease)
        self.pass_time(max(0.0, first + late - self.us / 1000))
        self.settle_expired(counted, delay)

    def settle_expired(self, counted: bool, delay: int) -> None:
        self.model.see(self.us, keep=False)
        found = self.real.expired(0)
        assert [job.id for job in found] == self.model.expired()
        if not found:
            return
        self.model.see(self.us)
        taken = self.real.take_over(found, "heir")
        assert bare(taken) == self.model.take_over(found, "heir")
        for job in taken:
            self.holders[job.id] = job.token
            counted_end = fail(job, 1, 2, delay_ms=delay, outcome="crashed")
            self.settle(counted_end if counted else release(job, unclear=True))

    @precondition(lambda self: self.buried)
    @rule(which=st.integers(0, 3), delay=delays)
    def kick(self, which: int, delay: int) -> None:
        ident, key = list(self.model.graves)[which % len(self.model.graves)]
        back = [item.payload.data for item in self.model.graves[ident, key].items]
        self.model.see(self.us)
        assert operators.apply(self.model, [(ident, key)], operators.Kick(delay, False)) == ["kicked"]
        assert self.real.kick(ident, key=key, delay_ms=delay) == "kicked"
        self.open[ident].update((data, self.buried.pop(data)) for data in back)

    @rule(ms=st.sampled_from([1, 1000, 5000]))
    def time_passes(self, ms: int) -> None:
        self.pass_time(ms)

    def taken(self, which: int) -> Job:
        """Remove a job from its holder and return it."""
        held = [(worker, job) for worker, jobs in self.hands.items() for job in jobs]
        worker, job = held[which % len(held)]
        self.hands[worker].remove(job)
        return job

    def settle(self, settlement: Settlement) -> None:
        job = settlement.job
        self.model.see(self.us)
        (counted,) = self.real.settle([settlement])
        assert [counted] == self.model.settle([settlement])
        assert counted == (self.holders.get(job.id) == job.token), "only the holder of the live lease counts"
        if not counted:
            return
        del self.holders[job.id]
        if settlement.verb == "ack":
            for payload in job.payloads:
                del self.open[job.id][payload.data]
        elif settlement.verb == "bury":
            for payload in job.payloads[: 1 if settlement.oldest else None]:
                self.buried[payload.data] = self.open[job.id].pop(payload.data)

    # -- after every move --------------------------------------------------------------------------------------------

    @invariant()
    def no_payload_is_lost_and_all_is_as_in_the_model(self) -> None:
        world = read_world(self.real, 0)
        assert world == self.model.world()
        live = {
            ident: {payload.data for payload in one["waiting"] + one["running"]}
            for ident, one in world["lives"].items()
        }
        assert live == {ident: set(payloads) for ident, payloads in self.open.items() if payloads}
        graves = [payload.data for grave in world["graves"].values() for payload in grave["payloads"]]
        assert sorted(graves) == sorted(self.buried)

    def teardown(self) -> None:
        assert_invariants(self.broker)


Numbers = tuple[int | None, tuple[float | None, int]]
#: permits; µs from one start to the next, and starts at once
numbers: st.SearchStrategy[Numbers] = st.tuples(
    st.sampled_from([None, 1, 1, 2]), st.sampled_from([(None, 0), (None, 0), (400_000.0, 1), (3_000_000.0, 2)])
)


class LimitedInterleavings(Interleavings):
    """The same behind limits of queue, task and group; workers ask for permits and return them at any time."""

    groups = GROUPS

    def __init__(self) -> None:
        self.clock = StoppedClock(START_US)
        self.broker = Broker(memory_connection(self.clock), prefix="limited", lease_ms=LEASE_MS, test_clock=True)
        self.book = LimitBook(Limiter(self.broker.registry), lambda: self.us)
        self.callers = {worker: Caller(worker) for worker in WORKERS}
        #: of each token and id, when the start was granted, µs
        self.granted_us: dict[tuple[int, str], int] = {}
        super().__init__()

    @initialize(of_queue=numbers, of_task=numbers, of_group=numbers)
    def begin(self, of_queue: Numbers, of_task: Numbers, of_group: Numbers) -> None:
        queue, task, group = (Limits(total, None, *rate) for total, rate in (of_queue, of_task, of_group))
        for name, one in {"queue:q": queue, "task:sync": task, "group:q:x": group}.items():
            self.book.set(name, one)
        self.task = Task(lambda: None, name="sync", options=TaskOptions(concurrency=task if task.is_shared else None))
        self.of_queue = queue
        self.options = json.dumps({GROUP_LIMITS: [group.total or 0, group.interval_us or 0, group.burst]}).encode()

    def pass_time(self, ms: float) -> None:
        super().pass_time(ms)
        self.clock.us = self.us

    def limits_of(self, queue: str, offer: Offer) -> list[Limit]:
        return limits_of(queue, self.of_queue, self.task, offer)

    def names(self, ident: str) -> list[str]:
        return ["queue:q", "task:sync", *(f"group:q:{group}" for group in [self.groups.get(ident)] if group)]

    # -- the moves ---------------------------------------------------------------------------------------------------

    def reserve_by(self, worker: str, limit: int) -> None:
        """Take what was granted, and what has no limits; the order within a lane is by due time."""
        self.model.see(self.us)
        tasks = ["sync"] if self.task.options.limits else []
        found = self.callers[worker].reserve(self.real, 0, limit, tasks=tasks, whole=self.of_queue.is_shared)
        granted = [job.id for job, grant in found if grant is not None]
        for group in ("x", ""):
            lane = [ident for _, _, ident in self.model.waiting() if self.groups.get(ident, "") == group]
            started = [ident for ident in granted if ident in lane]
            assert sorted(started) == sorted(lane[: len(started)]), f"{started} of {lane}"
        is_limited = bool(tasks) or self.of_queue.is_shared
        assert len(granted) == len(found) or not is_limited
        assert all(self.model.lives[job.id].due[0] <= self.model.now_ms for job, _ in found)
        stored = read_world(self.real, 0)
        if is_limited:  # those without a group that it has met have joined their lane
            due = [ident for _, (due_ms, _), ident in self.model.waiting() if due_ms <= self.model.now_ms]
            self.model.set_laned([ident for ident in due if stored["lives"][ident]["content"].laned], True)
        idents = [job.id for job, _ in found]
        self.check_hand_out(worker, [job for job, _ in found], self.model.lease(idents, worker) if found else [])
        for job, grant in found:
            self.granted_us[job.token, job.id] = self.book.start(job, grant)
        self.model.token = stored["token"]  # it takes one for lanes that are due, too

    @rule(worker=workers, lost=st.integers(0, 5))
    def exchange(self, worker: str, lost: int) -> None:
        """Ask for permits and return others; sometimes the reply is lost, and the call is sent again."""
        self.callers[worker].exchange(self.book, self.limits_of, twice=lost == 0)

    @precondition(lambda self: any(self.hands.values()))
    @rule(worker=workers)
    def renew(self, worker: str) -> None:
        """Renew the permits of a worker, and then its leases; it may have lost some."""
        jobs = self.hands[worker]
        if not jobs:
            return
        self.book.limiter.call(renew=[(job.permit, PERMIT_US // 1000) for job in jobs if job.permit])
        self.model.see(self.us)
        answers = [self.model.touch(job, False) for job in jobs]
        assert self.real.touch(jobs) == answers
        if "lost" in answers:  # its permit was returned before, and is booked again
            self.book.lose(PERMIT_US + RETRY_US)

    @rule(worker=workers)
    def a_worker_dies(self, worker: str) -> None:
        self.callers[worker], self.hands[worker] = Caller(worker), []
        self.book.lose(PERMIT_US + RETRY_US)

    def settle(self, settlement: Settlement) -> None:
        super().settle(settlement)
        job = settlement.job
        if job.worker in self.callers:
            self.callers[job.worker].ended += [job.permit] if job.permit else []
        else:
            self.book.limiter.give_back([job.permit])

    @rule()
    def all_that_may_start_starts(self) -> None:
        """Let workers finish what they have begun, and take all that they get: limits forbid the rest."""
        while self.us < self.book.lossy_us:
            self.pass_time(1000)
            self.settle_expired(False, 0)
        for _ in range(2):  # the end of a block is a whole ms
            self.pass_time(2)
            self.settle_expired(False, 0)
            self.work_until_nothing_moves()
        for _, due, ident in self.model.waiting():
            if due[0] <= self.us / 1000 - 10:
                assert any(self.book.forbids(name, len(self.leases(name))) for name in self.names(ident)), (
                    f"{ident} waits, and no limit forbids it"
                )

    def work_until_nothing_moves(self) -> None:
        idle = 0
        while idle < 3:
            before = len(self.holders)
            for worker in WORKERS:
                self.reserve_by(worker, 3)
                self.callers[worker].exchange(self.book, self.limits_of)
            idle = idle + 1 if len(self.holders) == before else 0

    # -- after every move --------------------------------------------------------------------------------------------

    def leases(self, name: str) -> list[int]:
        """Return when the starts of the jobs with this limit were granted whose leases have not ended, µs."""
        held = {
            ident: live.lease for ident, live in self.model.lives.items() if live.lease and name in self.names(ident)
        }
        return [
            self.granted_us[lease.token, ident]
            for ident, lease in held.items()
            if lease.deadline_ms > self.us // 1000 and lease.worker != "heir"
        ]

    @invariant()
    def no_limit_has_more_leases_than_it_allows(self) -> None:
        for name in self.book.history:
            self.book.check_leases(name, self.leases(name))

    def teardown(self) -> None:
        self.all_that_may_start_starts()
        super().teardown()


def test_workers_that_interleave_never_share_an_id_nor_lose_or_reorder_its_payloads(connection: Connection) -> None:
    broker = Broker(connection, prefix="interleaved", lease_ms=LEASE_MS, test_clock=True)
    run_machine(type("InterleavingsHere", (Interleavings,), {"broker": broker}), 200)


def test_interleaved_workers_keep_all_that_and_their_limits_and_nothing_waits_for_nothing() -> None:
    run_machine(LimitedInterleavings, 30)
