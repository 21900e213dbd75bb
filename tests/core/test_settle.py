"""Settlements: ack, fail, release and bury with a valid and with a lost lease, and what a job tells of its attempts."""

from __future__ import annotations

import time

import pytest

from django_delayq.core import Broker, NewJob, Settlement, ack, bury, fail, release
from tests.support.core_stored import pack, unpack_fields
from tests.support.core_values import JobCounts, created_ms, derived_key, is_durable, new_key
from tests.support.event_entries import read_events

from .stage import T0, Stage

VERBS = {
    "ack": lambda job: ack(job, 1, 2),
    "fail": lambda job: fail(job, 1, 2, delay_ms=5),
    "release": release,
    "bury": lambda job: bury(job, 1, 2, reason="why"),
    "expire": lambda job: Settlement(job, verb="expire", outcome="expired"),
}


def test_a_buried_job_lies_in_the_morgue_with_all_that_is_known(stage: Stage) -> None:
    stage.put("a", args=b"[1]", options=b'{"max_attempts":1}')
    job = stage.take_one()
    stage.wait(5)
    assert stage.buried(job, "exhausted", outcome="exhausted", error_class="E", error=b'{"message":"oops"}')
    assert stage.picture() == {"morgue": ["a exhausted"]}
    view = stage.view("a")
    assert (view.state, view.reason, view.outcome, view.error_class) == ("morgue", "exhausted", "exhausted", "E")
    assert (view.job.key, view.job.args, view.job.options) == (job.key, b"[1]", {"max_attempts": 1})
    assert (view.job.failures, view.job.reserves, view.buried_ms, view.due_ms) == (1, 1, T0 + 5, T0)
    assert view.error == {"message": "oops"}


def test_a_job_that_nobody_could_read_has_not_failed_an_attempt(stage: Stage) -> None:
    stage.put("a")
    assert stage.buried(stage.take_one(), "undecodable", outcome="undecodable")
    assert (stage.view("a").outcome, stage.view("a").job.failures) == ("undecodable", 0)


def test_settlements_of_several_verbs_are_answered_in_their_order_also_if_they_are_repeated_with_others(
    stage: Stage,
) -> None:
    for ident in "abcd":
        stage.put(ident)
    a, b, c, d = stage.take()
    assert stage.settle(ack(b, 1, 2)) == [True]
    ends = [fail(a, 1, 2, delay_ms=5), ack(b, 1, 2), bury(c, 1, 2, reason="why"), ack(d, 1, 2)]
    assert stage.queue.settle(ends, seed=b"s" * 16) == [True, False, True, True]
    assert stage.queue.settle([ack(job, 1, 2) for job in (a, b, c, d)], seed=b"s" * 16) == [True, False, True, True]
    assert stage.picture() == {"waiting": ["a +5"], "failed": ["a x1"], "morgue": ["c buried"]}


def test_settlements_of_many_shards_and_verbs_are_answered_in_their_order(clocked: Broker) -> None:
    stage = Stage(clocked, shards=4)
    stage.queue.schedule_many(NewJob(f"j{n}", "work") for n in range(600))
    jobs = [job for number in range(4) for job in (*stage.take(250, number=number), *stage.take(250, number=number))]
    late = {job.id for job in jobs[::5]}
    stage.done(*(job for job in jobs if job.id in late))
    verbs = [*VERBS.values()] * len(jobs)
    answers = stage.settle(*(verb(job) for verb, job in zip(verbs, jobs, strict=False)))
    assert answers == [job.id not in late for job in jobs]


