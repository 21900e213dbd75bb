"""Operators' repair of named failed jobs: only the generations that were displayed are changed."""

from __future__ import annotations

import pytest

from django_delayq.core import actions
from tests.support.core_values import new_key

from .bulk_stage import act_in_shard
from .stage import T0, Stage


def act(stage: Stage, wanted: list[tuple[str, bytes]], action: actions.Action) -> list[str]:
    return act_in_shard(stage.queue, 0, wanted, action)


def failed(stage: Stage, *idents: str, delay_ms: int = 60_000) -> list[tuple[str, bytes]]:
    """Create jobs that failed once; return their ids and keys."""
    for ident in idents:
        stage.put(ident)
    jobs = stage.take()
    for job in jobs:
        assert stage.failed(job, delay_ms)
    return sorted((job.id, job.key) for job in jobs)


def test_those_that_wait_are_due_now_and_the_others_are_told_apart(stage: Stage) -> None:
    a, b, c, d = failed(stage, "a", "b", "c", "d")
    stage.queue.reserve_id("b", worker="w", early=True)
    stage.queue.cancel("c")
    stage.put("never")
    stage.wait(1000)
    wanted = [a, b, c, (d[0], new_key()), ("never", new_key()), ("nobody", new_key())]
    assert act(stage, wanted, actions.retry_failed()) == ["retried", "running", "gone", "gone", "gone", "gone"]
    assert stage.picture() == {
        "waiting": ["never +0", "a +1000", "d +60000"],
        "reserved": ["b by w until +15000"],
        "failed": ["a x1", "b x1", "d x1"],
    }


def test_a_delay_counts_from_now_and_an_overdue_job_keeps_its_place_without_one(stage: Stage) -> None:
    a, b = failed(stage, "a", "b", delay_ms=0)
    stage.wait(5000)
    assert act(stage, [a], actions.retry_failed()) == ["retried"]
    assert act(stage, [b], actions.retry_failed(7000)) == ["retried"]
    assert stage.picture()["waiting"] == ["a +0", "b +12000"]


def test_a_job_that_never_failed_is_none_of_those_that_are_meant(stage: Stage) -> None:
    key = new_key()
    stage.put("a", at=9000, key=key)
    assert act(stage, [("a", key)], actions.retry_failed()) == ["gone"]
    assert act(stage, [("a", key)], actions.delete_failed()) == ["gone"]
    assert stage.picture() == {"waiting": ["a +9000"]}


@pytest.mark.one_server("a cluster wakes by a channel, not by a list")
def test_the_workers_are_woken(stage: Stage) -> None:
    (a,) = failed(stage, "a")
    stage.broker.client.delete(f"{stage.broker.prefix}:wake:q")
    act(stage, [a], actions.retry_failed())
    assert stage.wake_list()


@pytest.mark.parametrize(
    ("action", "word", "morgue"),
    [(actions.delete_failed(), "discarded", []), (actions.kill_failed(), "buried", ["a buried"])],
)
def test_those_that_wait_are_taken_out(stage: Stage, action: actions.Action, word: str, morgue: list[str]) -> None:
    a, b, c, d = failed(stage, "a", "b", "c", "d")
    stage.queue.reserve_id("b", worker="w", early=True)
    stage.queue.cancel("c")
    wanted = [a, b, c, (d[0], new_key())]
    assert act(stage, wanted, action) == [word, "running", "gone", "gone"]
    picture = stage.picture()
    assert picture["waiting"] == ["d +60000"]
    assert picture["reserved"] == ["b by w until +15000"]
    assert picture.get("morgue", []) == morgue


def test_a_job_that_is_killed_has_the_due_time_at_which_it_waited(stage: Stage) -> None:
    (a,) = failed(stage, "a")
    assert act(stage, [a], actions.kill_failed()) == ["buried"]
    (view,) = stage.broker.inspector.page("q", "morgue").jobs
    assert view.due_ms == T0 + 60_000


@pytest.mark.parametrize("action", [actions.kill_failed(), actions.delete_failed()])
def test_a_later_generation_that_failed_too_is_left_alone(stage: Stage, action: actions.Action) -> None:
    (a,) = failed(stage, "a")
    stage.queue.cancel("a")
    stage.wait(10)
    failed(stage, "a")
    assert act(stage, [a], action) == ["gone"]
    assert stage.picture()["failed"] == ["a x1"]


@pytest.mark.parametrize("action", [actions.kill_failed(), actions.delete_failed(), actions.retry_failed()])
def test_content_gated_behind_a_failed_job_is_not_meant_by_its_key(stage: Stage, action: actions.Action) -> None:
    (a,) = failed(stage, "a")
    stage.queue.reserve_id("a", worker="w", early=True)
    behind = new_key()
    stage.put("a", at=90_000, key=behind)
    assert act(stage, [a, ("a", behind)], action) == ["running", "gone"]
    assert stage.picture()["gated"] == ["a +90000"]


def test_any_number_goes_through_in_chunks(stage: Stage) -> None:
    wanted = []
    for first in range(0, 600, 100):
        wanted += failed(stage, *[f"{n:03}" for n in range(first, first + 100)])
    assert act(stage, wanted, actions.retry_failed()) == ["retried"] * 600
    assert act(stage, wanted, actions.delete_failed()) == ["discarded"] * 600
    assert stage.picture() == {}
    assert stage.us == T0 * 1000
