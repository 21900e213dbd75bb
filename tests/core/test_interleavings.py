"""Four workers and three merged ids in any order of calls: independent checks of the guarantees for one id.

A ledger kept beside the queue knows which payloads were accepted and not yet done. Whenever an id is handed out, it is
handed out to one holder only, with all of them, in the order of their scores. The world is that of the model besides.
``DELAYQ_MODEL_EXAMPLES=5000`` makes a long campaign, as it does for ``test_model.py``.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from django_delayq.core import Broker, Connection, Job, NewJob, Payload, Settlement, ack, bury, fail, release
from tests.support.core_stored import assert_invariants, set_clock

from . import model_operators as operators
from .epochs_stage import forget_queues
from .model import ModelShard
from .world import read_world

IDS = ("a", "b", "c")
WORKERS = ("w1", "w2", "w3", "w4")
LEASE_MS = 15_000
START_US = 1_700_000_000_000_000
EXAMPLES = os.environ.get("DELAYQ_MODEL_EXAMPLES")

ids, workers = st.sampled_from(IDS), st.sampled_from(WORKERS)
delays = st.sampled_from([0, 0, 0, 1000, 20_000])
scores = st.sampled_from(["-2.5", "0", "1", "2", "10", "1e3"])
jobs_at_hand = st.integers(0, 5)

Place = tuple[float, int]


class Interleavings(RuleBasedStateMachine):
    """State machine that calls ``real`` and ``model`` alike; ``open`` and ``buried`` are the ledger."""

    broker: Broker

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
        self.model.see(self.us)
        expected, _ = self.model.reserve(limit, worker)
        jobs = self.real.reserve(0, limit, worker=worker).jobs
        assert sorted(jobs, key=lambda job: job.id) == sorted(expected, key=lambda job: job.id)
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
        self.model.see(self.us, keep=False)
        found = self.real.expired(0)
        assert [job.id for job in found] == self.model.expired()
        self.model.see(self.us)
        taken = self.real.take_over(found, "heir")
        assert taken == self.model.take_over(found, "heir")
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


def test_workers_that_interleave_never_share_an_id_nor_lose_or_reorder_its_payloads(connection: Connection) -> None:
    broker = Broker(connection, prefix="interleaved", lease_ms=LEASE_MS, test_clock=True)
    run_state_machine_as_test(
        type("InterleavingsHere", (Interleavings,), {"broker": broker}),
        settings=settings(
            max_examples=int(EXAMPLES or 200),
            stateful_step_count=40,
            deadline=None,
            derandomize=EXAMPLES is None,
            database=None,
            print_blob=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
