"""Log lines of attempts: a failure's message in one line, the traceback once the job is given up, no secrets."""

from __future__ import annotations

import io
import json
import logging
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core import Bury, Release, Retry
from django_delayq.logs import JsonFormatter
from django_delayq.masking import Mask
from tests.support.attempt_stage import ATTEMPT_LOGGER, Attempt, AttemptLog, decode_args, execute, make_job
from tests.support.worker_stage import Hooks


def fail(message: str = "no answer") -> None:
    raise ValueError(message)


class Lines:
    """Text that a plain handler writes for the records of attempts."""

    def __init__(self, level: int) -> None:
        self._stream = io.StringIO()
        self.handler = logging.StreamHandler(self._stream)
        self.handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        logger = logging.getLogger(ATTEMPT_LOGGER)
        logger.addHandler(self.handler)
        logger.setLevel(level)

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    def close(self) -> None:
        logger = logging.getLogger(ATTEMPT_LOGGER)
        logger.removeHandler(self.handler)
        logger.setLevel(logging.NOTSET)


@pytest.fixture
def lines() -> Iterator[Lines]:
    written = Lines(logging.INFO)
    yield written
    written.close()


@pytest.fixture
def every_line() -> Iterator[Lines]:
    written = Lines(logging.DEBUG)
    yield written
    written.close()


def test_the_line_of_a_failed_attempt_has_its_message_and_no_traceback(lines: Lines) -> None:
    execute(fail, max_attempts=2, retry_in=7)
    assert lines.text == (
        "WARNING job-1: attempt 1 of task work failed, the next one in 7.0 s: ValueError: no answer\n"
    )


def test_the_traceback_is_logged_once_the_job_is_given_up(lines: Lines) -> None:
    for failures in (0, 1):
        execute(fail, job=make_job(failures=failures), max_attempts=2)
    _, last, *trace = lines.text.splitlines()
    assert last == "ERROR job-1: task work went to the morgue (exhausted) after attempt 2: ValueError: no answer"
    assert trace[0] == "Traceback (most recent call last):" and trace[-1] == "ValueError: no answer"
    assert lines.text.count("Traceback") == 1 and __file__ in lines.text and "raise ValueError(message)" in lines.text


def test_at_level_debug_each_success_has_a_line_and_each_failure_a_traceback(every_line: Lines) -> None:
    execute(lambda: None, job=make_job(failures=2))
    assert every_line.text.startswith("DEBUG job-1: attempt 3 of task work succeeded in 0.0")
    execute(fail, max_attempts=5)
    assert every_line.text.count("Traceback") == 1


def test_secrets_in_messages_and_tracebacks_are_masked(every_line: Lines) -> None:
    def work() -> None:
        try:
            fail("password=first")
        except ValueError as error:
            raise KeyError("token=second") from error

    mask = Mask()
    log = AttemptLog(mask_text=mask.text, mask_traceback=mask.traceback)
    for failures in (0, 1):
        execute(work, job=make_job(failures=failures), max_attempts=2, hooks=Hooks(log=log))
    assert every_line.text.count("after ValueError: password=••••••") == 2
    assert "token=••••••" in every_line.text
    output = [line for line in every_line.text.splitlines() if "raise KeyError" not in line]
    assert not any(secret in line for line in output for secret in ("first", "second"))


def test_a_message_is_one_line_of_limited_length(lines: Lines) -> None:
    execute(lambda: fail("a\n2026-11-21 ERROR all is lost\x1b[2J"), max_attempts=2)
    execute(lambda: fail("y" * 5000), max_attempts=2)
    first, second = lines.text.splitlines()
    assert r"a\n2026-11-21 ERROR all is lost\x1b[2J" in first
    assert second.endswith(f"{'y' * 500}…")


def test_the_project_s_own_form_of_an_error_is_what_the_log_shows(lines: Lines) -> None:
    execute(fail, max_attempts=1, hooks=Hooks(format_error=lambda error: "order 7"))
    execute(fail, max_attempts=1, hooks=Hooks(format_error=lambda error: b"\x00raw"))
    ours, raw = lines.text.splitlines()
    assert ours.endswith(": ValueError: order 7") and raw.endswith(": ValueError")
    assert "no answer" not in lines.text


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (Bury("wrong address"), "ERROR job-1: task work went to the morgue (wrong address) after attempt 1: "),
        (Retry("busy", delay=3), "WARNING job-1: attempt 1 of task work failed, the next one in 3.0 s: "),
        (Release("not yet", delay=3), "INFO job-1: task work: the job went back uncounted: not yet"),
    ],
)
def test_a_verdict_has_a_line_without_a_traceback(every_line: Lines, verdict: Exception, line: str) -> None:
    def work() -> None:
        raise verdict

    execute(work, max_attempts=5)
    assert every_line.text.startswith(line) and every_line.text.count("\n") == 1


def test_the_cause_of_a_verdict_has_a_traceback(lines: Lines) -> None:
    def work() -> None:
        try:
            fail()
        except ValueError as error:
            raise Bury("wrong address") from error

    execute(work)
    _, head, *frames, cause, error = lines.text.splitlines()
    assert (head, cause) == ("Traceback (most recent call last):", "after ValueError: no answer")
    assert error.endswith("Bury: wrong address")
    assert frames[0].startswith("  File ") and all(line.startswith("  ") for line in frames)


def test_a_verdict_that_hides_its_cause_has_a_line_without_a_traceback(lines: Lines) -> None:
    def work() -> None:
        try:
            fail()
        except ValueError:
            raise Bury("wrong address") from None

    execute(work)
    assert lines.text.count("\n") == 1


def test_a_json_line_has_the_error_and_the_traceback(lines: Lines) -> None:
    lines.handler.setFormatter(JsonFormatter())
    execute(fail, max_attempts=1)
    line: dict[str, Any] = json.loads(lines.text)
    assert (line["level"], line["error"], line["logger"]) == ("ERROR", "ValueError", ATTEMPT_LOGGER)
    assert line["traceback"].startswith("Traceback (most recent call last):\n  File")
    assert line["message"].endswith("ValueError: no answer")


# --- tracebacks begin with the task's own code


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
