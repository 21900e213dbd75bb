"""Jobs of dead holders: taken over by another holder, or recorded as begun although they were acked."""

from __future__ import annotations

import pytest

from django_delayq.core import Job, Settlement
from tests.support.core_stored import pack, unpack_fields
from tests.support.core_values import STARTED, new_key

from .events_stage import read_events
from .stage import LEASE, T0, Stage
from .world import unchanged


def early(stage: Stage, *jobs: Job) -> list[bool]:
    return stage.settle(*(Settlement(job, verb="ack_early", event=False) for job in jobs))


def record(job: Job, outcome: str = "succeeded", *, once: bool = False) -> Settlement:
    return Settlement(job, T0, 12, verb="record", outcome=outcome, once=once)


# --- a job in the place of its holder


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_who_takes_a_job_over_holds_it_as_its_holder_did(stage: Stage, merged: bool, started: bool) -> None:
    stage.add("a", b"p") if merged else stage.put("a", args=b"[1]", options=b"{}")
    job = stage.take_one()
    stage.queue.touch([job], {(job.id, job.token)} if started else ())
    stage.wait(LEASE)
    (taken,) = stage.take_lost()
    assert taken.token > job.token
    flags = STARTED if started else 0
    assert (taken.worker, taken.flags, taken.reserves, taken.payloads) == ("w", flags, 1, job.payloads)
    assert (taken.id, taken.key, taken.args, taken.options_json) == ("a", job.key, job.args, job.options_json)
    assert stage.picture()["reserved"] == [f"a by heir until {2 * LEASE:+d}{' started' if started else ''}"]
    with unchanged(stage.broker):
        assert stage.done(job) == [False]
        assert stage.queue.touch([job]) == ["lost"]
    assert stage.done(taken) == [True]


def test_of_two_who_want_a_job_one_gets_it(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.wait(LEASE)
    assert stage.queue.take_over([job], "heir")
    with unchanged(stage.broker):
        assert stage.queue.take_over([job], "heir") == []


def test_a_lease_that_is_not_over_or_held_back_is_not_taken_over(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    with unchanged(stage.broker):
        assert stage.queue.take_over([job], "heir") == []
    stage.wait(LEASE)
    stage.queue.tick(0, hold=True)
    with unchanged(stage.broker):
        assert stage.queue.take_over([job], "heir") == []
    stage.wait(LEASE)
    assert stage.queue.take_over([job], "heir")


def test_a_take_over_that_is_sent_again_gives_the_same_job(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.wait(LEASE)
    held = pack([(job.id, job.token)])
    replies = [stage.queue.call("take_over", 0, held, b"heir", request=b"r" * 16) for _ in range(2)]
    first, second = map(unpack_fields, replies)
    assert (first["token"], first["ids"]) == (second["token"], second["ids"]) and first["ids"] == (b"a",)


# --- jobs that are acked before they begin


def test_of_an_early_ack_the_run_stays_until_its_end(stage: Stage) -> None:
    stage.put("a", args=b"[1]")
    job = stage.take_one(worker="w1")
    assert early(stage, job, job) == [True, False]
    assert (stage.picture(), stage.counters()) == ({}, {"created": 1, "reserved": 1, "late": 1})
    (run,) = stage.queue.begun(0)
    assert (run.id, run.key, run.args, run.token, run.worker) == ("a", job.key, b"[1]", job.token, "w1")
    assert (run.deadline_ms, stage.queue.begun(0, "w2"), stage.queue.tick(0).begun) == (T0, [], 1)
    assert stage.settle(record(job)) == [True]
    assert stage.queue.begun(0) == [] and stage.shard_is_empty()
    assert stage.counters()["acked"] == 1
    assert [event.outcome for event in read_events(stage.broker, "q", 0)] == ["succeeded"]


def test_the_payloads_of_an_early_run_are_known_too(stage: Stage) -> None:
    stage.add("a", b"p", "1")
    stage.add("a", b"q", "2")
    job = stage.take_one()
    stage.add("a", b"later", "3")
    assert early(stage, job) == [True]
    (run,) = stage.queue.begun(0)
    assert [payload.data for payload in run.payloads] == [b"p", b"q"]
    assert stage.picture() == {"waiting": ["a +0"], "payloads": ["a: later"]}


def test_an_end_that_others_find_counts_once_and_not_beside_the_runs_own(stage: Stage) -> None:
    for ident in ("lost", "ended"):
        stage.put(ident)
    jobs = {job.id: job for job in stage.take()}
    early(stage, *jobs.values())
    assert stage.settle(record(jobs["ended"], "failed")) == [True]
    crashes = [record(job, "crashed", once=True) for job in jobs.values()]
    assert sorted(stage.settle(*crashes)) == [False, True]
    assert stage.settle(*crashes) == [False, False]
    assert {name: stage.counters().get(name, 0) for name in ("acked", "failed", "crashed")} == {
        "acked": 0,
        "failed": 1,
        "crashed": 1,
    }
    found = [(event.id, event.outcome) for event in read_events(stage.broker, "q", 0)]
    assert found == [("ended", "failed"), ("lost", "crashed")]


def test_two_runs_of_one_id_are_told_apart(stage: Stage) -> None:
    stage.put("a")
    first = stage.take_one()
    early(stage, first)
    stage.put("a")
    second = stage.take_one()
    early(stage, second)
    assert stage.settle(record(first, "crashed", once=True)) == [True]
    assert [run.token for run in stage.queue.begun(0)] == [second.token]


def test_an_early_ack_marks_the_end_of_a_durable_job(stage: Stage) -> None:
    key = new_key(durable=True)
    stage.put("a", key=key)
    early(stage, stage.take_one())
    assert stage.taken_marks() == {key: "done"}