def test_each_finished_attempt_leaves_one_event_but_for_an_unsampled_success(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.settle(fail(job, T0, 12, delay_ms=0, outcome="timeout", error_class="JobTimeout"))
    stage.settle(release(stage.take_one()))
    stage.settle(ack(stage.take_one(), T0 + 5, 3))
    stage.put("b")
    stage.settle(ack(stage.take_one(), 1, 2, event=False))
    first, second = read_events(stage.broker, "q", 0)
    assert (first.queue, first.shard, first.outcome, first.id) == ("q", 0, "timeout", "a")
    told = {"due": str(T0), "started": str(T0), "ms": "12", "attempt": "1", "worker": "w", "error": "JobTimeout"}
    assert first.fields == {"task": "work", "key": job.key.hex(), **told}
    assert (second.outcome, second.fields["attempt"], second.fields["ms"]) == ("succeeded", "2", "3")
    assert read_events(stage.broker, "q", 0, after=first.position) == [second]


@pytest.mark.parametrize("counter", ["failures", "reserves", "crashes"])
def test_a_counter_that_has_reached_its_largest_value_stays_there(stage: Stage, counter: str) -> None:
    """Otherwise it would restart at 0, and a job that always fails would never be buried."""
    stage.put("a")
    stage.failed(stage.take_one(), outcome="crashed")
    packed = stage.broker.client.hget(stage.key("state"), "a")
    not_reserved, fields = packed[:1], unpack_fields(packed[1:])
    stage.broker.client.hset(stage.key("state"), "a", not_reserved + pack({**fields, counter: 65535}))
    if counter == "failures":
        stage.broker.client.zadd(stage.key("failures"), {"a": 65535})
    stage.failed(stage.take_one(), outcome="crashed")
    job = stage.take_one()
    assert getattr(job, counter) == 65535
    assert stage.buried(job)
    assert getattr(stage.view("a").job, counter) == 65535


def test_a_postponed_job_costs_its_neighbours_nothing(stage: Stage) -> None:
    """A job that was never postponed has a state without any of it; a new job has none."""
    stage.put("a", at=0)
    stage.put("b", at=0)
    stage.put("fresh", at=90_000)
    a, b = stage.take()
    stage.settle(release(a, delay_ms=0, reason="x", postpone=True), release(b, delay_ms=0))
    states = stage.broker.client.hgetall(stage.key("state"))
    assert {ident: len(state) for ident, state in states.items()} == {b"a": 85, b"b": 12}


def test_the_history_of_a_job_counts_every_end_of_a_run_and_some_over_its_whole_life(stage: Stage) -> None:
    """The model is beanstalkd's stats-job: reserves, timeouts, releases, buries, kicks."""

    def history() -> dict[str, int]:
        return {name: number for name, number in stage.view("a").history.items() if number}

    stage.put("a")
    assert history() == {} and stage.broker.client.hlen(stage.key("state")) == 0
    stage.released(stage.take_one())
    stage.failed(stage.take_one())
    stage.failed(stage.take_one(), outcome="crashed")
    stage.failed(stage.take_one(), outcome="timeout")
    stage.released(stage.take_one(), postpone=True, reason="no database")
    assert history() == {"reserves": 5, "releases": 2, "failures": 3, "crashes": 1, "timeouts": 1}
    for _ in range(2):
        stage.buried(stage.take_one())
        stage.queue.kick("a")
    assert history() == {"releases": 2, "timeouts": 1, "buries": 2, "kicks": 2}
    job = stage.take_one()
    assert job.counts == JobCounts(timeouts=1, releases=2, buries=2, kicks=2)
    assert stage.done(job) == [True] and stage.shard_is_empty()


def test_the_creation_of_a_job_is_known_through_retries_morgue_and_kick(stage: Stage) -> None:
    before = time.time() * 1000
    stage.put("a")
    created = stage.view("a").created_ms
    assert created is not None and before - 1 <= created <= time.time() * 1000
    stage.failed(stage.take_one())
    job = stage.take_one()
    assert stage.view("a").created_ms == created_ms(job.key) == created
    stage.buried(job)
    stage.queue.kick("a")
    assert stage.take_one().key == job.key


def test_a_key_has_the_time_of_the_call_unless_it_follows_from_a_request() -> None:
    now = time.time() * 1000
    for key in (new_key(), new_key(durable=True)):
        assert now - 1 <= (created_ms(key) or 0) <= now + 1000
    assert is_durable(new_key(durable=True)) and not is_durable(new_key())
    assert len({new_key()[7:] for _ in range(1000)}) == 1000
    for byte in range(256):
        key = derived_key(bytes((255,) * 6 + (byte,) + (255,) * 9))
        assert created_ms(key) is None and not is_durable(key)
    assert created_ms(b"short") is None
