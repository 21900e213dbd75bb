"""get_result(): the truth at every moment of a job's life, and after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_delayq import cancel, get_job, reschedule, schedule
from django_delayq.core import Broker, ack, bury, fail
from tests.support.processes import wait_until
from tests.tasks_backend import deeds, stage
from tests.tasks_backend.stage import (
    Crashed,
    Gone,
    JobTimeout,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    crash,
    notify_of_crash,
    overrun,
    settle,
)

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL
BACKEND = "django_delayq.backends.DelayQBackend"
DAY_MS = 86_400_000
Work = Callable[..., Any]


def key_of(broker: Broker, result: Any) -> bytes:
    return stage.key_of(broker, result.id)


def reserve(broker: Broker, queue: str = "default", worker: str = "w1") -> Any:
    (job,) = broker.queue(queue).reserve(0, 1, worker=worker).jobs
    return job


@pytest.fixture
def patient(settings: Any) -> None:
    """Tasks are tried five times, at once."""
    options = {"defaults": {"max_attempts": 5, "retry_in": [0], "crash_limit": 2}}
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}}


@pytest.mark.django_db
def test_unknown_results_do_not_exist(delayq: Broker) -> None:
    real = deeds.noop.enqueue().id
    for ident in ("123", "", "x" * 64, real[:-1], "A" + real[1:], "A" + real[1:] + ".d", real + "d", 123):
        with pytest.raises(TaskResultDoesNotExist):
            deeds.noop.get_result(ident)
        with pytest.raises(TaskResultDoesNotExist):
            async_to_sync(deeds.noop.aget_result)(ident)


def test_the_result_of_another_task_does_not_match(delayq: Broker) -> None:
    result = deeds.noop.enqueue()
    with pytest.raises(TaskResultMismatch, match="Task does not match"):
        deeds.noop_async.get_result(result.id)
    with pytest.raises(TaskResultMismatch, match="Task does not match"):
        async_to_sync(deeds.noop_async.aget_result)(result.id)
    assert deeds.noop.get_result(result.id).task.func is deeds.noop.func


def test_refresh_takes_over_what_changed(delayq: Broker, work: Work) -> None:
    result = deeds.meaning_of_life.enqueue()
    same = deeds.meaning_of_life.get_result(result.id)
    work()
    async_to_sync(result.arefresh)()
    same.refresh()
    assert result == same == deeds.meaning_of_life.get_result(result.id)
    assert result.return_value == 42


def test_it_is_running_while_it_runs(delayq: Broker, work: Work, tmp_path: Path) -> None:
    began, go = tmp_path / "began", tmp_path / "go"
    result = deeds.wait_for.enqueue(str(began), str(go))
    waiting = deeds.noop.enqueue()
    thread = threading.Thread(target=work, kwargs={"threads": 1})
    thread.start()
    try:
        wait_until(began.exists, what="the start of the task")
        result.refresh()
        assert (result.status, result.finished_at, result.attempts) == (RUNNING, None, 1)
        assert result.started_at is not None
        waiting.refresh()
        assert (waiting.status, waiting.attempts) == (READY, 0)  # maybe in the worker's hands already
    finally:
        go.touch()
        thread.join(20)
    result.refresh()
    assert (result.status, result.return_value) == (SUCCESSFUL, "gone on")


def test_records_live_a_week_behind_the_end_and_no_longer_than_settings_say(
    delayq: Broker, work: Work, settings: Any
) -> None:
    result = deeds.noop.enqueue()
    assert 7 * DAY_MS - 60_000 < delayq.client.pttl(key_of(delayq, result)) <= 7 * DAY_MS
    settings.TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": {"result_ttl": 3600}}}
    from datetime import timedelta

    late = deeds.noop.using(run_after=timedelta(days=1)).enqueue()
    assert DAY_MS + 3_540_000 < delayq.client.pttl(key_of(delayq, late)) <= DAY_MS + 3_600_000
    work()
    assert 3_540_000 < delayq.client.pttl(key_of(delayq, result)) <= 3_600_000
    delayq.client.delete(key_of(delayq, result))  # as its time does
    with pytest.raises(TaskResultDoesNotExist):
        deeds.noop.get_result(result.id)


def test_without_its_record_the_job_itself_tells_as_long_as_it_lives(delayq: Broker, work: Work) -> None:
    task = deeds.letter.using(priority=17)
    result = task.enqueue("Ann", copies=3)
    delayq.client.delete(key_of(delayq, result))
    assert deeds.letter.get_result(result.id) == result
    job = reserve(delayq, "mail")
    assert deeds.letter.get_result(result.id) == replace(result, status=RUNNING)
    settle(
        delayq,
        bury(
            job,
            0,
            0,
            reason="exhausted",
            error_class="ValueError",
            error=b'{"class":"ValueError","message":"no stamps","traceback":""}',
        ),
    )
    buried = deeds.letter.get_result(result.id)
    assert (buried.status, buried.args, buried.kwargs) == (FAILED, ["Ann"], {"copies": 3})
    assert buried.finished_at is not None
    assert [(error.exception_class, error.traceback) for error in buried.errors] == [
        (ValueError, "ValueError: no stamps\n")
    ]


def test_a_record_that_went_during_the_run_is_written_again_as_a_whole(delayq: Broker, work: Work) -> None:
    result = deeds.forget_me.enqueue(7)
    work()
    again = deeds.forget_me.get_result(result.id)
    assert (again.status, again.args, again.return_value, again.attempts) == (SUCCESSFUL, [7], 7, 1)
    assert again.started_at is not None and again.enqueued_at == result.enqueued_at


def test_the_result_of_a_queue_that_the_settings_do_not_name_any_more_can_be_read(
    delayq: Broker, work: Work, settings: Any
) -> None:
    result = deeds.letter.enqueue("Ann")
    work()
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["other"]}}
    again = deeds.letter.get_result(result.id)
    assert (again.status, again.task.queue_name) == (SUCCESSFUL, "mail")
    again.refresh()


def test_the_result_of_an_alias_that_is_gone_is_found_through_another(delayq: Broker, settings: Any) -> None:
    settings.TASKS = {name: {"BACKEND": BACKEND} for name in ("default", "second")}
    result = deeds.noop.using(backend="second").enqueue()
    assert (result.backend, result.task.backend) == ("second", "second")
    assert deeds.noop.get_result(result.id) == result
    settings.TASKS = {"default": {"BACKEND": BACKEND}}
    again = deeds.noop.get_result(result.id)
    assert (again.backend, again.task.backend) == ("default", "default")
    again.refresh()


@pytest.mark.django_db(transaction=True)
def test_a_task_that_waits_and_is_cancelled_has_failed(delayq: Broker) -> None:
    result = deeds.letter.enqueue("Ann")
    assert cancel(result.id, queue="mail") == "cancelled"
    result.refresh()
    assert (result.status, result.attempts, [error.exception_class for error in result.errors]) == (FAILED, 0, [Gone])
    assert "cancelled, discarded or deleted" in result.errors[0].traceback


@pytest.mark.django_db(transaction=True)
def test_a_task_can_be_rescheduled_by_the_id_of_its_result(delayq: Broker) -> None:
    result = deeds.letter.enqueue("Ann")
    assert reschedule(result.id, queue="mail", delay=3600) is True
    view = get_job(result.id, queue="mail")
    assert view is not None and view.state == "delayed"
    result.refresh()
    assert result.status == READY


def test_a_task_that_is_kicked_from_the_morgue_has_failed_until_it_starts(delayq: Broker, work: Work) -> None:
    result = deeds.fail_once.enqueue()
    work()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (FAILED, 1, 1)
    view = get_job(result.id, queue="default")
    assert view is not None and view.state == "morgue"
    assert delayq.queue("default").kick(result.id, key=view.job.key)
    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 1)
    work()
    result.refresh()
    assert (result.status, result.return_value, result.attempts, len(result.errors)) == (SUCCESSFUL, "fine", 2, 1)


def test_what_is_discarded_from_the_morgue_stays_failed_with_its_own_error(delayq: Broker, work: Work) -> None:
    result = deeds.fail_value.enqueue()
    work()
    before = deeds.fail_value.get_result(result.id)
    view = get_job(result.id, queue="default")
    assert view is not None
    assert delayq.queue("default").discard(result.id, key=view.job.key)
    assert deeds.fail_value.get_result(result.id) == before


def test_a_crash_makes_it_ready_again_and_is_one_of_its_errors(delayq: Broker, work: Work, patient: None) -> None:
    result = deeds.look_around.enqueue(1)
    job = reserve(delayq)
    start(delayq, job)
    assert deeds.look_around.get_result(result.id).status == RUNNING
    notify_of_crash(job)
    crash(delayq, job)
    result.refresh()
    assert (result.status, result.attempts, result.finished_at) == (READY, 1, None)
    assert [error.exception_class for error in result.errors] == [Crashed]
    assert "killed by signal 9" in result.errors[0].traceback
    work()
    result.refresh()
    assert (result.status, result.attempts) == (SUCCESSFUL, 2)
    assert [error.exception_class for error in result.errors] == [Crashed]
    assert deeds.seen[-1][-1] == 1  # the second attempt was told of it


def test_an_attempt_that_left_no_end_is_ready_again_or_has_failed(delayq: Broker, patient: None) -> None:
    """The process that settled it could not write either: the job shows how it goes on."""
    result = deeds.look_around.enqueue(1)
    job = reserve(delayq)
    start(delayq, job)
    overrun(delayq, job)
    result.refresh()
    assert (result.status, result.attempts, result.finished_at) == (READY, 1, None)
    for _ in range(3):
        overrun(delayq, reserve(delayq))
    job = reserve(delayq)
    start(delayq, job)
    overrun(delayq, job)
    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 2)
    assert [error.exception_class for error in result.errors] == [JobTimeout]


def test_the_last_crash_buries_it(delayq: Broker, patient: None) -> None:
    result = deeds.look_around.enqueue(1)
    for _ in range(2):
        job = reserve(delayq)
        start(delayq, job)
        crash(delayq, job)
    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 2)
    assert [error.exception_class for error in result.errors] == [Crashed]
    assert "killed by signal 9" in result.errors[0].traceback
    assert result.finished_at is not None


def test_a_process_that_dies_before_the_ack_lets_the_task_run_again(delayq: Broker, patient: None) -> None:
    """The returned value was stored, and is the result until the next attempt starts."""
    result = deeds.look_around.enqueue(1)
    job = reserve(delayq)
    start(delayq, job)
    end(delayq, job, "1")
    assert deeds.look_around.get_result(result.id).return_value == 1  # the ack is on its way
    crash(delayq, job)
    assert deeds.look_around.get_result(result.id).return_value == 1
    second = reserve(delayq)
    start(delayq, second)
    result.refresh()
    assert (result.status, result.finished_at, result.attempts) == (RUNNING, None, 2)
    end(delayq, second, "2")
    settle(delayq, ack(second, 0, 0))
    result.refresh()
    assert (result.status, result.return_value) == (SUCCESSFUL, 2)


def test_a_worker_that_lost_the_job_changes_nothing_any_more(delayq: Broker, patient: None) -> None:
    result = deeds.look_around.enqueue(1)
    first = reserve(delayq)
    start(delayq, first)
    crash(delayq, first)
    second = reserve(delayq, worker="w2")
    start(delayq, second)
    assert end(delayq, first, '"late"') is None
    assert start(delayq, first) is None
    settle(delayq, fail(second, 0, 0, delay_ms=0))
    result.refresh()
    assert (result.status, result.attempts) == (READY, 2)


def test_a_job_of_somebody_else_is_no_result(delayq: Broker) -> None:
    ident = deeds.noop.enqueue().id
    other = "B" * len(ident)
    schedule("tests.tasks_backend.deeds.noop", id=other)
    with pytest.raises(TaskResultDoesNotExist):
        deeds.noop.get_result(other)


# --- a worker whose process can be taken away at any point


def start(broker: Broker, job: Any) -> Any:
    return stage.start(broker, job)


def end(broker: Broker, job: Any, value: str) -> Any:
    return stage.end(broker, job, "SUCCESSFUL", value=value)
