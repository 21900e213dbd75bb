"""User code around an attempt: it cannot harm the worker or the job."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest

from django_delayq import PartialFailure, current_job
from django_delayq.core import Broker, Bury, Release
from tests.support.attempt_stage import encode_args, execute, execute_batch, make_job, payloads_of
from tests.support.worker_stage import Hooks, eventually, places, put, registry_of, working


def fail() -> None:
    raise ValueError("no")


# --- on_exhausted


def test_the_task_hears_of_its_last_failure_in_the_thread_of_the_job() -> None:
    heard: list[Any] = []

    def exhausted(job: Any, error: BaseException) -> None:
        same = current_job()
        heard.append((job.id, job.attempt, job.args, same is job, str(error), threading.current_thread().name))

    def work(order: int) -> None:
        raise ValueError("no")

    for failures in (0, 1, 2):
        execute(
            work,
            job=make_job(id=f"job-{failures}", failures=failures, args=encode_args((7,), {})),
            max_attempts=3,
            on_exhausted=exhausted,
        )
    assert heard == [("job-2", 3, [7], True, "no", threading.current_thread().name)]


@pytest.mark.parametrize("error", [Bury("no"), None, KeyError()])
def test_it_does_not_hear_of_what_is_no_exhaustion(error: BaseException | None) -> None:
    heard: list[Any] = []

    def work() -> None:
        if error is not None:
            raise error

    run = execute(work, max_attempts=1, give_up_on=(KeyError,), on_exhausted=lambda job, error: heard.append(job))
    assert run.settlement and run.settlement.verb == ("bury" if error else "ack") and heard == []


def test_in_a_batch_it_hears_of_each_id_that_is_exhausted() -> None:
    heard: list[Any] = []

    def work(batch: dict[str, list[str]]) -> None:
        raise PartialFailure({"a": ValueError("a"), "b": ValueError("b")})

    jobs = [
        make_job(id=ident, merged=True, failures=failures, payloads=payloads_of(ident + "1", ident + "2"))
        for ident, failures in (("a", 0), ("b", 1), ("c", 1))
    ]

    def exhausted(job: Any, error: BaseException) -> None:
        heard.append((job.id, job.payloads, job.scores, str(error)))

    execute_batch(work, jobs, max_attempts=2, on_exhausted=exhausted)
    assert heard == [("b", ["b1", "b2"], (1, 2), "b")]


@pytest.mark.parametrize("error", [RuntimeError("hook"), SystemExit(3), KeyboardInterrupt()])
def test_t42_what_the_exhausted_hook_raises_is_logged_and_the_job_is_buried(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def exhausted(job: Any, _: BaseException) -> None:
        raise error

    with caplog.at_level(logging.ERROR):
        run = execute(fail, max_attempts=1, on_exhausted=exhausted)
    assert run.settlement and (run.settlement.verb, run.settlement.reason) == ("bury", "exhausted")
    assert "on_exhausted of task work failed" in caplog.text


# --- format_error


@pytest.mark.parametrize(
    ("form", "stored"),
    [
        ("short", {"class": "ValueError", "message": "short", "traceback": ""}),
        ({"order": 7, "traceback": ""}, {"class": "ValueError", "message": "no", "order": 7, "traceback": ""}),
        ({"class": "Mine", "message": "", "traceback": None}, {"class": "Mine", "message": "", "traceback": None}),
        (b'{"mine":1}', {"mine": 1}),
    ],
)
def test_a_project_may_choose_the_stored_form_of_an_error(form: Any, stored: dict[str, Any]) -> None:
    run = execute(fail, hooks=Hooks(format_error=lambda error: form))
    assert run.settlement and json.loads(run.settlement.error) == stored
    assert run.settlement.error_class == "ValueError"


def test_what_a_project_says_of_an_error_is_added_to_what_is_known_of_it() -> None:
    run = execute(fail, hooks=Hooks(format_error=lambda error: {"order": 7, "note": "n" * 3500}))
    assert run.settlement and len(run.settlement.error) <= 4096
    stored = json.loads(run.settlement.error)
    assert (stored["class"], stored["message"], stored["order"]) == ("ValueError", "no", 7)
    assert stored["traceback"].endswith('raise ValueError("no")\n')


@pytest.mark.parametrize("form", [None, 7, {"x": object()}, b"x" * 5000, {"x": "y" * 5000}, SystemExit(), ValueError()])
def test_t42_an_error_form_that_cannot_be_had_or_stored_is_the_default_one(
    form: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def formatter(error: BaseException) -> Any:
        if isinstance(form, BaseException):
            raise form
        return form

    with caplog.at_level(logging.ERROR):
        run = execute(fail, hooks=Hooks(format_error=formatter))
    assert run.settlement and run.settlement.verb == "fail"
    record = json.loads(run.settlement.error)
    assert (record["class"], record["message"]) == ("ValueError", "no") and __file__ in record["traceback"]
    assert "format_error failed for ValueError" in caplog.text


def test_a_batch_with_one_error_formats_it_once() -> None:
    formatted: list[str] = []

    def formatter(error: BaseException) -> str:
        formatted.append(str(error))
        return "x"

    def work(batch: dict[str, list[str]]) -> None:
        raise ValueError("all of them")

    jobs = [make_job(id=ident, merged=True, payloads=payloads_of(ident)) for ident in "abc"]
    run = execute_batch(work, jobs, Hooks(format_error=formatter))
    assert formatted == ["all of them"]
    assert len({member.settlement.error for member in run.members if member.settlement}) == 1


# --- all of it at once, in a worker


def test_t42_whatever_users_hang_in_may_raise_and_the_worker_lives_on(broker: Broker) -> None:
    ran: list[int] = []

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("everything is broken")

    def failing() -> None:
        raise ValueError

    def work(n: int) -> None:
        ran.append(n)

    hooks = Hooks(
        thread_end=broken,
        notify=broken,
        wants=lambda event, task: True,
        process_stop=broken,
        format_error=broken,
    )
    registry = registry_of(failing, work, max_attempts=2, retry_in=broken, on_exhausted=broken)
    put(broker, "failing", id="bad")
    with working(broker, registry, hooks=hooks):
        eventually(lambda: places(broker) == {"delayed": 1, "failed": 1}, "the default back-off counts")
        broker.queue("default").run_now("bad")
        eventually(lambda: places(broker) == {"morgue": 1})
        put(broker, "work", 1)
        eventually(lambda: ran == [1] and places(broker) == {"morgue": 1})


# --- report_error


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


def test_a_tracker_that_is_down_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def report(job: Any, error: BaseException) -> None:
        raise OSError("the tracker is down")

    with caplog.at_level(logging.ERROR):
        run = execute(fail, max_attempts=2, hooks=Hooks(report_error=report))
    assert run.settlement and run.settlement.verb == "fail"
    assert "report_error of task" in caplog.text and "the tracker is down" in caplog.text
