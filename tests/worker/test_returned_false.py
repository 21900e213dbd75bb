"""Handlers that return ``False``, and the past of a job as its handler sees it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, Release
from tests.support.worker_stage import places, put, registry_of, run_dry


@pytest.mark.parametrize("value", [False, None, 0, ""])
def test_every_return_is_a_success_unless_the_task_says_otherwise(broker: Broker, value: object) -> None:
    put(broker, "work", id="x")
    run_dry(broker, registry_of(work := _returning(value)))
    assert places(broker) == {} and work.ran == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_false_is_a_retry_where_the_task_wants_it(broker: Broker, is_async: bool) -> None:
    """delayedQueue: a handler that returns false is tried again."""
    answers = [False, False, True, 0]

    def work() -> Any:
        return answers.pop(0)

    async def later() -> Any:
        return answers.pop(0)

    later.__name__ = "work"
    put(broker, "work", id="x")
    run_dry(broker, registry_of(later if is_async else work, retry_on_false=True, retry_in=0))
    assert answers == [0] and places(broker) == {}


def test_the_last_false_buries_the_job(broker: Broker) -> None:
    def work() -> bool:
        return False

    put(broker, "work", id="x")
    run_dry(broker, registry_of(work, retry_on_false=True, max_attempts=2, retry_in=0))
    (view,) = broker.inspector.page("default", "morgue").jobs
    assert (view.reason, view.job.failures, view.error_class) == ("exhausted", 2, "django_delayq.core.errors.Retry")
    assert "the handler returned False" in view.error["message"]


def test_a_handler_knows_how_often_it_was_released_and_when_it_was_scheduled(broker: Broker) -> None:
    seen: list[tuple[int, int, float]] = []

    def work() -> None:
        job = current_job()
        assert job is not None and job.created is not None
        seen.append((job.attempt, job.releases, job.created.timestamp()))
        if len(seen) == 1:
            raise Release(delay=0)
        if len(seen) == 2:
            raise ValueError

    before = time.time()
    put(broker, "work", id="x")
    run_dry(broker, registry_of(work, retry_in=0))
    assert [(attempt, releases) for attempt, releases, _ in seen] == [(1, 0), (1, 1), (2, 1)]
    assert len({created for *_, created in seen}) == 1 and before - 0.01 <= seen[0][2] <= time.time()


def _returning(value: object) -> Any:
    def work() -> object:
        work.ran = getattr(work, "ran", 0) + 1  # type: ignore[attr-defined]
        return value

    return work
