"""Comparison of the real queue with its model in random histories of three ids in two shards.

After every step the answer, and the whole world read back from Redis, are those of the model, and the invariants hold.
``DELAYQ_MODEL_EXAMPLES=5000`` makes a long campaign with new lives every time; without it the run is short and always
the same.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant

from django_delayq.core import (
    Connection,
    IdTaken,
    Job,
    NewJob,
    Payload,
    QueueFull,
    QueueUnavailable,
    Settlement,
    ack,
    fsck,
)

from . import model_operators as operators
from .model import ModelShard
from .model_acts import OperatorActs, RuleActs, SelectedActs
from .model_draws import (
    IDS,
    LEASE_MS,
    SHARDS,
    WINDOW_MS,
    Call,
    Drawn,
    Ending,
    Past,
    act,
    anytime,
    by_id,
    endings,
    ids,
    limits,
    new_jobs,
    pasts,
    served,
)
from .model_values import Which
from .random_machine import run_machine
from .world import read_world


class Lives(OperatorActs, SelectedActs, RuleActs):
    """Random acts on ``self.real`` and ``self.model`` alike."""

    # -- schedule ----------------------------------------------------------------------------------------------------

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
        shard = self.with_room(self.shard(new.id))
        # It may be said only when nothing lives under the id.
        new.fresh = fresh and new.id not in shard.lives
        expected = shard.schedule([new], late=late)[0]
        deadline = shard.now_ms - late if late or new.durable else None
        if expected in ("taken", "exists"):
            with pytest.raises(IdTaken, match="already lives" if expected == "exists" else "another task"):
                self.real.schedule(new, not_after_ms=deadline)
        elif expected == "full":
            with pytest.raises(QueueFull, match="max_length"):
                self.real.schedule(new, not_after_ms=deadline)
        elif expected == "paused":
            with pytest.raises(QueueUnavailable, match="new jobs"):
                self.real.schedule(new, not_after_ms=deadline)
        else:
            assert self.real.schedule(new, not_after_ms=deadline) == expected
            if self.calls and self.calls[-1].script == "schedule_fresh":  # which does not store the time
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

    @act(
        lambda self: self.only_one_lives(),
        new=new_jobs(),
        back=st.sampled_from([0, 1, 500, 14_000, 16_000]),
    )
    def schedule_behind_the_next_one(self, new: NewJob, back: int) -> None:
        """Schedule a plain job under a generated id behind another job, perhaps on a clock that was set back."""
        ident, live = self.only_one_lives()[0]
        self.the_clock_moves(ms=-back, us=0)
        new.id = "a" if ident == "b" else "b"
        new.payload, new.key, new.on_conflict, new.priority = None, b"", "replace", live.content.priority
        self.schedule(new, fresh=True, late=False)

    @act(anytime, news=st.lists(new_jobs(), min_size=1, max_size=3))
    def schedule_many(self, news: list[NewJob]) -> None:
        if self.max_length < math.inf:  # which of several shards gets the last places is not decided
            news = [new for new in news if self.real.shard_of(new.id) == self.real.shard_of(news[0].id)]
        for new in news:
            self.keyed(new)
        expected = [""] * len(news)
        for shard in self.model:
            places = [place for place, new in enumerate(news) if self.real.shard_of(new.id) == shard.number]
            if places:
                shard.see(self.us)
                outcomes = self.with_room(shard).schedule([news[place] for place in places])
                for place, outcome in zip(places, outcomes, strict=True):
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
        limited=limits,
    )
    def reserve(self, which: int, limit: int, worker: str, patient: int, served: Which, limited: Drawn | None) -> None:
        shards = self.waiting()
        shard = shards[which % len(shards)]
        if patient:  # wait until something is due
            self.wait_until(shard.next_due_ms(served))
        shard.see(self.us)
        said, lanes = self.limits(shard, limited)
        expected, token = shard.reserve(limit, worker, served, said)
        batch = self.real.reserve(shard.number, limit, worker=worker, which=served, lanes=lanes)
        self.check_batch(shard, batch, expected, served, passes_over=said is not None and limit > 0)
        self.note_reserve(token, worker)

    @act(
        lambda self: self.lives() or self.graves(),
        ident=ids,
        early=st.booleans(),
        buried=st.booleans(),
        started=st.booleans(),
        ttr_ms=st.sampled_from([None, None, 5_000, 60_000]),
    )
    def reserve_by_id(self, ident: str, early: bool, buried: bool, started: bool, ttr_ms: int | None) -> None:
        shard = self.shard(ident)
        came_back = buried and operators.revive(shard, ident)
        expected, token = shard.reserve_one(ident, "w4", early=early or came_back, started=started, ttr_ms=ttr_ms)
        batch = self.real.reserve_id(ident, worker="w4", early=early, buried=buried, started=started, ttr_ms=ttr_ms)
        self.check_jobs(shard, batch, expected)
        self.note_reserve(token, "w4", ttr_ms)

    @act(
        lambda self: self.handed,
        which=st.lists(pasts, min_size=1, max_size=3),
        limit=st.integers(0, 2),
        served=served,
        limited=limits,
    )
    def ack_and_reserve(self, which: list[Past], limit: int, served: Which, limited: Drawn | None) -> None:
        jobs = [self.past(past) for past in which]
        shard = self.model[jobs[0].shard]
        acks = [ack(job, 1, 2) for job in jobs if job.shard == shard.number]
        shard.see(self.us)
        answers = shard.settle(list(acks))
        said, lanes = self.limits(shard, limited)
        expected, token = shard.reserve(limit, "w3", served, said)
        counted, batch = self.real.settle_reserve(shard.number, acks, limit, worker="w3", which=served, lanes=lanes)
        assert counted == answers
        self.check_batch(shard, batch, expected, served, passes_over=said is not None and limit > 0)
        self.note_reserve(token, "w3")

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

    @act(
        lambda self: self.begun(),
        which=st.integers(0, 2),
        outcome=st.sampled_from(["succeeded", "failed", "crashed"]),
        once=st.booleans(),
    )
    def record_the_end(self, which: int, outcome: Any, once: bool) -> None:
        """Record how an attempt ended that began with an early ack: by its holder, or by another one after a crash."""
        began = self.begun()
        self.end(Settlement(began[which % len(began)], 1, 2, verb="record", outcome=outcome, once=once))

    @act(lambda self: self.begun(), worker=st.sampled_from(["", "w1", "w3"]), age=st.sampled_from([None, 0, 1000]))
    def ask_who_began(self, worker: str, age: int | None) -> None:
        before_ms = None if age is None else self.us // 1000 - age
        for shard in self.model:
            wanted = [
                job
                for job in shard.begun.values()
                if worker in ("", job.worker) and (before_ms is None or job.deadline_ms < before_ms)
            ]
            assert by_id(self.real.begun(shard.number, worker, before_ms=before_ms)) == by_id(wanted)
            others = [job for job in shard.begun.values() if job.worker != worker]
            assert by_id(self.real.begun(shard.number, except_workers=[worker])) == by_id(others)

    # -- the dispatcher ----------------------------------------------------------------------------------------------

    @act(
        lambda self: self.deadlines(),
        which=st.integers(0, 1),
        late=st.sampled_from([None, -1, 0, 0, 0]),
        hold=st.integers(0, 3).map(lambda n: n == 0),
        ending=endings(),
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
        for job in self.take_over(shard, found):
            self.end(ending(job))

    def take_over(self, shard: ModelShard, jobs: list[Job]) -> list[Job]:
        """Return the jobs that a dispatcher gets instead of holders whose leases ran out."""
        if not jobs:
            return []
        shard.see(self.us)
        taken = self.real.take_over(jobs, "heir")
        assert taken == shard.take_over(jobs, "heir")
        self.note_reserve(shard.token if taken else 0, "heir")
        self.handed.extend(taken)
        return taken

    @act(lambda self: self.handed, past=pasts, ending=endings())
    def reap_what_was_looked_at_long_ago(self, past: Past, ending: Ending) -> None:
        job = self.past(past)
        for taken in self.take_over(self.shard(job.id), [job]):
            self.end(ending(taken))

    @act(anytime, number=st.integers(0, SHARDS - 1), hold=st.booleans(), check=st.booleans())
    def tick(self, number: int, hold: bool, check: bool) -> None:
        shard = self.model[number]
        shard.see(self.us)
        expected = shard.tick(hold)
        tick = self.real.tick(number, hold=hold)
        assert (tick.now_ms, tick.next_due_ms, tick.next_deadline_ms, tick.expired, tick.held_back) == expected
        left = shard.pauses.without_past(tick.now_ms)
        if left != shard.pauses:  # the first look at a pause that is over ends it in all shards
            self.set_pauses(left)
        if check:
            self.look()

    @act(anytime, number=st.integers(0, SHARDS - 1), limit=st.sampled_from([250, 250, 1]), old=st.integers(0, 5))
    def take_marks(self, number: int, limit: int, old: int) -> None:
        """Confirm half of the completions, and sometimes one that has changed since."""
        shard = self.model[number]
        told = self.real.marks(number, limit=limit)
        assert len(told) == min(limit, len(shard.marks))
        assert {mark.key: mark.end for mark in told}.items() <= shard.marks.items()
        noted = [*told[::2], *self.told[-1 - old : len(self.told) - old]]
        self.told += told
        present = {mark.key: mark for mark in self.real.marks(number)}
        rest = self.real.marks(number, noted)
        for mark in noted:
            if present.get(mark.key) == mark:
                shard.forget_mark(mark.key, mark.end)
        assert {mark.key: mark.end for mark in rest} == shard.marks

    @act(lambda self: self.sent)
    def ask_who_is_known(self) -> None:
        sent = [(new, new.payload.key if new.payload else new.key) for new in self.sent]
        pairs: list[Any] = [
            (new.id, key, self.digest(new.payload)) if new.payload else (new.id, key) for new, key in sent
        ]
        assert self.real.knows(pairs) == [self.model[self.real.shard_of(new.id)].knows(key) for new, key in sent]

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
        self.called.add(call.number)
        shard.see(self.us, keep=False)
        reply = self._send(call.script, call.keys, *call.args)
        if call.token is None:
            assert reply == (b"1" + call.reply[1:] if is_stored_chunk(call) else call.reply)
            return
        if call.script == "settle":
            assert reply[0] == call.reply[0]
        frame = reply[1] if call.script == "settle" else reply
        batch = self.real.batch_of(frame, call.number, call.worker, 0.0)
        expected = shard.handed_out(call.token, call.worker, call.ttr_ms) if call.token else []
        self.check_jobs(shard, batch, expected)

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
        laned = [(s.now_ms, live) for s in self.see() for live in s.lives.values() if live.content.laned]
        assert counts.parked == sum(1 for now_ms, live in laned if not live.lease and live.due[0] <= now_ms)
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
        """Compare the shards that were called since the last step, and one more in turn: what is wrong stays wrong."""
        self.called.add(self.steps % SHARDS)
        for number in sorted(self.called):
            model = self.model[number]
            found = read_world(self.real, number)
            self.check_refusals(model, found["counters"])
            assert found == model.world()
            if model.begun or self.steps % 4 == 0:
                assert by_id(self.real.begun(number)) == by_id(list(model.begun.values()))
        self.called.clear()

    @invariant()
    def the_invariants_hold(self) -> None:
        self.steps += 1
        if self.steps % 4 == 0:  # it costs as much as all the rest; what is wrong stays wrong for long enough
            fsck.assert_invariants(self.broker)

    def teardown(self) -> None:
        fsck.assert_invariants(self.broker)


def is_stored_chunk(call: Call) -> bool:
    """Return whether the reply of a call is that of a chunk of jobs that changed something, which marks its repeats."""
    is_chunk = call.script == "schedule" and call.args[3] == b"1"
    return is_chunk and any(letter not in b"vklfhp" for letter in call.reply[1:])


def test_random_lives_of_three_ids_are_those_of_the_model(connection: Connection) -> None:
    machine = type("LivesHere", (Lives,), {"connection": connection})
    run_machine(machine, 120, steps=50)
