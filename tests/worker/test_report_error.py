"""The hook ``report_error``: every counted failure reaches the error tracker with task, id and attempt."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from django_delayq.core import Release
from tests.support.attempt_stage import execute, make_job
from tests.support.worker_stage import Hooks


def fail() -> None:
    raise ValueError("no")


def test_every_failure_is_reported_with_task_id_and_attempt() -> None:
    reported: list[Any] = []

    def report(job: Any, error: BaseException) -> None:
        reported.append((job.task, job.id, job.attempt, str(error)))

    for failures in (0, 1, 2):
        job = make_job(id=f"job-{failures}", failures=failures)
        execute(fail, job=job, max_attempts=3, hooks=Hooks(report_error=report))
    task = reported[0][0]
    assert reported == [(task, f"job-{n}", n + 1, "no") for n in range(3)] and task


@pytest.mark.parametrize("error", [None, Release()])
def test_what_is_no_failure_is_not_reported(error: BaseException | None) -> None:
    reported: list[Any] = []

    def work() -> None:
        if error is not None:
            raise error

    execute(work, hooks=Hooks(report_error=lambda job, error: reported.append(job)))
    assert reported == []


def test_an_async_hook_is_awaited() -> None:
    reported: list[str] = []

    async def report(job: Any, error: BaseException) -> None:
        reported.append(str(error))

    execute(fail, hooks=Hooks(report_error=report))  # type: ignore[arg-type]
    assert reported == ["no"]


def test_a_tracker_that_is_down_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def report(job: Any, error: BaseException) -> None:
        raise OSError("the tracker is down")

    with caplog.at_level(logging.ERROR):
        run = execute(fail, max_attempts=2, hooks=Hooks(report_error=report))
    assert run.settlement and run.settlement.verb == "fail"
    assert "report_error of task" in caplog.text and "the tracker is down" in caplog.text
