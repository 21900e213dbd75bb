"""Parked jobs: due, but behind a limit of their task; every verb treats them as waiting ones."""

from __future__ import annotations

import pytest

from django_delayq.core import ack, fail
from tests.support.core_stored import Allowance, assert_invariants, check_stored

from .bulk_stage import (
    Part,
    cancel_action,
    cancel_all,
    kill_failed,
    read_entries,
    read_jobs,
    reschedule_action,
    run_all_now,
)
from .stage import Stage

NONE = [Allowance(("limited",), 0)]


def allowing(left: int) -> list[Allowance]:
    return [Allowance(("limited",), left)]


def parked(stage: Stage) -> list[str]:
    return [ident.decode() for ident in stage.broker.client.zrange(stage.key("parked"), 0, -1)]


def reserved(stage: Stage, n: int = 100, **options: object) -> list[str]:
    return [job.id for job in stage.batch(n, **options).jobs]


@pytest.fixture
def behind(stage: Stage) -> Stage:
    """Three parked jobs."""
    for ident in ("a", "b", "c"):
        stage.put(ident, task="limited")
    batch = stage.batch(allowances=NONE)
    assert (batch.jobs, batch.moved, batch.parked, batch.next_due_ms) == ([], 3, (3,), None)
    return stage


def test_a_job_beyond_the_allowance_is_parked_and_others_are_handed_out(stage: Stage) -> None:
    for number in range(600):
        stage.put(f"limited-{number}", task="limited", priority=0)
    stage.put("other")
    batch = stage.batch(10, allowances=allowing(2))
    assert [job.id for job in batch.jobs] == ["limited-0", "limited-1", "other"]
    assert (batch.moved, batch.parked) == (598, (598,))


def test_parked_jobs_come_back_in_the_order_of_their_classes_and_due_times(behind: Stage) -> None:
    behind.put("urgent", task="limited", priority=0)
    assert behind.batch(allowances=NONE).moved == 1
    assert reserved(behind, allowances=allowing(2)) == ["urgent", "a"]
    batch = behind.batch(allowances=allowing(1))
    assert ([job.id for job in batch.jobs], batch.parked) == (["b"], (1,))


def test_a_job_keeps_the_due_time_from_which_its_lateness_counts(behind: Stage) -> None:
    (before,) = [view.due_ms for view in [behind.broker.inspector.get("q", "a")] if view]
    behind.wait(5000)
    (job,) = behind.batch(1, allowances=allowing(1)).jobs
    assert job.due_ms == before
    assert not job.parked


def test_a_caller_without_limits_takes_parked_jobs(behind: Stage) -> None:
    assert reserved(behind) == ["a", "b", "c"]
    assert parked(behind) == []


def test_an_ack_with_a_reserve_hands_the_next_one_out(stage: Stage) -> None:
    stage.put("a", task="limited")
    stage.put("b", task="limited")
    (held,) = stage.batch(allowances=allowing(1)).jobs
    _, batch = stage.queue.settle_reserve(0, [ack(held, 1, 2)], 10, worker="w", allowances=allowing(1))
    assert ([job.id for job in batch.jobs], batch.parked) == (["b"], (0,))


def test_aliases_of_a_task_share_its_allowance(stage: Stage) -> None:
    stage.put("old", task="former")
    stage.put("new", task="limited")
    batch = stage.batch(allowances=[Allowance(("limited", "former"), 1)])
    assert ([job.id for job in batch.jobs], batch.parked) == (["old"], (1,))


def test_a_parked_job_is_cancelled(behind: Stage) -> None:
    assert cancel_action().anywhere(behind.queue, "b") == "cancelled"
    assert parked(behind) == ["a", "c"]
    assert cancel_all(behind.queue) == {"cancelled": 2}
    assert_invariants(behind.broker)


def test_a_parked_job_is_rescheduled_and_due_again_at_its_new_time(behind: Stage) -> None:
    assert reschedule_action(delay_ms=1000).anywhere(behind.queue, "a") == "moved"
    assert parked(behind) == ["b", "c"]
    assert behind.batch(allowances=NONE).next_due_ms == 1000
    behind.wait(1000)
    assert behind.batch(allowances=NONE).moved == 1
    assert run_all_now(behind.queue) == {}
    assert reserved(behind, allowances=allowing(3)) == ["b", "c", "a"]


def test_a_new_schedule_call_replaces_a_parked_job(behind: Stage) -> None:
    assert behind.put("a", task="limited", on_conflict="replace", due_policy="replace", delay_ms=500) == "replaced"
    assert parked(behind) == ["b", "c"]


def test_a_payload_joins_a_parked_merged_job(stage: Stage) -> None:
    stage.add("m", b"1", task="limited")
    assert stage.batch(allowances=NONE).moved == 1
    assert stage.add("m", b"2", "1", task="limited", priority=0) == "merged"
    (job,) = stage.batch(allowances=allowing(1)).jobs
    assert [payload.data for payload in job.payloads] == [b"1", b"2"]
    assert job.priority == 0


