"""The real queue and the model of it, side by side, through random lives of three ids in two shards.

After every step the answer, and the whole world read back from Redis, are those of the model, and the invariants hold.
``DELAYQ_MODEL_EXAMPLES=5000`` makes a long campaign with new lives every time; without it the run is short and always
the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from django_delayq.core import fsck
from django_delayq.core.broker import Broker
from django_delayq.core.connection import Connection
from django_delayq.core.frames import unpack_batch
from django_delayq.core.job import Job, NewJob, Payload, Settlement, ack, bury, fail, new_key, release
from django_delayq.core.queue import Batch

from .model import ModelShard
from .world import read_world

IDS = ("a", "b", "d")  # a and b share shard 1, d has shard 0
SHARDS = 2
LEASE_MS = 15_000
WINDOW_MS = 120_000
START_US = 1_700_000_000_000_000
EXAMPLES = os.environ.get("DELAYQ_MODEL_EXAMPLES")

ids = st.sampled_from(IDS)
ago = st.integers(0, 7).map(lambda n: n // 2)  # mostly the youngest
delays = st.sampled_from([0, 0, 0, 1, 1000, 20_000])


@st.composite
def new_jobs(draw: Any) -> NewJob:
    """An id is mostly of one kind (a plain, b merged); now and then it meets the other kind or another task."""
    ident = draw(ids)
    odd = draw(st.integers(0, 11))
    merged = (ident == "b" or (ident == "d" and draw(st.booleans()))) != (odd == 0)
    task = "other" if odd == 1 else "sync" if ident == "b" or (ident == "d" and merged) else "work"
    score = draw(st.sampled_from(["-1.5", "0", "1", "2", "1e3"]))
    payload = Payload(draw(st.sampled_from([b"p", b"q", b"r"])), score, new_key()) if merged else None
    absolute = draw(st.booleans())
    return NewJob(
        ident, task, b"args-%d" % draw(st.integers(0, 9)),
        due_ms=START_US // 1000 + draw(st.integers(-5, 30_000)) if absolute else None,
        delay_ms=None if absolute else draw(delays),
        priority=draw(st.sampled_from([4, 4, 4, 0, 7])),
        options=draw(st.sampled_from([b"", b'{"timeout":3}'])),
        key=new_key(),
        on_conflict=draw(st.sampled_from(["merge", "merge", "replace", "replace", "ignore", "error"])),
        due_policy=draw(st.sampled_from(["keep", "replace", "earliest", "latest"])),
        score_policy=draw(st.sampled_from(["min", "max", "first", "last"])),
        reset_retries=draw(st.booleans()),
        payload=payload,
    )  # fmt: skip


@dataclass
class Call:
    """A call as it was sent, for sending it again."""

    script: str
    number: int
    args: tuple[object, ...]
    request: bytes
    reply: Any
    sent_ms: int
    token: int | None = None
    worker: str = ""


class Lives(RuleBasedStateMachine):
    """``self.real`` and ``self.model`` are told the same."""

    connection: Connection

    def __init__(self) -> None:
        super().__init__()
        self.connection.client.flushdb()
        self.broker = Broker(self.connection, prefix="model", lease_ms=LEASE_MS, test_clock=True)
        self.real = self.broker.queue("q", shards=SHARDS)
        self.model = [ModelShard("q", number, LEASE_MS) for number in range(SHARDS)]
        self.us = START_US
        self.handed: list[Job] = []
        self.calls: list[Call] = []
        self.keys: list[bytes] = [b"", b"no such key here"]
        self._send, self.real._call = self.real._call, self._remembering  # type: ignore[method-assign]
        self.set_clock()

    # -- the clock and the calls -------------------------------------------------------------------------------------

    def set_clock(self) -> None:
        for number in range(SHARDS):
            self.broker.client.hset(self.real.shard(number).names["meta"], "test_clock", self.us)

    def _remembering(self, script: str, number: int, *args: object, request: bytes | None = None) -> Any:
        request = request or os.urandom(16)
        reply = self._send(script, number, *args, request=request)
        if script != "leases":
            self.calls.append(Call(script, number, args, request, reply, self.model[number].now_us // 1000))
        return reply

    def shard(self, ident: str, *, keep: bool = True) -> ModelShard:
        shard = self.model[self.real.shard_of(ident)]
        shard.see(self.us, keep=keep)
        return shard

    def past(self, ago: int) -> Job | None:
        """One of the jobs handed out lately; its token may be long dead."""
        return self.handed[-1 - ago] if ago < len(self.handed) else None

    def check_batch(self, shard: ModelShard, batch: Batch, expected: list[Job]) -> None:
        def by_id(jobs: list[Job]) -> list[Job]:
            return sorted(jobs, key=lambda job: job.id)

        assert not batch.broken
        assert by_id(batch.jobs) == by_id(expected)
        due = shard.next_due_ms()
        assert batch.next_due_ms == (None if due is None else max(0.0, due - shard.now_us / 1000))
        assert batch.now_ms == shard.now_us / 1000
        self.handed.extend(batch.jobs)

    # -- schedule ----------------------------------------------------------------------------------------------------

    @rule(new=new_jobs())
    def schedule(self, new: NewJob) -> None:
        # One by one through the bulk door, which answers "taken" and "exists" instead of raising.
        new = replace(new, key=new_key())
        expected = self.shard(new.id).schedule([new])
        assert self.real.schedule_many([new]) == expected

    @rule(news=st.lists(new_jobs(), min_size=2, max_size=4))
    def schedule_many(self, news: list[NewJob]) -> None:
        expected = [""] * len(news)
        for shard in self.model:
            places = [place for place, new in enumerate(news) if self.real.shard_of(new.id) == shard.number]
            if places:
                shard.see(self.us)
                for place, outcome in zip(places, shard.schedule([news[place] for place in places]), strict=True):
                    expected[place] = outcome
        assert self.real.schedule_many(news) == expected

    # -- reserve and settle ------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, SHARDS - 1), limit=st.sampled_from([3, 3, 1, 0]), worker=st.sampled_from(["w1", "w2"]))
    def reserve(self, number: int, limit: int, worker: str) -> None:
        shard = self.model[number]
        shard.see(self.us)
        expected, token = shard.reserve(limit, worker)
        self.check_batch(shard, self.real.reserve(number, limit, worker=worker), expected)
        self.calls[-1].token, self.calls[-1].worker = token, worker

    @rule(which=st.lists(ago, max_size=3), limit=st.integers(0, 2))
    def ack_and_reserve(self, which: list[int], limit: int) -> None:
        acks = [ack(job, 1, 2) for ago in which if (job := self.past(ago))]
        number = acks[0].job.shard if acks else 0
        acks = [settlement for settlement in acks if settlement.job.shard == number]
        shard = self.model[number]
        shard.see(self.us)
        answers = shard.settle(list(acks))
        expected, token = shard.reserve(limit, "w3")
        counted, batch = self.real.settle_reserve(number, acks, limit, worker="w3")
        assert counted == answers
        self.check_batch(shard, batch, expected)
        self.calls[-1].token, self.calls[-1].worker = token, "w3"

    def settle(self, settlement: Settlement) -> None:
        expected = self.shard(settlement.job.id).settle([settlement])
        assert self.real.settle([settlement]) == expected

    @rule(ago=ago)
    def ack(self, ago: int) -> None:
        if job := self.past(ago):
            self.settle(ack(job, 1, 2))

    @rule(ago=ago, delay=delays, outcome=st.sampled_from(["failed", "failed", "timeout", "crashed"]))
    def fail(self, ago: int, delay: int, outcome: str) -> None:
        if job := self.past(ago):
            self.settle(fail(job, 1, 2, delay_ms=delay, outcome=outcome, error_class="E", error=b"%d" % job.token))

    @rule(ago=ago, delay=st.none() | delays, suspect=st.booleans())
    def release(self, ago: int, delay: int | None, suspect: bool) -> None:
        if job := self.past(ago):
            self.settle(release(job, delay_ms=delay, suspect=suspect))

    @rule(ago=ago, outcome=st.sampled_from(["buried", "exhausted", "poison", "undecodable"]))
    def bury(self, ago: int, outcome: str) -> None:
        if job := self.past(ago):
            self.settle(bury(job, 1, 2, reason="why", outcome=outcome, error_class="E", error=b"dead"))
            self.keys.append(job.key)

    @rule(which=st.lists(ago, min_size=1, max_size=3), started=st.booleans())
    def touch(self, which: list[int], started: bool) -> None:
        jobs = [job for ago in which if (job := self.past(ago))]
        expected = [self.shard(job.id).touch(job, started) for job in jobs]
        assert self.real.touch(jobs, {(job.id, job.token) for job in jobs if started}) == expected

    # -- the reaper --------------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, SHARDS - 1), verb=st.sampled_from(["release", "fail", "bury"]))
    def reap(self, number: int, verb: str) -> None:
        shard = self.model[number]
        shard.see(self.us, keep=False)
        found = self.real.expired(number)
        assert [job.id for job in found] == shard.expired()
        for job in found:
            if verb == "release":
                self.settle(release(job, suspect=True, guard="expired"))
            elif verb == "fail":
                self.settle(fail(job, 1, 2, delay_ms=0, outcome="crashed", guard="expired"))
            else:
                self.settle(bury(job, 1, 2, reason="poison", outcome="poison", guard="expired"))
                self.keys.append(job.key)

    @rule(ago=ago)
    def reap_too_soon(self, ago: int) -> None:
        """A reaper that looked long ago: only a lease that is over by now is taken."""
        if job := self.past(ago):
            self.settle(release(job, suspect=True, guard="expired"))

    @rule(number=st.integers(0, SHARDS - 1), hold=st.integers(0, 4).map(lambda n: n == 0))
    def tick(self, number: int, hold: bool) -> None:
        shard = self.model[number]
        shard.see(self.us)
        expected = shard.tick(hold)
        tick = self.real.tick(number, hold=hold)
        assert (tick.now_ms, tick.next_due_ms, tick.next_deadline_ms, tick.expired, tick.held_back) == expected

    # -- callers and operators ---------------------------------------------------------------------------------------

    @rule(ident=ids, task=st.sampled_from(["", "", "work", "sync"]))
    def cancel(self, ident: str, task: str) -> None:
        expected = self.shard(ident).cancel(ident, task)
        assert self.asked("cancel", ident, task) == expected

    @rule(ident=ids, task=st.sampled_from(["", "", "work"]), due=st.none() | st.integers(0, 30_000), delay=delays)
    def reschedule(self, ident: str, task: str, due: int | None, delay: int) -> None:
        due_ms, delay_ms = (None, delay) if due is None else (START_US // 1000 + due, None)
        expected = self.shard(ident).reschedule(ident, task, due_ms, delay_ms)
        ms, relative = (delay_ms, b"1") if due_ms is None else (due_ms, b"0")
        assert self.asked("reschedule", ident, task, ms, relative) == expected

    @rule(ident=ids, delay=delays, replacing=st.booleans(), which=st.integers(0, 5))
    def kick(self, ident: str, delay: int, replacing: bool, which: int) -> None:
        key = self.keys[-which] if 0 < which <= len(self.keys) else b""
        expected = self.shard(ident).kick(ident, key, delay, replacing)
        assert self.real.kick(ident, key=key, delay_ms=delay, replace=replacing) == expected

    @rule(ident=ids, which=st.integers(0, 5))
    def discard(self, ident: str, which: int) -> None:
        key = self.keys[-which] if 0 < which <= len(self.keys) else b""
        expected = self.shard(ident).discard(ident, key)
        assert self.real.discard(ident, key=key) == (expected == "1")

    def asked(self, verb: str, ident: str, task: str, *args: object) -> str:
        number = self.real.shard_of(ident)
        reply: bytes = self.real._call(verb, number, ident.encode(), task.encode(), *args)
        return reply.decode()

    # -- trouble -----------------------------------------------------------------------------------------------------

    @rule(ago=st.integers(0, 30))
    def send_again(self, ago: int) -> None:
        """The reply was lost: the same bytes come once more, and change nothing."""
        self.calls = [call for call in self.calls if self.us // 1000 - call.sent_ms < WINDOW_MS - LEASE_MS]
        if ago >= len(self.calls) or self.calls[-1 - ago].script == "tick":
            return
        call = self.calls[-1 - ago]
        shard = self.model[call.number]
        shard.see(self.us, keep=False)
        reply = self._send(call.script, call.number, *call.args, request=call.request)
        if call.token is None:
            assert reply == call.reply
            return
        if call.script == "ack_reserve":
            assert reply[0] == call.reply[0]
        frame = reply[1] if call.script == "ack_reserve" else reply
        jobs, broken, now_us, _ = unpack_batch(frame, "q", call.number, call.worker)
        expected = shard.handed_out(call.token, call.worker) if call.token else []
        assert sorted(jobs, key=lambda job: job.id) == sorted(expected, key=lambda job: job.id)
        assert not broken
        assert now_us == shard.now_us

    @rule(ms=st.sampled_from([1, 1, 2, 1000, 1001, 5000, 15_000, 20_000]), us=st.sampled_from([0, 1, 999]))
    def time_goes_on(self, ms: int, us: int) -> None:
        self.us += ms * 1000 + us
        self.set_clock()

    @rule(ms=st.sampled_from([1, 2, 5, 500, 14_000, 16_000]))
    def clock_steps_back(self, ms: int) -> None:
        self.us -= ms * 1000
        self.set_clock()

    @rule()
    def scripts_are_flushed(self) -> None:
        self.broker.client.script_flush()

    @rule(ident=ids)
    def look(self, ident: str) -> None:
        """Looking finds what there is; that it changes nothing shows in the comparison that follows."""
        inspector = self.broker.inspector
        lives = {i: live for shard in self.model for i, live in shard.lives.items()}
        counts = inspector.counts("q")
        assert counts.reserved == sum(1 for live in lives.values() if live.lease)
        assert counts.ready + counts.delayed + counts.reserved == len(lives)
        assert counts.gated == sum(1 for live in lives.values() if live.gate)
        assert counts.failed == sum(1 for live in lives.values() if live.failures)
        assert counts.morgue == sum(len(shard.graves) for shard in self.model)
        view = inspector.get("q", ident)
        live = lives.get(ident)
        if live is None:
            assert (view is None) == (self.shard(ident, keep=False).grave_of(ident, b"") is None)
        else:
            assert view is not None
            assert (view.state == "reserved") == (live.lease is not None)
            assert (view.job.key, view.due_ms, view.payload_count) == (
                live.content.key, int(live.due[0]), len(live.waiting) + len(live.running))  # fmt: skip
        assert sorted(view.id for view in inspector.page("q", "failed").jobs) == sorted(
            i for i, live in lives.items() if live.failures)  # fmt: skip

    # -- after every step --------------------------------------------------------------------------------------------

    @invariant()
    def the_whole_world_is_that_of_the_model(self) -> None:
        for shard in self.model:
            assert read_world(self.real, shard.number) == shard.world()

    @invariant()
    def the_invariants_hold(self) -> None:
        fsck.assert_invariants(self.broker)


def test_random_lives_of_three_ids_are_those_of_the_model(connection: Connection) -> None:
    machine = type("LivesHere", (Lives,), {"connection": connection})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(EXAMPLES or 60),
            stateful_step_count=50,
            deadline=None,
            derandomize=EXAMPLES is None,
            database=None,
            print_blob=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
