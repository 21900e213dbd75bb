"""Random lives of a few ids in Redis and in the memory of the testing kit: all replies and contents agree.

``DELAYQ_CONTRACT_EXAMPLES=3000`` makes a long campaign; without it the run is short and always the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from django_delayq.core import fsck
from django_delayq.core.broker import Broker
from django_delayq.core.errors import DelayQError
from django_delayq.core.job import Job, NewJob, Payload, new_key
from django_delayq.core.outcomes import Settlement, Which, ack, bury, expire, fail, release
from django_delayq.core.records.frames import generation_of
from django_delayq.core.redis.connection import Connection
from django_delayq.testing.clock import Clock
from django_delayq.testing.redis import MemoryBroker
from tests.support.core_calls import locate

from .stand import LEASE, T0, Stand

EXAMPLES = os.environ.get("DELAYQ_CONTRACT_EXAMPLES")
IDS = ("a", "b", "d")
_NOBODY = Job("q", 0, "?", "", b"", b"", b"", 4, 0)

ids = st.sampled_from(IDS)
delays = st.sampled_from([0, 0, 1, 1000, 20_000])
policies = st.sampled_from(["min", "max", "first", "last"])


class Step:
    """Operation on a stand: ``do(stand, the jobs that it handed out so far)``."""

    def __init__(self, text: str, do: Callable[[Stand, list[Job]], object]) -> None:
        self.text = text
        self.do = do

    def __repr__(self) -> str:
        return self.text


class Side:
    """One broker with what it handed out."""

    def __init__(self, broker: Broker) -> None:
        self.stand = Stand(broker, shards=2)
        self.held: list[Job] = []

    def do(self, step: Step) -> object:
        try:
            return step.do(self.stand, self.held)
        except DelayQError as error:
            return type(error).__name__


@st.composite
def schedules(draw: Any) -> Step:
    ident = draw(ids)
    merged = (ident == "b" or (ident == "d" and draw(st.booleans()))) != (draw(st.integers(0, 11)) == 0)
    task = "other" if draw(st.integers(0, 11)) == 0 else {"a": "work", "b": "sync", "d": "both"}[ident]
    durable = draw(st.integers(0, 2)) == 0
    keys = new_key(durable=durable), new_key(durable=durable)
    score = draw(st.sampled_from(["-1.5", "0", "1", "2", "1e3", ""]))
    payload = Payload(draw(st.sampled_from([b"p", b"q", b"r", b"s"])), score, keys[1]) if merged else None
    absolute = draw(st.integers(0, 3)) == 0
    new = NewJob(
        ident,
        task,
        b"[%d]" % draw(st.integers(0, 9)),
        due_ms=T0 + draw(st.sampled_from([-5, 0, 1, 2000, 30_000])) if absolute else None,
        delay_ms=None if absolute else draw(delays),
        priority=draw(st.sampled_from([4, 4, 4, 0, 7])),
        options=draw(st.sampled_from([b"", b"", b'{"timeout":3}', b'{"expires_in_ms":500}'])) if not merged else b"",
        key=keys[0] if not merged else new_key(),
        on_conflict=draw(st.sampled_from(["replace", "replace", "ignore", "error"] + ["merge"] * (4 * merged))),
        due_policy=draw(st.sampled_from(["keep", "replace", "earliest", "latest", "inherit"])),
        score_policy=draw(policies),
        payloads=draw(st.sampled_from(["all", "last", "first"])),
        max_payloads=draw(st.sampled_from([1, 2, 3, 10_000, 10_000])),
        reset_retries=draw(st.booleans()),
        payload=payload,
    )
    deadline = draw(st.sampled_from([None, None, T0 + 10_000]))
    twice = durable and draw(st.booleans())

    def step(stand: Stand, _: list[Job]) -> object:
        def copy() -> NewJob:
            return replace(new, payload=payload and replace(payload))

        sent = copy()
        first = stand.queue.schedule_many([sent], not_after_ms=deadline)
        stand.made.append((ident, generation_of(sent)))
        return [*first, sent.joined, *(stand.queue.schedule_many([copy()]) if twice else ())]

    return Step(f"schedule({new}, {deadline}, {twice})", step)


@st.composite
def endings(draw: Any) -> Callable[[Job], Settlement]:
    verb = draw(st.sampled_from(["ack", "fail", "fail", "release", "bury", "bury", "expire"]))
    delay = draw(delays)
    of_merged = {"inherit": draw(st.booleans()), "oldest": draw(st.booleans()), "score_policy": draw(policies)}
    if verb == "ack":
        return lambda job: ack(job, 1, 2)
    if verb == "expire":
        return expire
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
                error=b'{"message":"no"}',
                quarantine=quarantine,
                own_crash=own,
            ),
            **of_merged,
        )  # type: ignore[arg-type]
    if verb == "bury":
        outcome = draw(st.sampled_from(["buried", "exhausted", "poison", "undecodable"]))
        return lambda job: replace(bury(job, 1, 2, reason="why", outcome=outcome, error_class="E"), **of_merged)  # type: ignore[arg-type]
    priority, old_place = draw(st.sampled_from([None, None, 0, 7])), draw(st.booleans())
    unclear, quarantine = draw(st.booleans()), draw(st.sampled_from([None, None, True, False]))
    postponed = draw(st.sampled_from(["", "", "x", "y"]))
    return lambda job: replace(
        release(
            job,
            delay_ms=None if old_place else delay,
            priority=priority,
            unclear=unclear,
            quarantine=quarantine,
            reason=postponed,
            postpone=bool(postponed),
        ),
        **of_merged,
    )  # type: ignore[arg-type]


@st.composite
def settlements(draw: Any) -> Step:
    which, ending = draw(st.integers(0, 3)), draw(endings())

    def step(stand: Stand, held: list[Job]) -> object:
        return stand.settle(ending(held[-1 - which % len(held)])) if held else None

    return Step(f"settle({which}, {ending(_NOBODY)})", step)


@st.composite
def reserves(draw: Any) -> Step:
    number, limit, patient = draw(st.integers(0, 1)), draw(st.sampled_from([3, 3, 1, 0])), draw(st.booleans())
    one = draw(st.sampled_from([None, None, *IDS]))
    early, started = draw(st.booleans()), draw(st.booleans())
    which: Which = draw(st.sampled_from(["all", "all", "others", "quarantined"]))

    def step(stand: Stand, held: list[Job]) -> object:
        if patient:
            waiting = stand.broker.inspector.peek("q", 1)
            stand.wait(max(0, waiting[0].due_ms - stand.ms) if waiting else 0)
        if one is None:
            batch = stand.batch(limit, number=number, started=started, which=which)
        else:
            batch = stand.queue.reserve_id(one, worker="w", early=early, started=started)
        held += batch.jobs
        return [seen(job) for job in batch.jobs], batch.next_due_ms, batch.expired, batch.quarantine_due_ms

    return Step(f"reserve({number}, {limit}, {patient=}, {one=}, {early=}, {started=}, {which=})", step)


def seen(job: Job) -> tuple[object, ...]:
    """A job as its holder has it, but for its token and the keys that chance made."""
    return (
        job.id,
        job.shard,
        job.task,
        job.args,
        job.priority,
        job.due_ms,
        job.failures,
        job.reserves,
        job.crashes,
        job.own_crashes,
        job.quarantined,
        job.flags,
        job.failed_at_ms,
        job.postponed_for,
        job.postponed_at_ms,
        job.merged,
        [(p.data, p.score, p.key) for p in job.payloads],
    )


@st.composite
def operations(draw: Any) -> Step:
    verb = draw(st.sampled_from(["cancel", "reschedule", "run_now", "kick", "kick", "discard", "touch", "reap"]))
    ident, delay, flag = draw(ids), draw(delays), draw(st.booleans())
    task = draw(st.sampled_from(["", "", "work", "sync"]))

    def step(stand: Stand, held: list[Job]) -> object:
        queue = stand.queue
        if verb == "cancel":
            return queue.cancel(ident, task=task)
        if verb == "reschedule":
            return queue.reschedule(ident, delay_ms=delay, task=task)
        if verb == "run_now":
            return queue.run_now(ident, task=task)
        if verb == "kick":
            return queue.kick(ident, delay_ms=delay, replace=flag)
        if verb == "discard":
            return queue.discard(ident)
        if verb == "touch":
            return queue.touch(held[-2:], {(job.id, job.token) for job in held if flag}, ttr_ms=delay or None)
        found = [lost for number in queue.numbers if (lost := queue.expired(number))]
        taken = [job for lost in found for job in queue.take_over(lost, "heir")]
        return [seen(job) for job in taken], stand.settle(*(fail(job, 1, 2, delay_ms=delay) for job in taken))

    return Step(f"{verb}({ident}, {delay}, {flag}, {task!r})", step)


@st.composite
def operations_on_one(draw: Any) -> Step:
    """Draw an operation of a handle on the job of its call, early or late."""
    verb = draw(st.sampled_from(["cancel", "reschedule", "run_now", "locate"]))
    which, delay = draw(st.integers(0, 5)), draw(delays)

    def step(stand: Stand, _: list[Job]) -> object:
        if not stand.made:
            return None
        ident, generation = stand.made[-1 - which % len(stand.made)]
        queue = stand.queue
        if verb == "cancel":
            return queue.cancel(ident, generation=generation)
        if verb == "reschedule":
            return queue.reschedule(ident, delay_ms=delay, generation=generation)
        if verb == "run_now":
            return queue.run_now(ident, generation=generation)
        view = stand.broker.inspector.get_generation("q", ident, generation)
        return locate(queue, ident, generation), view and (view.state, view.due_ms, view.job.key)

    return Step(f"{verb} of {which}, {delay}", step)


@st.composite
def moves(draw: Any) -> Step:
    ms = draw(st.sampled_from([1, 1000, 5000, 20_000]))
    return Step(f"wait({ms})", lambda stand, _: stand.wait(ms))


steps = st.one_of(
    schedules(),
    schedules(),
    reserves(),
    reserves(),
    settlements(),
    settlements(),
    operations(),
    operations_on_one(),
    moves(),
)


def marks(stand: Stand) -> dict[bytes, str]:
    return {mark.key: mark.end for number in stand.queue.numbers for mark in stand.queue.marks(number)}


def test_random_lives_are_the_same_in_memory_and_in_redis(connection: Connection) -> None:
    real = Broker(connection, prefix="contract", lease_ms=LEASE, test_clock=True)

    @settings(
        max_examples=int(EXAMPLES or 150),
        deadline=None,
        derandomize=EXAMPLES is None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(steps, min_size=5, max_size=40))
    def live(lives: list[Step]) -> None:
        connection.client.flushdb()
        real.registry._queues.clear()
        sides = [Side(real), Side(MemoryBroker(Clock(T0 / 1000), lease_ms=LEASE))]
        for step in lives:
            answers = [side.do(step) for side in sides]
            assert answers[0] == answers[1]
            assert sides[0].stand.world() == sides[1].stand.world()
            assert marks(sides[0].stand) == marks(sides[1].stand)
        fsck.assert_invariants(real)

    live()
