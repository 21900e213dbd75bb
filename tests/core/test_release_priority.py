"""Change of a job's priority when it is released."""

from __future__ import annotations

import pytest

from .stage import Stage


def order(stage: Stage) -> list[str]:
    return [job.id for job in stage.take()]


def test_a_released_job_has_the_priority_that_was_asked_for(stage: Stage) -> None:
    for ident in "abc":
        stage.put(ident)
    a, b, c = stage.take()
    stage.released(c, priority=0)
    stage.released(a, 5, priority=7)
    stage.released(b)
    assert stage.picture() == {"waiting": ["c +0 p0", "b +0", "a +5 p7"]}
    stage.wait(5)
    assert order(stage) == ["c", "b", "a"]


def test_it_keeps_it_over_a_failure_and_in_the_morgue(stage: Stage) -> None:
    stage.put("a", args=b"[1]")
    stage.released(stage.take_one(), priority=1)
    job = stage.take_one()
    assert (job.priority, job.args, job.reserves) == (1, b"[1]", 2)
    stage.failed(job)
    stage.buried(stage.take_one())
    view = stage.broker.inspector.get("q", "a")
    assert view is not None
    assert view.job.priority == 1


@pytest.mark.parametrize("priority", [0, 7])
def test_a_merged_job_keeps_its_payloads(stage: Stage, priority: int) -> None:
    stage.add("m", b"1", "1")
    stage.add("m", b"2", "2")
    stage.released(stage.take_one(), priority=priority)
    assert stage.picture() == {"waiting": [f"m +0 p{priority}"], "payloads": ["m: 1 2"]}


def test_of_a_merged_job_newer_content_says_the_priority(stage: Stage) -> None:
    stage.add("m", b"1", "1")
    job = stage.take_one()
    stage.add("m", b"2", "2", priority=2)
    stage.released(job, priority=7)
    assert stage.picture() == {"waiting": ["m +0 p2"], "payloads": ["m: 1 2"]}


def test_a_holder_that_lost_its_lease_changes_no_priority(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.released(job)
    assert not stage.released(job, priority=0)
    assert stage.picture() == {"waiting": ["a +0"]}