def test_a_parked_job_that_failed_is_killed_or_retried(behind: Stage) -> None:
    (job,) = behind.batch(1, allowances=allowing(1)).jobs
    assert behind.failed(job)
    assert behind.batch(allowances=NONE).moved == 1
    kill_failed(behind.queue)
    assert behind.broker.inspector.counts("q").morgue == 1
    assert parked(behind) == ["b", "c"]
    assert behind.queue.kick("a")
    assert reserved(behind) == ["b", "c", "a"]


def test_jobs_in_quarantine_are_parked_and_come_back_into_quarantine(stage: Stage) -> None:
    stage.put("suspect", task="limited")
    (job,) = stage.batch().jobs
    assert stage.settle(fail(job, 1, 2, delay_ms=0, outcome="crashed", quarantine=True)) == [True]
    batch = stage.batch(which="quarantined", allowances=NONE)
    assert (batch.jobs, batch.moved, batch.parked) == ([], 1, (1,))
    # An ordinary process brings it back, so that it is overdue and a process for it starts.
    batch = stage.batch(which="others", allowances=allowing(1))
    assert (batch.jobs, batch.quarantine_due_ms) == ([], 0)
    assert reserved(stage, which="quarantined", allowances=allowing(1)) == ["suspect"]


def test_parked_jobs_are_seen_everywhere_as_ready_ones(behind: Stage) -> None:
    counts = behind.broker.inspector.counts("q")
    assert (counts.ready, counts.delayed, counts.parked, counts.lag_seconds) == (3, 0, 3, 0.0)
    view = behind.broker.inspector.get("q", "a")
    assert view is not None and (view.state, view.job.parked) == ("ready", True)
    page = behind.broker.inspector.page("q", "waiting")
    assert [one.id for one in page.jobs] == ["a", "b", "c"]
    part = Part("q", 0, "waiting")
    assert [ident for some in read_jobs(behind.broker, part) for ident in some["id"]] == ["a", "b", "c"]
    assert [ident for some in read_entries(behind.broker, part) for ident in some.idents()] == ["a", "b", "c"]


def test_a_paused_queue_keeps_its_parked_jobs_and_wakes_a_consumer_at_its_end(behind: Stage) -> None:
    wake = behind.broker.wake_key("q")
    behind.broker.pause("q", "out")
    assert reserved(behind, allowances=allowing(3)) == []
    behind.broker.client.delete(wake)
    behind.broker.resume("q", "out")
    assert behind.broker.client.lrange(wake, 0, -1) == [b"0"]
    assert reserved(behind, allowances=allowing(3)) == ["a", "b", "c"]


def test_a_job_is_reserved_by_its_id_though_it_is_parked(behind: Stage) -> None:
    assert [job.id for job in behind.queue.reserve_id("b", worker="w").jobs] == ["b"]
    assert parked(behind) == ["a", "c"]
    assert_invariants(behind.broker)


def test_only_a_local_limit_wakes_another_consumer_for_what_was_parked(stage: Stage) -> None:
    wake = stage.broker.wake_key("q")
    for local in (False, True):
        stage.put(f"job-{local}", task="limited")
        stage.broker.client.delete(wake)
        stage.batch(allowances=[Allowance(("limited",), 0, local)])
        assert bool(stage.broker.client.exists(wake)) is local
        stage.batch(allowances=[Allowance(("limited",), 0, local)])
    assert stage.broker.client.llen(wake) <= 1


def test_a_tick_reports_that_jobs_are_parked_or_wait_for_quarantine(behind: Stage) -> None:
    tick = behind.queue.tick(0)
    assert (tick.next_due_ms, tick.set_aside) == (None, True)
    assert len(behind.take(10)) == 3
    assert not behind.queue.tick(0).set_aside


def test_fsck_finds_and_mends_a_parked_job_without_order(behind: Stage) -> None:
    behind.broker.client.zpopmin(behind.key("parked_order"))
    behind.broker.client.zadd(behind.key("parked_order"), {b"\1\0\5" + b"\0" * 8 + b"ghost": 0})
    report = check_stored(behind.broker, repair=True)
    assert {line.split(": ")[-1] for line in report.violations} >= {
        "parked job without order",
        "parked order without parked job",
    }
    assert_invariants(behind.broker)
    assert sorted(reserved(behind)) == ["a", "b", "c"]


def test_ten_thousand_limited_jobs_at_the_head_do_not_delay_another_task(stage: Stage) -> None:
    for number in range(10_000):
        stage.put(f"limited-{number}", task="limited", priority=0)

    def takes_one_call(ident: str) -> bool:
        stage.put(ident)
        return reserved(stage, 1, allowances=NONE) == [ident]

    assert [takes_one_call(f"other-{number}") for number in range(12)] == [True] * 12
    assert len(parked(stage)) == 10_000
