"""Verbs of heartbeat, dispatcher and supervisor: touch, tick, expired, leases."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker, NewJob
from tests.support.core_calls import held_by

from .stage import LEASE, T0, Stage
from .world import unchanged


def test_a_touch_extends_the_lease_to_a_full_one_from_now(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.wait(5000)
    assert stage.queue.touch([job]) == ["held"]
    assert stage.picture() == {"reserved": [f"a by w until +{LEASE + 5000}"]}


def test_a_touch_says_of_each_job_whether_it_is_held_stopping_or_lost(clocked: Broker) -> None:
    stage = Stage(clocked, shards=3)
    stage.queue.schedule_many(NewJob(f"j{n}", "work") for n in range(6))
    jobs = [job for number in range(3) for job in stage.take(number=number)]
    assert len(jobs) == 6
    stage.done(jobs[1])
    stage.queue.cancel(jobs[4].id)
    assert stage.queue.touch(jobs) == ["held", "lost", "held", "held", "stopping", "held"]


def test_only_the_runs_that_are_known_to_have_started_are_marked(stage: Stage) -> None:
    stage.put("a")
    stage.put("b")
    a, b = stage.take()
    stage.queue.touch([a, b], {(a.id, a.token), (b.id, b.token + 1)})
    assert stage.picture() == {"reserved": [f"a by w until +{LEASE} started", f"b by w until +{LEASE}"]}


def test_a_touch_revives_a_lease_that_ran_out_but_was_not_taken_away(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.wait(LEASE)
    assert stage.queue.touch([job]) == ["held"]
    assert stage.queue.expired(0) == []


def test_a_touch_of_a_lost_job_changes_nothing(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.released(job)
    with unchanged(stage.broker):
        assert stage.queue.touch([job], {(job.id, job.token)}) == ["lost"]


def test_a_lease_runs_out_at_its_deadline_and_not_before(stage: Stage) -> None:
    stage.put("a", args=b"[1]")
    stage.take(worker="dead")
    stage.wait(LEASE - 0.001)
    assert stage.queue.expired(0) == []
    stage.wait(0.001)
    (job,) = stage.queue.expired(0)
    assert (job.id, job.args, job.worker, job.deadline_ms, job.due_ms) == ("a", b"[1]", "dead", T0 + LEASE, T0)


def test_what_ran_out_is_taken_back_once(stage: Stage) -> None:
    stage.put("a")
    holder = stage.take_one()
    stage.wait(LEASE)
    found = stage.queue.expired(0)
    (taken,) = stage.queue.take_over(found, "heir")
    assert stage.queue.take_over(found, "another") == []
    assert [stage.released(taken, unclear=True) for _ in range(2)] == [True, False]
    assert stage.picture() == {"waiting": ["a +0 unclear"]}
    assert stage.done(holder) == [False]


def test_a_tick_tells_when_to_look_again(stage: Stage) -> None:
    assert stage.queue.tick(0).next_due_ms is None
    stage.put("a")
    stage.put("b", at=700)
    stage.take()
    tick = stage.queue.tick(0)
    assert (tick.now_ms, tick.next_due_ms, tick.next_deadline_ms, tick.expired, tick.held_back) == (
        T0,
        T0 + 700,
        T0 + LEASE,
        False,
        False,
    )
    stage.wait(LEASE)
    assert stage.queue.tick(0).expired


def test_during_a_reaper_hold_nothing_is_taken_from_its_holder(stage: Stage) -> None:
    stage.put("a")
    stage.take()
    stage.wait(LEASE)
    found = stage.queue.expired(0)
    assert stage.queue.tick(0, hold=True).held_back
    assert stage.queue.expired(0) == []
    with unchanged(stage.broker):
        assert stage.queue.take_over(found, "heir") == []
    stage.wait(LEASE - 1)
    assert stage.queue.tick(0).held_back
    stage.wait(1)
    assert not stage.queue.tick(0).held_back
    assert [job.id for job in stage.queue.expired(0)] == ["a"]


def test_another_run_of_redis_arms_the_hold(stage: Stage) -> None:
    assert not stage.queue.tick(0).held_back
    stage.broker.client.hset(stage.key("meta"), "run_id", "of another life")
    assert stage.queue.tick(0).held_back
    stage.wait(LEASE)
    assert not stage.queue.tick(0).held_back


def test_a_large_step_back_of_the_clock_arms_the_hold(stage: Stage) -> None:
    stage.put("a", at=-100_000)
    stage.take()
    stage.wait(-LEASE - 1)
    assert stage.queue.tick(0).held_back


@pytest.mark.parametrize("step", [-1, -5000, -LEASE])
def test_a_small_step_back_is_not_seen_at_all(stage: Stage, step: int) -> None:
    stage.put("a")
    stage.wait(step)
    tick = stage.queue.tick(0)
    assert (tick.now_ms, tick.held_back) == (T0, False)
    assert [job.id for job in stage.take()] == ["a"]


def test_all_leases_of_a_worker_are_found_over_all_shards(clocked: Broker) -> None:
    stage = Stage(clocked, shards=3)
    stage.queue.schedule_many(NewJob(f"j{n}", "work") for n in range(700))
    mine = [job.id for number in range(3) for job in stage.take(250, number=number, worker="dead")]
    for number in range(3):
        stage.take(250, number=number, worker="alive")
    assert len(mine) > 600
    assert sorted(job.id for job in held_by(stage.queue, "dead")) == sorted(mine)


def test_old_requests_are_forgotten_by_ticks(stage: Stage) -> None:
    for number in range(40):
        stage.put(f"j{number}")
    assert stage.broker.client.llen(stage.key("window")) == 40
    stage.wait(119_999)
    stage.queue.tick(0)
    assert stage.broker.client.llen(stage.key("window")) == 40
    stage.wait(1)
    stage.queue.tick(0)
    assert stage.broker.client.llen(stage.key("window")) == 0
    assert stage.broker.client.hlen(stage.key("reply")) == 0


def test_a_busy_shard_forgets_old_requests_by_itself(stage: Stage) -> None:
    for number in range(300):
        stage.put("a", at=number)
        stage.wait(1000)
    assert stage.broker.client.llen(stage.key("window")) < 160


def test_a_worker_that_announces_itself_is_known_until_it_is_forgotten(broker: Broker) -> None:
    now = broker.announce("w:1", {"threads": 5}).now_ms
    assert broker.workers() == [{"name": "w:1", "seen_ms": int(now), "threads": 5}]
    assert abs(broker.now_ms() - now) < 5000
    broker.forget("w:1")
    assert broker.workers() == []
