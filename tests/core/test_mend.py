"""Operators' repair of named failed jobs: only the generations that were displayed are changed."""

from __future__ import annotations

import pytest

from django_delayq.core.job import new_key
from django_delayq.core.operations.mend import end_failed, retry_failed

from .stage import T0, Stage


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
    assert retry_failed(stage.queue, 0, wanted) == ["retried", "running", "gone", "gone", "gone", "gone"]
    assert stage.picture() == {
        "waiting": ["never +0", "a +1000", "d +60000"],
        "reserved": ["b by w until +15000"],
        "failed": ["a x1", "b x1", "d x1"],
    }


def test_a_delay_counts_from_now_and_an_overdue_job_keeps_its_place_without_one(stage: Stage) -> None:
    a, b = failed(stage, "a", "b", delay_ms=0)
    stage.wait(5000)
    assert retry_failed(stage.queue, 0, [a]) == ["retried"]
    assert retry_failed(stage.queue, 0, [b], delay_ms=7000) == ["retried"]
    assert stage.picture()["waiting"] == ["a +0", "b +12000"]


def test_a_job_that_never_failed_is_none_of_those_that_are_meant(stage: Stage) -> None:
    key = new_key()
    stage.put("a", at=9000, key=key)
    assert retry_failed(stage.queue, 0, [("a", key)]) == ["gone"]
    assert end_failed(stage.queue, 0, [("a", key)], "delete") == ["gone"]
    assert stage.picture() == {"waiting": ["a +9000"]}


@pytest.mark.one_server("a cluster wakes by a channel, not by a list")
def test_the_workers_are_woken(stage: Stage) -> None:
    (a,) = failed(stage, "a")
    stage.broker.client.delete(f"{stage.broker.prefix}:wake:q")
    retry_failed(stage.queue, 0, [a])
    assert stage.wake_list()


@pytest.mark.parametrize(("verb", "word", "morgue"), [("delete", "discarded", []), ("kill", "buried", ["a killed"])])
def test_those_that_wait_are_taken_out(stage: Stage, verb: str, word: str, morgue: list[str]) -> None:
    a, b, c, d = failed(stage, "a", "b", "c", "d")
    stage.queue.reserve_id("b", worker="w", early=True)
    stage.queue.cancel("c")
    wanted = [a, b, c, (d[0], new_key())]
    assert end_failed(stage.queue, 0, wanted, verb) == [word, "running", "gone", "gone"]
    picture = stage.picture()
    assert picture["waiting"] == ["d +60000"]
    assert picture["reserved"] == ["b by w until +15000"]
    assert picture.get("morgue", []) == morgue


def test_one_that_fails_between_the_look_and_the_act_is_left_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = failed(stage, "a")
    views = stage.broker.inspector.views

    def slow(*args: object) -> object:
        found = list(views(*args))  # type: ignore[arg-type]
        stage.queue.cancel("a")
        stage.wait(10)
        failed(stage, "a")
        return iter(found)

    monkeypatch.setattr(stage.broker.inspector, "views", slow)
    assert end_failed(stage.queue, 0, [a], "delete") == ["running"]
    assert stage.picture()["failed"] == ["a x1"]


def test_any_number_goes_through_in_chunks(stage: Stage) -> None:
    wanted = []
    for first in range(0, 600, 100):
        wanted += failed(stage, *[f"{n:03}" for n in range(first, first + 100)])
    assert retry_failed(stage.queue, 0, wanted) == ["retried"] * 600
    assert end_failed(stage.queue, 0, wanted, "delete") == ["discarded"] * 600
    assert stage.picture() == {}
    assert stage.us == T0 * 1000
