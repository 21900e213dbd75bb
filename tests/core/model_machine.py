"""State machine that calls a queue and its model alike: the clock, the record of calls, and look-ups in the model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from django_delayq.core import Batch, Broker, Connection, Job, NewJob, Payload
from tests.support.core_calls import Call as ManyCall, SentCalls
from tests.support.core_stored import Grant, LaneNotes, Offer, digest

from .model import ModelShard
from .model_draws import ACTS, LEASE_MS, SHARDS, START_US, Call, Drawn, Past, by_id, possible_acts
from .model_rules import Pauses
from .model_values import Limits, Live, Which, is_durable

#: scripts that change nothing, or whose repeated call is no repeat
NOT_REPEATED = frozenset({"leases", "tick", "swap", "stats", "page", "begun", "quota"})


class ModelBroker(Broker):
    """Broker whose clock is that of the test."""

    us = START_US
    #: it looks for room at each call, even if there was none a moment ago
    full_seconds = 0.0

    def now_ms(self) -> float:
        return self.us / 1000


class RecordingMachine(RuleBasedStateMachine):
    """State machine that calls ``self.real`` and ``self.model`` alike."""

    connection: Connection

    def __init__(self) -> None:
        super().__init__()
        self.broker = ModelBroker(self.connection, prefix="model", lease_ms=LEASE_MS, test_clock=True)
        self.broker.client.flushdb()
        self.real = self.broker.queue("q", shards=SHARDS)
        self.model = [ModelShard("q", number, LEASE_MS) for number in range(SHARDS)]
        self.us = START_US
        self.steps = 0
        self.numbers = itertools.count(1)
        self.max_length = math.inf
        #: a call that looked for room may have been refused more often than its caller
        self.looked_for_room = False
        self.handed: list[Job] = []
        self.calls: list[Call] = []
        self.sent: list[NewJob] = []
        self.told: list[Any] = []
        #: numbers of shards that were called since the last comparison
        self.called = set(range(SHARDS))
        scripts = self.broker.scripts
        self._send = type(scripts).call.__get__(scripts)
        self._send_many = type(scripts).send_many.__get__(scripts)
        scripts.call = self._remembering_call  # type: ignore[method-assign]
        scripts.send_many = self._remembering_many  # type: ignore[method-assign]
        self.set_clock()
        self.see()

    # -- the clock and the calls -------------------------------------------------------------------------------------

    def fresh(self) -> bytes:
        """Return a generation key; it is not random, so that a history can be repeated."""
        return self.asked_for(b"")

    def asked_for(self, durable: bytes) -> bytes:
        """Return a generation key, durable if ``durable`` is a durable key."""
        return (next(self.numbers) | is_durable(durable) << 127).to_bytes(16, "big")

    def keyed(self, new: NewJob) -> NewJob:
        if new.payload:
            new.payload.key = self.asked_for(new.key)
            new.key = self.fresh()
        else:
            new.key = self.asked_for(new.key)
        if new.durable:
            self.sent.append(replace(new, payload=new.payload and replace(new.payload)))
        return new

    def digest(self, payload: Payload) -> bytes:
        return digest(payload.data)

    def set_clock(self) -> None:
        self.broker.us = self.us
        with self.broker.client.pipeline(transaction=False) as pipe:
            for number in range(SHARDS):
                pipe.hset(self.real.shard(number).names["meta"], "test_clock", self.us)
            pipe.execute()

    def _remembering_call(self, script: str, keys: tuple[bytes, ...], *args: Any, **limits: Any) -> Any:
        self._note_called(script, keys, args)
        reply = self._send(script, keys, *args, **limits)
        self._remember(script, keys, args, reply)
        return reply

    def _remembering_many(self, calls: Sequence[ManyCall]) -> SentCalls:
        for call in calls:
            self._note_called(call.name, call.keys, call.args)
        sent: SentCalls = self._send_many(calls)
        read = sent.read

        def remembered() -> None:
            read()
            for call in calls:
                self._remember(call.name, call.keys, call.args, call.reply)

        sent.read = remembered  # type: ignore[method-assign]
        return sent

    def _note_called(self, script: str, keys: tuple[bytes, ...], args: tuple[Any, ...]) -> None:
        place = keys[0].rpartition(b"}")[0].rpartition(b".")[2]
        if place.isdigit():  # else the registry
            self.called.add(int(place))
            if script == "quota" and args[4] in (b"take", b"give"):  # a shard that stores its answer stores the time
                self.model[int(place)].see(self.us)

    def _remember(self, script: str, keys: tuple[bytes, ...], args: tuple[Any, ...], reply: Any) -> None:
        if script == "schedule" and not reply.strip(b"01klfhp"):
            return  # nothing was changed: not remembered, and perhaps another answer later
        if args[0] and script not in NOT_REPEATED and reply is not None:
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

    def begun(self) -> list[Job]:
        return [job for shard in self.model for job in shard.begun.values()]

    def failed(self) -> list[str]:
        return [ident for ident, live in self.lives().items() if live.failures]

    def only_one_lives(self) -> list[tuple[str, Live]]:
        """Return the job that waits while the other id of its shard is free."""
        lives = [(ident, live) for ident, live in self.model[1].lives.items()]
        return lives if len(lives) == 1 and not lives[0][1].lease else []

    def with_room(self, shard: ModelShard) -> ModelShard:
        """Return a shard that knows how many more ids may live in the queue."""
        shard.room = self.max_length - len(self.lives())
        return shard

    def check_refusals(self, model: ModelShard, counters: dict[str, int]) -> None:
        """Adopt the number of refusals of a shard that may have been asked several times for a caller."""
        found = counters.get("refused", 0)
        if self.looked_for_room and found > model.counters.get("refused", 0):
            model.counters["refused"] = found

    def see(self) -> list[ModelShard]:
        """Show all shards the clock, without a call that lets them store it; return them."""
        for shard in self.model:
            shard.see(self.us, keep=False)
        return self.model

    def set_pauses(self, pauses: Pauses) -> None:
        """Give all shards these pauses, as a change of the rules does."""
        for shard in self.model:
            shard.see(self.us)
            shard.pauses = pauses

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

    def limits(self, shard: ModelShard, drawn: Drawn | None) -> tuple[Limits | None, bytes]:
        """Return what a reserve says of limits, for the model and as it is sent."""
        keys = self.real.shard(shard.number).names
        names = self.broker.client.hgetall(keys["task"])
        shard.codes = {name.decode(): code[1:] for code, name in names.items() if code[:1] == b"\0"}
        if drawn is None:
            return None, b""
        tasks, which, jobs = drawn
        lanes = self.broker.client.zrange(keys["turns"], 0, -1)
        if not lanes or not jobs:
            return Limits(tasks), LaneNotes(tasks).pack()
        lane = lanes[which % len(lanes)]
        name = names[b"\0" + lane[1:3]].decode(), lane[3] - 1
        grant = Grant(Offer(lane, name[0], jobs, 1, 2**52), jobs)
        return Limits(tasks, name, jobs), LaneNotes(tasks, grants=[grant]).pack()

    def check_batch(
        self, shard: ModelShard, batch: Batch, expected: list[Job], which: Which, *, passes_over: bool = False
    ) -> None:
        """Compare the batch of a reserve, of which the model has ended what came too late.

        ``passes_over``: its caller takes jobs, and none behind a limit. Due lanes are left to others then, four times
        a second.
        """
        due, laned = shard.handed_out_ms(which), shard.next_due_ms(which, laned=True)
        passes_over = passes_over and laned is not None and not shard.pauses.holds_back(shard.now_ms)
        is_over = passes_over and laned is not None and laned <= shard.now_ms
        if passes_over and (is_over or which == "quarantined"):
            due = shard.next_due_ms(which, laned=False)
        wait = None if due is None else max(0.0, due - shard.now_us / 1000)
        if is_over and which != "quarantined" and wait != 0:
            assert batch.next_due_ms is not None and 0 < batch.next_due_ms <= min(250, wait or 250)
        else:
            assert batch.next_due_ms == wait
        assert batch.passed_over == is_over
        quarantined = shard.handed_out_ms("quarantined") if which == "others" else None
        assert batch.quarantine_due_ms == (None if quarantined is None else quarantined - shard.now_us / 1000)
        self.check_jobs(shard, batch, expected)

    def check_jobs(self, shard: ModelShard, batch: Batch, expected: list[Job]) -> None:
        in_time = shard.expire_late(expected)
        assert not batch.broken
        assert by_id(batch.jobs) == by_id(in_time)
        assert batch.expired == len(expected) - len(in_time)
        assert batch.now_ms == shard.now_us / 1000
        self.handed.extend(batch.jobs)

    def note_reserve(self, token: int, worker: str, ttr_ms: int | None = None) -> None:
        """Note what the last reserve has handed out: it is to be the same when the call is repeated."""
        call = next(
            call
            for call in reversed(self.calls)
            if call.script in ("reserve", "take_over") or (call.script == "settle" and call.args[4] != b"")
        )
        call.token, call.worker, call.ttr_ms = token, worker, ttr_ms

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(possible_acts(self)))
        getattr(self, name)(**data.draw(ACTS[name][1], label=name))
