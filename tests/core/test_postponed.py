"""Postponed jobs, released because their attempt could not begin: their records, and how long these are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_delayq.core import Job, release
from tests.support.core_values import POSTPONED

from .stage import T0, Stage


def postpone(stage: Stage, job: Job, reason: str = "no database", delay_ms: int = 1_000) -> Job:
    """Release the job, wait until it is due again, reserve it and return it."""
    assert stage.settle(release(job, delay_ms=delay_ms, reason=reason, postpone=True)) == [True]
    stage.wait(delay_ms)
    return stage.take_one()


def remembered(job: Job) -> tuple[str, int, int]:
    """Return reason and start of the postponement, and the due time, of a reserved job."""
    return job.postponed_for, job.postponed_at_ms - T0 if job.postponed_at_ms else 0, job.due_ms - T0


def test_a_postponed_job_keeps_the_due_time_and_the_moment_at_which_it_was_postponed_first(stage: Stage) -> None:
    stage.put("a", at=10)
    stage.wait(500)
    job = stage.take_one()
    assert remembered(job) == ("", 0, 10)
    job = postpone(stage, job)
    assert remembered(job) == ("no database", 500, 10) and job.flags == POSTPONED
    job = postpone(stage, job, delay_ms=60_000)
    assert remembered(job) == ("no database", 500, 10)
    job = postpone(stage, job, "unknown task")
    assert remembered(job) == ("unknown task", 61_500, 10), "another reason counts from its own beginning"


def test_a_postponed_job_shows_the_time_at_which_it_comes_back_and_why_it_waits(stage: Stage) -> None:
    stage.put("a", at=0)
    stage.settle(release(stage.take_one(), delay_ms=2_000, reason="unknown task", postpone=True))
    view = stage.broker.inspector.get("q", "a")
    assert view is not None
    assert (view.state, view.due_ms - T0, view.job.postponed_for, view.job.postponed_at_ms) == (
        "delayed",
        2_000,
        "unknown task",
        T0,
    )


def test_a_postponed_job_that_somebody_moves_is_due_at_the_new_time(stage: Stage) -> None:
    stage.put("a", at=0)
    stage.settle(release(stage.take_one(), delay_ms=2_000, reason="unknown task", postpone=True))
    assert stage.queue.reschedule("a", due_ms=T0 + 5_000)
    stage.wait(6_000)
    assert remembered(stage.take_one()) == ("unknown task", 0, 5_000)


def test_a_postponed_job_that_is_given_back_unbegun_keeps_its_due_time_and_what_it_remembers(stage: Stage) -> None:
    """A worker that stops gives it back at its old place."""
    stage.put("a", at=0)
    job = postpone(stage, stage.take_one())
    assert stage.released(job)
    assert stage.picture()["waiting"] == ["a +0"]
    job = stage.take_one()
    assert job.postponed_at_ms == T0 and (job.postponed_for, job.due_ms) == ("no database", T0)
    assert stage.released(job, 3_000, reason="reserved, but the reply was lost")
    assert stage.picture()["waiting"] == ["a +4000"]
    stage.wait(3_000)
    assert postpone(stage, stage.take_one()).postponed_at_ms == job.postponed_at_ms


def fail(stage: Stage, job: Job) -> None:
    stage.failed(job, error=b'{"message":"no"}')


def give_back(stage: Stage, job: Job) -> None:
    stage.released(job, delay_ms=0, began=True)


def replace_content(stage: Stage, job: Job) -> None:
    stage.settle(release(job, delay_ms=0, reason="unknown task", postpone=True))
    stage.put("a", at=0)


@pytest.mark.parametrize("end", [fail, give_back, replace_content])
def test_a_run_its_release_or_new_content_ends_the_postponement(
    stage: Stage, end: Callable[[Stage, Job], None]
) -> None:
    stage.put("a", at=0)
    end(stage, postpone(stage, stage.take_one()))
    job = stage.take_one()
    assert (job.flags, job.postponed_for, job.postponed_at_ms) == (0, "", 0)
    view = stage.broker.inspector.get("q", "a")
    assert view is not None and (view.error.get("message") == "no") == (end is fail)


def test_a_postponed_merged_job_comes_back_with_all_its_payloads_and_what_came_meanwhile(stage: Stage) -> None:
    stage.add("m", b"1", at=0)
    job = stage.take_one()
    stage.add("m", b"2", "1", at=90_000)
    job = postpone(stage, job)
    assert remembered(job) == ("no database", 0, 0)
    assert [payload.data for payload in job.payloads] == [b"1", b"2"]


def test_a_call_that_is_sent_again_gets_the_same_postponed_jobs(stage: Stage) -> None:
    stage.put("a", at=0)
    stage.settle(release(stage.take_one(), delay_ms=0, reason="unknown task", postpone=True))
    first, again = (stage.batch(request=b"r" * 16).jobs for _ in range(2))
    assert first == again and remembered(again[0]) == ("unknown task", 0, 0)


def test_a_postponed_job_costs_its_neighbours_nothing(stage: Stage) -> None:
    """A job that was never postponed has a state without any of it; a new job has none."""
    stage.put("a", at=0)
    stage.put("b", at=0)
    stage.put("fresh", at=90_000)
    jobs = {job.id: job for job in stage.take(worker="w")}
    stage.settle(release(jobs["a"], delay_ms=0, reason="x", postpone=True), release(jobs["b"], delay_ms=0))
    states = stage.broker.client.hgetall(stage.key("state"))
    assert {ident: len(state) for ident, state in states.items()} == {b"a": 85, b"b": 12}
