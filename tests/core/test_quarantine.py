"""Quarantined jobs: in a separate set, from which jobs are reserved only on request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_delayq.core import Job, ack, fail
from tests.support.core_stored import check_stored

from .bulk_stage import Part, cancel_all, read_entries, read_jobs, run_all_now, search
from .stage import LEASE, Stage


def suspect(stage: Stage, ident: str, *, delay_ms: int = 0, **options: object) -> Job:
    """Schedule a job and let its process die during the attempt."""
    stage.put(ident, **options)
    (job,) = stage.batch(which="others").jobs
    assert stage.failed(job, delay_ms, outcome="crashed", quarantine=True)
    return job


def reserved(stage: Stage, which: str, n: int = 10) -> list[str]:
    return [job.id for job in stage.batch(n, which=which).jobs]


def test_a_job_in_quarantine_is_handed_out_to_those_who_ask_for_it_only(stage: Stage) -> None:
    suspect(stage, "suspect")
    stage.put("other")
    assert reserved(stage, "others") == ["other"]
    assert reserved(stage, "others") == []
    assert reserved(stage, "quarantined") == ["suspect"]


def test_who_serves_all_gets_the_quarantined_ones_last(stage: Stage) -> None:
    suspect(stage, "suspect", priority=0)
    stage.put("last", priority=7)
    assert reserved(stage, "all") == ["last", "suspect"]


def test_an_ack_with_a_reserve_serves_the_same_jobs_as_a_reserve(stage: Stage) -> None:
    suspect(stage, "suspect")
    stage.put("first")
    held = stage.batch(1, which="others").jobs
    stage.put("second")
    _, batch = stage.queue.settle_reserve(0, [ack(held[0], 1, 2)], 10, worker="w", which="others")
    assert [job.id for job in batch.jobs] == ["second"] and batch.quarantine_due_ms == 0
    _, batch = stage.queue.settle_reserve(0, [ack(batch.jobs[0], 1, 2)], 10, worker="w", which="quarantined")
    assert [job.id for job in batch.jobs] == ["suspect"]


def test_a_job_in_quarantine_is_never_early(stage: Stage) -> None:
    suspect(stage, "suspect", delay_ms=500)
    batch = stage.batch(which="quarantined")
    assert (batch.jobs, batch.next_due_ms) == ([], 500)
    stage.wait(500)
    assert reserved(stage, "quarantined") == ["suspect"]


def test_a_reserve_of_the_others_says_how_long_quarantined_ones_are_overdue(stage: Stage) -> None:
    assert stage.batch(which="others").quarantine_due_ms is None
    suspect(stage, "suspect", delay_ms=500)
    batch = stage.batch(which="others")
    assert (batch.quarantine_due_ms, batch.next_due_ms) == (500, None)
    stage.wait(3_000)
    assert stage.batch(which="others").quarantine_due_ms == -2_500
    assert stage.batch(0, which="all").quarantine_due_ms is None


def test_quarantined_jobs_are_counted_and_do_not_make_the_queue_lag(stage: Stage) -> None:
    suspect(stage, "suspect")
    stage.wait(73_000)
    stage.put("later", at=90_000)
    counts = stage.broker.inspector.counts("q")
    assert (counts.ready, counts.delayed, counts.quarantine, counts.lag_seconds) == (1, 1, 1, 0)


@pytest.mark.one_server("a channel keeps no tokens")
def test_a_crash_wakes_somebody_who_sees_that_a_job_waits_for_quarantine(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.broker.client.delete(f"{stage.broker.prefix}:wake:q")
    stage.failed(job, outcome="crashed", quarantine=True)
    assert stage.wake_list() == [b"0"]


@pytest.mark.one_server("a channel keeps no tokens")
def test_who_takes_quarantined_jobs_leaves_the_wake_tokens_alone(stage: Stage) -> None:
    suspect(stage, "suspect")
    stage.broker.client.delete(f"{stage.broker.prefix}:wake:q")
    stage.put("other")
    assert stage.wake_list() == [b"0"]
    assert reserved(stage, "quarantined") == ["suspect"]
    assert stage.wake_list() == [b"0"]


@pytest.mark.parametrize("end", ["failed", "released", "buried"])
def test_the_end_of_a_run_decides_anew_about_quarantine(stage: Stage, end: str) -> None:
    suspect(stage, "a")
    (job,) = stage.batch(which="quarantined").jobs
    if end == "failed":
        stage.failed(job)
    elif end == "released":
        stage.released(job, quarantine=False)
    else:
        stage.buried(job)
        assert stage.queue.kick("a") == "kicked"
    assert reserved(stage, "others") == ["a"]


def test_a_job_that_is_given_back_without_a_word_waits_for_quarantine_again(stage: Stage) -> None:
    suspect(stage, "a", priority=0)
    stage.released(stage.batch(which="quarantined").jobs[0], priority=7)
    assert reserved(stage, "others") == []
    (job,) = stage.batch(which="quarantined").jobs
    assert (job.quarantined, job.priority) == (True, 7)
    stage.failed(job)
    assert [job.priority for job in stage.take()] == [7]


def test_what_takes_the_place_of_a_quarantined_job_is_free_and_what_unites_with_it_is_not(stage: Stage) -> None:
    suspect(stage, "new")
    suspect(stage, "kept")
    stage.put("new", priority=1)
    stage.put("kept", priority=1, reset_retries=False)
    assert reserved(stage, "others") == ["new"]
    assert reserved(stage, "quarantined") == ["kept"]


def test_a_payload_that_comes_for_a_quarantined_job_waits_with_it(stage: Stage) -> None:
    stage.add("m", b"p")
    stage.failed(stage.take_one(), outcome="crashed", quarantine=True)
    stage.add("m", b"q", "1", priority=2)
    assert reserved(stage, "others") == []
    (job,) = stage.batch(which="quarantined").jobs
    assert ([payload.data for payload in job.payloads], job.priority) == ([b"p", b"q"], 2)


def test_the_payloads_that_did_not_fit_into_a_buried_run_are_not_quarantined(stage: Stage) -> None:
    stage.add("m", b"p")
    stage.add("m", b"q", "1")
    stage.failed(stage.take_one(), outcome="crashed", quarantine=True)
    (job,) = stage.batch(which="quarantined").jobs
    (settlement,) = [replace(fail(job, 1, 2, delay_ms=0), verb="bury", outcome="exhausted", oldest=True)]
    assert stage.settle(settlement) == [True]
    (rest,) = stage.batch(which="others").jobs
    assert [payload.data for payload in rest.payloads] == [b"q"]


def test_a_paused_queue_hands_out_no_quarantined_jobs_either(stage: Stage) -> None:
    suspect(stage, "a")
    stage.broker.pause("q", "out")
    assert reserved(stage, "quarantined") == []
    assert stage.batch(which="others").quarantine_due_ms is None


def test_everything_that_is_done_with_waiting_jobs_finds_the_quarantined_ones(stage: Stage) -> None:
    job = suspect(stage, "a", delay_ms=5_000, args=b'["needle"]', priority=2)
    inspector, part = stage.broker.inspector, Part("q", 0, "waiting")
    assert [view.id for view in inspector.page("q", "waiting").jobs] == ["a"]
    view = inspector.get("q", "a")
    assert view is not None and (view.state, view.job.quarantined) == ("delayed", True)
    assert [found.id for found in search(stage.broker, "needle", places=("waiting",))] == ["a"]
    assert [columns["id"] for columns in read_jobs(stage.broker, part)] == [["a"]]
    assert [entries.idents() for entries in read_entries(stage.broker, part)] == [["a"]]
    assert check_stored(stage.broker).violations == []
    assert stage.queue.reschedule("a", delay_ms=9_000)
    assert stage.picture()["waiting"] == ["a +9000 quarantined"]
    assert run_all_now(stage.queue) == {"moved": 1}
    assert stage.picture()["waiting"] == ["a +0 quarantined"]
    assert stage.queue.reserve_id("a", worker="w").jobs[0].key == job.key
    suspect(stage, "b")
    assert cancel_all(stage.queue) == {"cancelled": 1}
    suspect(stage, "c")
    assert stage.queue.cancel("c") == "cancelled"
    assert stage.picture()["reserved"] == [f"a by w until +{LEASE} quarantined"]


def test_a_quarantined_job_in_a_wrong_place_is_found_and_mended(stage: Stage) -> None:
    suspect(stage, "a")
    stage.broker.client.zrem(stage.key("quarantine"), "a")
    stage.broker.client.zadd(stage.key("due.4"), {"a": 5})
    assert "wrong priority class" in check_stored(stage.broker, repair=True).violations[0]
    assert check_stored(stage.broker).violations == []
    assert reserved(stage, "quarantined") == ["a"]


def test_an_undecodable_job_that_was_in_quarantine_comes_back_from_the_morgue_as_any_other(stage: Stage) -> None:
    suspect(stage, "a")
    (job,) = stage.batch(which="quarantined").jobs
    assert stage.buried(job, "undecodable", outcome="undecodable")
    assert stage.queue.kick("a") == "kicked"
    assert reserved(stage, "others") == ["a"]
