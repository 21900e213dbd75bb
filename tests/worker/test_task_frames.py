"""Tracebacks of failed attempts: they begin with the task's own code, in the log, the morgue and the error tracker."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempt_stage import Attempt, AttemptLog, decode_args, execute, make_job
from tests.support.worker_stage import Hooks


def inner() -> None:
    raise ValueError("no")


def plain() -> None:
    inner()


async def coroutine() -> None:
    inner()


def broken_call() -> None:
    decode_args(b"\xff")


def names(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def run(function: Callable[..., Any], **options: Any) -> tuple[list[str], str]:
    """Return the names of the frames that the error tracker gets, and the stored traceback."""
    reported: list[list[str]] = []
    attempt = execute(
        function, max_attempts=2, hooks=Hooks(report_error=lambda job, error: reported.append(names(error))), **options
    )
    assert attempt.settlement is not None
    (seen,) = reported
    return seen, json.loads(attempt.settlement.error)["traceback"]


@pytest.mark.parametrize("task", [plain, coroutine])
def test_a_traceback_begins_with_the_task(task: Callable[..., Any]) -> None:
    frames, stored = run(task)
    assert frames == [task.__name__, "inner"]
    assert stored.startswith(f'  File "{__file__}", line ') and stored.count("  File ") == 2


def test_the_log_has_the_same_frames(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        execute(plain, hooks=Hooks(log=AttemptLog()), job=make_job(), max_attempts=1)
    (record,) = caplog.records
    lines = (record.exc_text or "").splitlines()
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("  File ")] == ["plain", "inner"]


def timing(call: Any) -> Any:
    def timed(attempt: Attempt) -> Any:
        return call(attempt)

    return timed


def test_middlewares_of_the_project_are_kept() -> None:
    assert run(plain, middlewares=[timing, timing])[0] == ["timed", "timed", "_call_handler", "plain", "inner"]


def failing(call: Any) -> Any:
    def refuse(attempt: Attempt) -> Any:
        inner()

    return refuse


def test_a_middleware_that_fails_is_the_first_frame() -> None:
    assert run(plain, middlewares=[timing, failing])[0] == ["timed", "refuse", "inner"]


def test_frames_of_this_package_below_the_task_are_kept() -> None:
    frames, _ = run(broken_call)
    assert frames[:2] == ["broken_call", decode_args.__name__]


def owners(stored: str) -> str:
    """Return for each frame of a stored traceback "o" for our own code, "t" for that of this test."""
    files = re.findall(r'  File "([^"]+)"', stored)
    return "".join("t" if file == __file__ else "o" if "django_delayq" in Path(file).parts else "?" for file in files)


def test_an_error_in_the_workers_own_code_keeps_its_frames() -> None:
    _, stored = run(lambda: False, retry_on_false=True, middlewares=[timing])
    assert re.sub("(o+)", "o", owners(stored)) == "to", "the middleware, ours"
    frames, stored = run(plain, job=make_job(args=b"[1]"))
    assert "plain" not in frames and owners(stored)[-1] == "o"


def test_an_exception_whose_attributes_cannot_be_set_has_its_frames() -> None:
    class FrozenError(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

        def with_traceback(self, trace: object) -> FrozenError:
            raise AttributeError("with_traceback")

    def work() -> None:
        raise FrozenError

    assert run(work)[0] == ["work"]
