"""Comparison of the real queue with its model in random histories of three ids in two shards.

After every step the answer, and the whole world read back from Redis, are those of the model, and the invariants hold.
``DELAYQ_MODEL_EXAMPLES=5000`` makes a long campaign with new lives every time; without it the run is short and always
the same.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from django_delayq.core.broker import Broker
from django_delayq.core.errors import IdTaken, QueueFull
from django_delayq.core.job import DURABLE, Job, NewJob, Payload, Settlement, ack, bury, fail, is_durable, release
from django_delayq.core.operations import actions, fsck
from django_delayq.core.records.reserve_frames import unpack_batch
from django_delayq.core.records.schedule_frames import digest
from django_delayq.core.redis.connection import Connection
from django_delayq.core.settled import Mark
from django_delayq.core.shards import Batch, Which

from .model import Live, ModelShard
from .world import read_world

IDS = ("a", "b", "d")  # a and b share shard 1, d has shard 0
SHARDS = 2
LEASE_MS = 15_000
WINDOW_MS = 120_000
START_US = 1_700_000_000_000_000
EXAMPLES = os.environ.get("DELAYQ_MODEL_EXAMPLES")

Past = tuple[str, int]
Ending = Callable[[Job], Settlement]

ids = st.sampled_from(IDS)
#: which of the jobs handed out so far: still held, or known to a holder that lost it to another, or any
pasts = st.tuples(st.sampled_from(["held", "held", "lost", "any"]), st.integers(0, 3))
delays = st.sampled_from([0, 0, 0, 1, 1000, 20_000])
served: st.SearchStrategy[Which] = st.sampled_from(["all", "all", "others", "quarantined"])


@st.composite
def new_jobs(draw: Any) -> NewJob:
    """Draw a job; an id mostly has one kind (a plain, b merged, d both), sometimes the other kind or another task."""
    ident = draw(ids)
    odd = draw(st.integers(0, 11))
    merged = (ident == "b" or (ident == "d" and draw(st.booleans()))) != (odd == 0)
    task = "other" if odd == 1 else {"a": "work", "b": "sync", "d": "both"}[ident]
    score = draw(st.sampled_from(["-1.5", "0", "1", "2", "1e3", ""]))
    payload = Payload(draw(st.sampled_from([b"p", b"q", b"r", b"s"])), score, b"") if merged else None
    absolute = draw(st.integers(0, 3)) == 0
    return NewJob(
        ident,
        task,
        b"args-%d" % draw(st.integers(0, 9)),
        due_ms=START_US // 1000 + draw(st.sampled_from([-5, 0, 1, 2000, 30_000])) if absolute else None,
        delay_ms=None if absolute else draw(delays),
        priority=draw(st.sampled_from([4, 4, 4, 0, 7])),
        options=draw(st.sampled_from([b"", b'{"timeout":3}'])),
        on_conflict=draw(st.sampled_from(["replace", "replace", "ignore", "error"] + ["merge"] * (4 if merged else 0))),
        due_policy=draw(st.sampled_from(["keep", "replace", "earliest", "latest", "inherit"])),
        score_policy=draw(st.sampled_from(["min", "max", "first", "last"])),
        payloads=draw(st.sampled_from(["all", "last", "first"])),
        max_payloads=draw(st.sampled_from([1, 2, 3, 10_000, 10_000])),
        reset_retries=draw(st.booleans()),
        payload=payload,
        key=draw(st.sampled_from([b"", DURABLE])),
    )


@st.composite
def endings(draw: Any, guard: str = "token") -> Ending:
    """Return a function that makes a settlement of a job: one of the verbs with its arguments."""
    verb = draw(st.sampled_from(["ack", "fail", "fail", "release", "bury", "bury", "expire", "record"]))
    delay = draw(delays)
    of_merged: dict[str, Any] = {
        "inherit": draw(st.booleans()),
        "oldest": draw(st.booleans()),
        "score_policy": draw(st.sampled_from(["min", "max", "first", "last"])),
    }
    if verb == "ack" and guard == "token":
        return lambda job: ack(job, 1, 2)
    if verb == "fail":
        outcome = draw(st.sampled_from(["failed", "timeout", "crashed"]))
        quarantine, own = draw(st.booleans()), draw(st.booleans())
        return lambda job: replace(
            fail(
                job,
                1,
                2,
                delay_ms=delay,
                outcome=outcome,
                error_class="E",
                error=b"%d" % job.token,
                guard=guard,
                quarantine=quarantine,
                own_crash=own,
            ),
            **of_merged,
        )
    if verb == "bury":
        outcome = draw(st.sampled_from(["buried", "exhausted", "poison", "undecodable"]))
        return lambda job: replace(
            bury(job, 1, 2, reason="why", outcome=outcome, error_class="E", error=b"dead", guard=guard), **of_merged
        )
    if verb in ("expire", "record"):
        return lambda job: Settlement(job, verb, 1, 2, outcome="late", guard=guard)
    unclear, old_place, began = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    quarantine, postponed = draw(st.sampled_from([None, True, False])), draw(st.sampled_from(["", "", "x", "y"]))
    return lambda job: replace(
        release(
            job,
            delay_ms=None if old_place else delay,
            unclear=unclear,
            guard=guard,
            quarantine=quarantine,
            reason=postponed,
            postpone=bool(postponed),
            began=began,
        ),
        **of_merged,
    )


def by_id(jobs: list[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: job.id)


@dataclass
class Call:
    """Recorded call, to be sent again."""

    script: str
    keys: tuple[bytes, ...]
    args: tuple[Any, ...]
    number: int
    reply: Any
    sent_ms: int
    token: int | None = None
    worker: str = ""


ACTS: dict[str, tuple[Callable[[Any], object], st.SearchStrategy[dict[str, Any]]]] = {}
#: how often each act is chosen; one rule that chooses, because of many rules hypothesis switches some off in each life
WEIGHTS = {
    "schedule": 4,
    "schedule_what_lives": 3,
    "schedule_many": 2,
    "reserve": 6,
    "settle_what_is_held": 5,
    "settle": 2,
    "ack_and_reserve": 2,
    "reap": 3,
    "send_again": 3,
    "kick": 2,
    "cancel": 2,
    "the_clock_moves": 2,
}


def act(possible: Callable[[Any], object], **arguments: st.SearchStrategy[Any]) -> Callable[[Any], Any]:
    """Register a method as an act of the machine, chosen when ``possible``, with drawn arguments."""

    def registered(method: Any) -> Any:
        ACTS[method.__name__] = possible, st.fixed_dictionaries(arguments)
        return method

    return registered


def anytime(_: Any) -> bool:
    return True


@st.composite
def acts(draw: Any) -> tuple[str, dict[str, Any]]:
    name = draw(st.sampled_from([name for name in ACTS for _ in range(WEIGHTS.get(name, 1))]))
    return name, draw(ACTS[name][1])


class Lives(RuleBasedStateMachine):
    """State machine that calls ``self.real`` and ``self.model`` alike."""

    broker: Broker

    def __init__(self) -> None:
        super().__init__()
        self.broker.client.flushdb()
        self.broker._queues.clear()
        self.real = self.broker.queue("q", shards=SHARDS)
        self.model = [ModelShard("q", number, LEASE_MS) for number in range(SHARDS)]
        self.us = START_US
        self.steps = 0
        self.numbers = itertools.count(1)
        self.handed: list[Job] = []
        self.calls: list[Call] = []
        self.sent: list[NewJob] = []
        self.told: list[Mark] = []
        scripts = self.broker.scripts
        self._send = type(scripts).call.__get__(scripts)
        self._begin = type(scripts).begin.__get__(scripts)
        scripts.call = self._remembering_call  # type: ignore[method-assign]
        scripts.begin = self._remembering_begin  # type: ignore[method-assign]
        self.set_clock()

    # -- the clock and the calls -------------------------------------------------------------------------------------

    def fresh(self) -> bytes:
        """Return a generation key; it is not random, so that a history can be repeated."""
        return self.asked_for(b"")

    def asked_for(self, durable: bytes) -> bytes:
        """Return a generation key, durable if ``durable`` is a durable key."""
        return (next(self.numbers) | is_durable(durable) << 127).to_bytes(16, "big")

    def set_clock(self) -> None:
        for number in range(SHARDS):
            self.broker.client.hset(self.real.shard(number).names["meta"], "test_clock", self.us)

    def _remembering_call(self, script: str, keys: tuple[bytes, ...], *args: Any) -> Any:
        reply = self._send(script, keys, *args)
        self._remember(script, keys, args, reply)
        return reply

    def _remembering_begin(self, script: str, keys: tuple[bytes, ...], *args: Any) -> Any:
        finish = self._begin(script, keys, *args)

        def remembered() -> Any:
            reply = finish()
            self._remember(script, keys, args, reply)
            return reply

        return remembered

    def _remember(self, script: str, keys: tuple[bytes, ...], args: tuple[Any, ...], reply: Any) -> None:
        if script == "schedule" and not reply.strip(b"klfp"):
            return  # nothing was changed: not remembered, and perhaps another answer later
        if args[0] and script not in ("leases", "tick", "layout") and reply is not None:
            number = int(keys[0].split(b"}")[0].split(b".")[-1])
            self.calls.append(Call(script, keys, args, number, reply, self.model[number].now_ms))

    def shard(self, ident: str, *, keep: bool = True) -> ModelShard:
        shard = self.model[self.real.shard_of(ident)]
        shard.see(self.us, keep=keep)
        return shard

    def past(self, which: Past) -> Job:
        """Return one of the jobs reserved so far; its token may have expired long ago."""
        held, lost = [], []
        for job in reversed(self.handed):
            live = self.model[job.shard].lives.get(job.id)
            if live and live.lease:
                (held if live.lease.token == job.token else lost).append(job)
        found = {"held": held, "lost": lost, "any": []}[which[0]] or self.handed[::-1]
        return found[which[1] % len(found)]

    def lives(self) -> dict[str, Live]:
        return {ident: live for shard in self.model for ident, live in shard.lives.items()}

    def waiting(self) -> list[ModelShard]:
        return [shard for shard in self.model if shard.waiting()]

    def deadlines(self) -> list[tuple[int, ModelShard]]:
        return [(live.lease.deadline_ms, shard) for shard in self.model for live in shard.lives.values() if live.lease]

    def graves(self) -> list[tuple[str, bytes]]:
        return [name for shard in self.model for name in shard.graves]

    def grave(self, which: int, named: bool, onto_live: bool = False) -> tuple[str, bytes]:
        lives = self.lives()
        graves = [name for name in self.graves() if onto_live and name[0] in lives] or self.graves()
        idents = [ident for ident, _ in graves]
        if not named and len(set(idents)) < len(idents):  # which of several is meant?
            return max(idents, key=idents.count), b""
        ident, key = graves[which % len(graves)]
        return ident, key if named else b""

    def wait_until(self, ms: float | None) -> None:
        if ms is not None and ms * 1000 > self.us:
            self.us = int(ms) * 1000
            self.set_clock()

    def check_batch(self, shard: ModelShard, batch: Batch, expected: list[Job], which: Which) -> None:
        assert not batch.broken
        assert by_id(batch.jobs) == by_id(expected)
        due = shard.next_due_ms(which)
        assert batch.next_due_ms == (None if due is None else max(0.0, due - shard.now_us / 1000))
        quarantined = shard.next_due_ms("quarantined") if which == "others" else None
        assert batch.quarantine_due_ms == (None if quarantined is None else quarantined - shard.now_us / 1000)
        assert batch.now_ms == shard.now_us / 1000
        self.handed.extend(batch.jobs)

    @rule(what=acts())
    def step(self, what: tuple[str, dict[str, Any]]) -> None:
        name, arguments = what
        if ACTS[name][0](self):
            getattr(self, name)(**arguments)

    # -- schedule ----------------------------------------------------------------------------------------------------

    def keyed(self, new: NewJob) -> NewJob:
        if new.payload:
            new.payload.key = self.asked_for(new.key)
            new.key = self.fresh()
        else:
            new.key = self.asked_for(new.key)
        if new.durable:
            self.sent.append(replace(new, payload=new.payload and replace(new.payload)))
        return new

    @act(anytime, new=new_jobs(), fresh=st.booleans(), late=st.integers(0, 11).map(lambda n: n == 0))
    def schedule(self, new: NewJob, fresh: bool, late: bool) -> None:
        self.send(self.keyed(new), fresh, late)

    @act(lambda self: self.sent, which=st.integers(0, 5), late=st.booleans())
    def send_a_durable_job_once_more(self, which: int, late: bool) -> None:
        """Send it from another sender that does not know that it was sent."""
        new = self.sent[-1 - which % len(self.sent)]
        self.send(replace(new, payload=new.payload and replace(new.payload)), False, late)

    def send(self, new: NewJob, fresh: bool, late: bool) -> None:
        clock_us = self.model[self.real.shard_of(new.id)].clock_us
        shard = self.shard(new.id)
        # It may be said only when nothing lives under the id. The short script takes the time as it comes, and does
        # not remember it.
        new.fresh = fresh and new.id not in shard.lives and shard.now_us == self.us
        expected = shard.schedule([new], late=late)[0]
        deadline = shard.now_ms - late if late or new.durable else None
        if expected in ("taken", "exists"):
            with pytest.raises(IdTaken, match="already lives" if expected == "exists" else "another task"):
                self.real.schedule(new, not_after_ms=deadline)
        elif expected == "full":
            with pytest.raises(QueueFull, match="max_payloads"):
                self.real.schedule(new, not_after_ms=deadline)
        else:
            assert self.real.schedule(new, not_after_ms=deadline) == expected
            if self.calls and self.calls[-1].script == "schedule_fresh":
                shard.clock_us = clock_us

    @act(lambda self: self.lives(), new=new_jobs(), which=st.integers(0, 2))
    def schedule_what_lives(self, new: NewJob, which: int) -> None:
        """Schedule a job under a live id, preferably one that failed."""
        lives = self.lives()
        idents = [ident for ident, live in lives.items() if live.failures] or list(lives)
        new.id = idents[which % len(idents)]
        content = lives[new.id].content
        new.task = content.task
        new.payload = (new.payload or Payload(b"p", "0", b"")) if content.merged else None
        if new.payload is None and new.on_conflict == "merge":
            new.on_conflict = "replace"
        self.schedule(new, fresh=False, late=False)

    @act(anytime, news=st.lists(new_jobs(), min_size=1, max_size=3))
    def schedule_many(self, news: list[NewJob]) -> None:
        for new in news:
            self.keyed(new)
        expected = [""] * len(news)
        for shard in self.model:
            places = [place for place, new in enumerate(news) if self.real.shard_of(new.id) == shard.number]
            if places:
                shard.see(self.us)
                for place, outcome in zip(places, shard.schedule([news[place] for place in places]), strict=True):
                    expected[place] = outcome
        assert self.real.schedule_many(news) == expected

    # -- reserve and settle ------------------------------------------------------------------------------------------

    @act(
        lambda self: self.waiting(),
        which=st.integers(0, 1),
        limit=st.sampled_from([3, 3, 3, 1, 0]),
        worker=st.sampled_from(["w1", "w2"]),
        patient=st.integers(0, 3),
        served=served,
    )
    def reserve(self, which: int, limit: int, worker: str, patient: int, served: Which) -> None:
        shards = self.waiting()
        shard = shards[which % len(shards)]
        if patient:  # wait until something is due
            self.wait_until(shard.next_due_ms(served))
        shard.see(self.us)
        expected, token = shard.reserve(limit, worker, served)
        batch = self.real.reserve(shard.number, limit, worker=worker, which=served)
        self.check_batch(shard, batch, expected, served)
        self.calls[-1].token, self.calls[-1].worker = token, worker

    @act(
        lambda self: self.handed, which=st.lists(pasts, min_size=1, max_size=3), limit=st.integers(0, 2), served=served
    )
    def ack_and_reserve(self, which: list[Past], limit: int, served: Which) -> None:
        jobs = [self.past(past) for past in which]
        shard = self.model[jobs[0].shard]
        acks = [ack(job, 1, 2) for job in jobs if job.shard == shard.number]
        shard.see(self.us)
        answers = shard.settle(list(acks))
        expected, token = shard.reserve(limit, "w3", served)
        counted, batch = self.real.settle_reserve(shard.number, acks, limit, worker="w3", which=served)
        assert counted == answers
        self.check_batch(shard, batch, expected, served)
        self.calls[-1].token, self.calls[-1].worker = token, "w3"

    @act(lambda self: self.handed, past=pasts, ending=endings())
    def settle(self, past: Past, ending: Ending) -> None:
        self.end(ending(self.past(past)))

    @act(lambda self: self.handed, past=st.tuples(st.just("held"), st.integers(0, 3)), ending=endings())
    def settle_what_is_held(self, past: Past, ending: Ending) -> None:
        self.end(ending(self.past(past)))

    def end(self, settlement: Settlement) -> None:
        expected = self.shard(settlement.job.id).settle([settlement])
        assert self.real.settle([settlement]) == expected

    @act(lambda self: self.handed, which=st.lists(pasts, min_size=1, max_size=3), started=st.booleans())
    def touch(self, which: list[Past], started: bool) -> None:
        jobs = [self.past(past) for past in which]
        expected = [self.shard(job.id).touch(job, started) for job in jobs]
        assert self.real.touch(jobs, {(job.id, job.token) for job in jobs if started}) == expected

    # -- the dispatcher ----------------------------------------------------------------------------------------------

    @act(
        lambda self: self.deadlines(),
        which=st.integers(0, 1),
        late=st.sampled_from([None, -1, 0, 0, 0]),
        hold=st.integers(0, 3).map(lambda n: n == 0),
        ending=endings(guard="expired"),
    )
    def reap(self, which: int, late: int | None, hold: bool, ending: Ending) -> None:
        deadlines = self.deadlines()
        deadline, shard = deadlines[which % len(deadlines)]
        if late is not None:
            self.wait_until(deadline + late)
        shard.see(self.us, keep=False)
        found = self.real.expired(shard.number)
        assert [job.id for job in found] == shard.expired()
        if hold:  # another dispatcher sees an outage between the look and the deed
            self.tick(shard.number, hold=True, check=False)
            assert self.real.expired(shard.number) == []
        for job in found:
            self.end(ending(job))

    @act(lambda self: self.handed, past=pasts, ending=endings(guard="expired"))
    def reap_what_was_looked_at_long_ago(self, past: Past, ending: Ending) -> None:
        self.end(ending(self.past(past)))

    @act(anytime, number=st.integers(0, SHARDS - 1), hold=st.booleans(), check=st.booleans())
    def tick(self, number: int, hold: bool, check: bool) -> None:
        shard = self.model[number]
        shard.see(self.us)
        expected = shard.tick(hold)
        tick = self.real.tick(number, hold=hold)
        assert (tick.now_ms, tick.next_due_ms, tick.next_deadline_ms, tick.expired, tick.held_back) == expected
        if check:
            self.look()

    @act(anytime, number=st.integers(0, SHARDS - 1), limit=st.sampled_from([250, 250, 1]), old=st.integers(0, 5))
    def take_marks(self, number: int, limit: int, old: int) -> None:
        """Confirm half of the completions, and sometimes one that has changed since."""
        shard = self.model[number]
        told = self.real.settled(number, limit=limit)
        assert len(told) == min(limit, len(shard.marks))
        assert {mark.key: mark.end for mark in told}.items() <= shard.marks.items()
        noted = [*told[::2], *self.told[-1 - old : len(self.told) - old]]
        self.told += told
        present = {mark.key: mark for mark in self.real.settled(number)}
        rest = self.real.settled(number, noted)
        for mark in noted:
            if present.get(mark.key) == mark:
                shard.forget(mark.key, mark.end)
        assert {mark.key: mark.end for mark in rest} == shard.marks

    @act(lambda self: self.sent, digests=st.booleans())
    def ask_who_is_known(self, digests: bool) -> None:
        sent = [(new, new.payload.key if new.payload else new.key) for new in self.sent]
        pairs: list[Any] = [
            (new.id, key, digest(new.payload.data)) if digests and new.payload else (new.id, key) for new, key in sent
        ]
        assert self.real.knows(pairs) == [self.model[self.real.shard_of(new.id)].knows(key) for new, key in sent]

    # -- callers and operators ---------------------------------------------------------------------------------------

    @act(lambda self: self.lives(), ident=ids, task=st.sampled_from(["", "", "", "work", "sync"]), gated=st.booleans())
    def cancel(self, ident: str, task: str, gated: bool) -> None:
        if gated:
            ident = next((name for name, live in self.lives().items() if live.gate), ident)
        expected = self.shard(ident).cancel(ident, task)
        assert self.outcome(ident, actions.cancel(task)) == expected

    @act(
        lambda self: self.lives(),
        ident=ids,
        task=st.sampled_from(["", "", "work"]),
        due=st.none() | st.sampled_from([0, 30_000]),
        delay=delays,
    )
    def reschedule(self, ident: str, task: str, due: int | None, delay: int) -> None:
        due_ms, delay_ms = (None, delay) if due is None else (START_US // 1000 + due, None)
        expected = self.shard(ident).reschedule(ident, task, due_ms, delay_ms)
        assert self.outcome(ident, actions.reschedule(task, due_ms=due_ms, delay_ms=delay_ms)) == expected

    @act(
        lambda self: self.graves(),
        grave=st.integers(0, 3),
        named=st.booleans(),
        delay=delays,
        replacing=st.booleans(),
        onto_live=st.booleans(),
    )
    def kick(self, grave: int, named: bool, delay: int, replacing: bool, onto_live: bool) -> None:
        ident, key = self.grave(grave, named, onto_live)
        expected = self.shard(ident).kick(ident, key, delay, replacing)
        assert self.real.kick(ident, key=key, delay_ms=delay, replace=replacing) == expected

    @act(lambda self: len(self.graves()) > 1, grave=st.integers(0, 3), named=st.booleans(), missing=st.booleans())
    def discard(self, grave: int, named: bool, missing: bool) -> None:
        ident, key = self.grave(grave, named)
        key = b"no such grave..." if missing else key
        expected = self.shard(ident).discard(ident, key)
        assert self.real.discard(ident, key=key) == (expected == "1")

    def outcome(self, ident: str, action: actions.Action) -> str:
        return action.anywhere(self.real, ident)

    # -- trouble -----------------------------------------------------------------------------------------------------

    @act(lambda self: self.calls, ago=st.integers(0, 200).map(lambda n: n // 10), flush=st.booleans())
    def send_again(self, ago: int, flush: bool) -> None:
        """Repeat a call whose reply was lost; the same bytes change nothing."""
        if flush:
            self.broker.client.script_flush()
        self.calls = [call for call in self.calls if self.us // 1000 - call.sent_ms < WINDOW_MS - 2 * LEASE_MS]
        if not self.calls:
            return
        call = self.calls[-1 - ago % len(self.calls)]
        shard = self.model[call.number]
        shard.see(self.us, keep=False)
        reply = self._send(call.script, call.keys, *call.args)
        if call.token is None:
            assert reply == call.reply
            return
        if call.script == "ack_reserve":
            assert reply[0] == call.reply[0]
        frame = reply[1] if call.script == "ack_reserve" else reply
        jobs, broken, now_us, *_ = unpack_batch(frame, "q", call.number, call.worker)
        expected = shard.handed_out(call.token, call.worker) if call.token else []
        assert by_id(jobs) == by_id(expected)
        assert not broken
        assert now_us == shard.now_us

    @act(
        anytime,
        ms=st.sampled_from([1, 1000, 5000, 20_000, -1, -500, -14_000, -16_000]),
        us=st.sampled_from([0, 1, 999]),
    )
    def the_clock_moves(self, ms: int, us: int) -> None:
        self.us += ms * 1000 + us
        self.set_clock()

    def look(self) -> None:
        """Assert that the inspector finds all jobs; the comparison that follows shows that it changes nothing."""
        inspector = self.broker.inspector
        lives = self.lives()
        counts = inspector.counts("q")
        assert counts.reserved == sum(1 for live in lives.values() if live.lease)
        assert counts.ready + counts.delayed + counts.reserved == len(lives)
        assert counts.gated == sum(1 for live in lives.values() if live.gate)
        assert counts.failed == sum(1 for live in lives.values() if live.failures)
        assert counts.morgue == len(self.graves())
        for ident in IDS:
            view = inspector.get("q", ident)
            live = lives.get(ident)
            if live is None:
                assert (view is None) == all(ident != name[0] for name in self.graves())
            else:
                assert view is not None
                assert (view.state == "reserved") == (live.lease is not None)
                assert (view.job.key, view.due_ms, view.payload_count) == (
                    live.content.key,
                    int(live.due[0]),
                    len(live.waiting) + len(live.running),
                )
        assert {view.id for view in inspector.page("q", "failed").jobs} == {
            ident for ident, live in lives.items() if live.failures
        }

    # -- after every step --------------------------------------------------------------------------------------------

    @invariant()
    def the_whole_world_is_that_of_the_model(self) -> None:
        for shard in self.model:
            assert read_world(self.real, shard.number) == shard.world()

    @invariant()
    def the_invariants_hold(self) -> None:
        self.steps += 1
        if self.steps % 4 == 0:  # it costs as much as all the rest; what is wrong stays wrong for long enough
            fsck.assert_invariants(self.broker)

    def teardown(self) -> None:
        fsck.assert_invariants(self.broker)


def test_random_lives_of_three_ids_are_those_of_the_model(connection: Connection) -> None:
    broker = Broker(connection, prefix="model", lease_ms=LEASE_MS, test_clock=True)
    machine = type("LivesHere", (Lives,), {"broker": broker})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(EXAMPLES or 300),
            stateful_step_count=50,
            deadline=None,
            derandomize=EXAMPLES is None,
            database=None,
            print_blob=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
