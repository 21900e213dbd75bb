"""Tasks in a real worker: what they get, what comes of them, who hears of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from django_delayq import get_job, schedule, signals
from django_delayq.backends import DelayQBackend
from django_delayq.core import Broker, Job, LeakedTransaction
from tests.support.processes import wait_until
from tests.tasks_backend import deeds
from tests.tasks_backend.stage import WORLD, Gone, JobTimeout, ResultTooLarge, Task, TaskResultStatus, compat, known

READY, FAILED, SUCCESSFUL = TaskResultStatus.READY, TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL
BACKEND = "django_delayq.backends.DelayQBackend"
Work = Callable[..., Any]


@pytest.fixture
def options(settings: Any) -> Callable[..., None]:
    """``options(defaults=…, tasks=…)``: other OPTIONS from now on."""

    def choose(**chosen: Any) -> None:
        settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": chosen}}

    return choose


def three_times(**more: Any) -> dict[str, Any]:
    return {"max_attempts": 3, "retry_in": [0], **more}


def test_a_task_runs_and_its_result_has_everything(delayq: Broker, work: Work, heard: list[Any]) -> None:
    result = deeds.letter.enqueue("Ann", copies=2)
    worker = work()
    assert result.status == READY
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == (SUCCESSFUL, True, 1)
    assert result.return_value == {"to": "Ann", "copies": 2, "by": ["post", "plane"]}
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at <= timezone.now()
    assert (result.args, result.kwargs, result.errors) == (["Ann"], {"copies": 2}, [])
    assert result.worker_ids == [worker.name] and len(worker.name) < 64
    assert get_job(result.id, queue="mail") is None
    assert heard == [
        ("task_enqueued", DelayQBackend, "READY"),
        ("task_started", DelayQBackend, "RUNNING"),
        ("task_finished", DelayQBackend, "SUCCESSFUL"),
    ]


def test_jobs_that_are_no_tasks_of_the_framework_pay_nothing_for_the_backend() -> None:
    plain = Task(deeds.noop.func, name="plain")
    for event in ("job_started", "job_succeeded", "job_failed", "job_buried"):
        assert not signals.wants(event, plain) and not signals.wants(event, None)
        assert signals.wants(event, known(deeds.noop.func))


def test_signals_of_the_queue_are_sent_although_the_framework_cannot_be_told(
    delayq: Broker, work: Work, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    told: list[str] = []

    def receiver(sender: Any, *, job: Job, **_: Any) -> None:
        told.append(job.id)

    monkeypatch.setattr(known(deeds.noop.func), "listener", broken)
    signals.job_succeeded.connect(receiver)
    try:
        result = deeds.noop.enqueue()
        work()
    finally:
        signals.job_succeeded.disconnect(receiver)
    assert told == [result.id]
    assert "deeds.noop failed at job_succeeded" in caplog.text


def test_a_coroutine_function_runs_on_the_event_loop(delayq: Broker, work: Work) -> None:
    result = deeds.fetch.enqueue(5)
    work()
    assert deeds.fetch.get_result(result.id).return_value == [5, 6]
    assert deeds.seen == [result.id]


def test_a_task_that_returns_nothing_has_none_as_its_value(delayq: Broker, work: Work) -> None:
    results = [deeds.noop.enqueue(1, two=3), deeds.noop_async.enqueue(1, two=3)]
    work()
    for result in results:
        result.refresh()
        assert (result.status, result.return_value) == (SUCCESSFUL, None)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("fail_value", ValueError, "ValueError: This Task failed due to ValueError\n"),
        ("fail_exit", SystemExit, "SystemExit: This Task failed due to SystemExit\n"),
        ("fail_complex", ValueError, 'ValueError(ValueError("This task failed"))'),
        ("return_complex", TypeError, "Unsupported type"),
        ("return_bytes", ValueError, "Unsupported value"),
        ("leak", LeakedTransaction, "was entered and not left"),
    ],
)
def test_a_task_that_raises_has_failed(
    delayq: Broker, work: Work, heard: list[Any], caplog: pytest.LogCaptureFixture, name: str, kind: Any, message: str
) -> None:
    task = getattr(deeds, name)
    result = task.enqueue()
    with caplog.at_level(logging.INFO, WORLD):
        work()
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == (FAILED, True, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    (error,) = result.errors
    assert error.exception_class is kind
    assert message in error.traceback
    assert "django_delayq/worker" not in error.traceback or kind is LeakedTransaction
    if name.startswith("fail"):
        head, first, *_ = error.traceback.splitlines()
        assert (head, "deeds.py" in first, first.endswith(f"in {name}")) == (
            "Traceback (most recent call last):",
            True,
            True,
        )
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert heard[-2:] == [("task_started", DelayQBackend, "RUNNING"), ("task_finished", DelayQBackend, "FAILED")]
    (line,) = [record for record in caplog.records if record.name == WORLD and record.levelno == logging.ERROR]
    assert line.exc_info is not None and line.exc_info[0] is kind
    assert "NoneType" not in caplog.text


def test_a_result_that_is_too_large_fails_clearly(delayq: Broker, work: Work, options: Callable[..., None]) -> None:
    options(max_result_bytes=100)
    small, large = deeds.return_much.enqueue(98), deeds.return_much.enqueue(99)
    work()
    assert deeds.return_much.get_result(small.id).return_value == "x" * 98
    (error,) = deeds.return_much.get_result(large.id).errors
    assert error.exception_class is ResultTooLarge
    assert "returned 101 bytes, but at most 100 are stored" in error.traceback


def test_the_context_comes_first_and_knows_the_attempt(delayq: Broker, work: Work) -> None:
    own = deeds.own_id.enqueue()
    around, coroutine = deeds.look_around.enqueue(7), deeds.look_around_async.enqueue()
    worker = work()
    assert deeds.own_id.get_result(own.id).return_value == own.id
    assert deeds.look_around.get_result(around.id).return_value == [1, 7]
    assert deeds.look_around_async.get_result(coroutine.id).return_value == 1
    assert deeds.seen == [(1, "RUNNING", [7], [worker.name], 0)]


def test_retries_leave_their_errors_and_end_well(
    delayq: Broker, work: Work, heard: list[Any], options: Callable[..., None]
) -> None:
    options(tasks={"tests.tasks_backend.deeds.third_time_lucky": three_times()})
    result = deeds.third_time_lucky.enqueue()
    work()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, "at last", 3)
    assert [error.exception_class for error in result.errors] == [ConnectionError, ConnectionError]
    assert result.started_at < result.last_attempted_at < result.finished_at
    assert deeds.seen == [(1, 0), (2, 1), (3, 2)]
    assert [(name, status) for name, _, status in heard] == [
        ("task_enqueued", "READY"),
        *[("task_started", "RUNNING")] * 3,
        ("task_finished", "SUCCESSFUL"),
    ]


def test_between_two_attempts_it_is_ready_again(delayq: Broker, work: Work, options: Callable[..., None]) -> None:
    options(defaults=three_times(retry_in=3600))
    result = deeds.third_time_lucky.enqueue()
    work()
    result.refresh()
    assert (result.status, result.attempts, result.finished_at) == (READY, 1, None)
    assert [error.exception_class for error in result.errors] == [ConnectionError]
    assert result.started_at is not None
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value


@pytest.mark.parametrize(
    ("word", "status", "attempts", "errors"),
    [("retry", FAILED, 2, 2), ("bury", FAILED, 1, 1), ("release", READY, 1, 0)],
)
def test_verdicts_mean_what_they_mean_elsewhere(
    delayq: Broker, work: Work, options: Callable[..., None], word: str, status: Any, attempts: int, errors: int
) -> None:
    options(defaults={"max_attempts": 2})
    result = deeds.verdict.enqueue(word)
    work()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (status, attempts, errors)


def test_a_time_limit_is_an_error_like_others(delayq: Broker, work: Work, options: Callable[..., None]) -> None:
    options(defaults={"timeout": 0.1})
    result = deeds.wait_for.enqueue("/dev/null", "/does/not/exist")
    work()
    result.refresh()
    assert (result.status, [error.exception_class for error in result.errors]) == (FAILED, [JobTimeout])


def test_what_expires_before_it_begins_is_gone(delayq: Broker, work: Work, options: Callable[..., None]) -> None:
    options(defaults={"expires": 0.001})
    result = deeds.noop.enqueue()
    due_ms = result.enqueued_at.timestamp() * 1000
    wait_until(lambda: delayq.now_ms() > due_ms + 10, what="the end of its time")
    work()
    result.refresh()
    assert (result.status, [error.exception_class for error in result.errors]) == (FAILED, [Gone])


def test_a_broken_receiver_changes_nothing_about_the_task(delayq: Broker, work: Work) -> None:
    def broken(**_: Any) -> None:
        raise ZeroDivisionError

    compat.task_started.connect(broken)
    compat.task_finished.connect(broken)
    try:
        result = deeds.meaning_of_life.enqueue()
        work()
    finally:
        compat.task_started.disconnect(broken)
        compat.task_finished.disconnect(broken)
    assert deeds.meaning_of_life.get_result(result.id).return_value == 42


def test_the_same_task_may_also_be_scheduled_by_name(delayq: Broker, work: Work, heard: list[Any]) -> None:
    """There is no result to ask for then; the task runs as usual."""
    schedule("tests.tasks_backend.deeds.look_around", 3, id="by-hand")
    work()
    assert [(attempt, status, args) for attempt, status, args, *_ in deeds.seen] == [(1, "RUNNING", [3])]
    assert [name for name, _, _ in heard] == ["task_started", "task_finished"]
    assert list(delayq.client.scan_iter("*:result:*")) == []
