"""enqueue(): what is checked, what is stored, who hears of it; with and without a transaction."""

from __future__ import annotations

import logging
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from django_delayq import get_job
from django_delayq.backends import DelayQBackend
from django_delayq.core import Broker, InvalidJob, QueueUnavailable
from tests.tasks_backend import deeds
from tests.tasks_backend.stage import (
    WORLD,
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultStatus,
    compat,
    priority_class,
)

READY = TaskResultStatus.READY


def job_of(result: Any) -> Any:
    view = get_job(result.id, queue=result.task.queue_name)
    assert view is not None
    return view


def test_the_backend_is_the_settings_and_can_do_all_that_the_framework_knows() -> None:
    backend = compat.task_backends["default"]
    assert isinstance(backend, DelayQBackend)
    assert (backend.alias, backend.options, backend.queues) == ("default", {}, {"default", "queue_1", "mail"})
    assert (backend.supports_defer, backend.supports_async_task) == (True, True)
    assert (backend.supports_get_result, backend.supports_priority) == (True, True)
    assert type(deeds.noop) is compat.Task


@pytest.mark.parametrize("name", ["noop", "noop_async"])
def test_enqueue_gives_a_ready_result_with_all_fields(delayq: Broker, name: str) -> None:
    task = getattr(deeds, name)
    before = timezone.now()
    result = task.enqueue(1, two=3)
    assert (result.status, result.is_finished, result.attempts) == (READY, False, 0)
    assert before <= result.enqueued_at <= timezone.now()
    assert result.started_at is result.finished_at is result.last_attempted_at is None
    assert (result.task, result.args, result.kwargs, result.backend) == (task, [1], {"two": 3}, "default")
    assert (result.errors, result.worker_ids) == ([], [])
    assert isinstance(result.id, str) and len(result.id) < 64
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    view = job_of(result)
    assert (view.state, view.job.task, view.job.priority) == ("ready", f"tests.tasks_backend.deeds.{name}", 4)


def test_arguments_are_stored_as_json_gives_them_back(delayq: Broker) -> None:
    result = deeds.noop.enqueue((1, 2), b"text", {1: "int key", "$dt": "no tag"}, x=[{"a": (1,)}])
    assert result.args == [[1, 2], "text", {"1": "int key", "$dt": "no tag"}]
    assert result.kwargs == {"x": [{"a": [1]}]}
    assert deeds.noop.get_result(result.id) == result


@pytest.mark.parametrize("value", [datetime(2030, 1, 1, tzinfo=UTC), {1, 2}, b"\xff\xfe", object(), {(1, 2): 3}])
def test_what_has_no_form_in_json_is_refused_at_the_call(delayq: Broker, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        deeds.noop.enqueue(value)
    with pytest.raises((TypeError, ValueError)):
        async_to_sync(deeds.noop.aenqueue)(x=value)
    assert delayq.queue_names() == []


def test_arguments_that_the_function_does_not_take_are_refused_at_the_call(delayq: Broker) -> None:
    with pytest.raises(TypeError, match=r"deeds\.letter: missing a required argument: 'to'"):
        deeds.letter.enqueue()
    with pytest.raises(TypeError, match="own_id"):
        deeds.own_id.enqueue("the context comes by itself")
    assert delayq.queue_names() == []


def test_arguments_that_are_too_large_are_refused_at_the_call(delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "MAX_ARGS_BYTES": 100}
    with pytest.raises(InvalidJob, match="at most 100"):
        deeds.noop.enqueue("x" * 200)


def test_priorities_map_to_the_queues_classes_in_one_line() -> None:
    assert [priority_class(p) for p in (100, 72, 71, 50, 1, 0, -1, -50, -100)] == [0, 1, 1, 2, 3, 4, 4, 5, 7]
    classes = [priority_class(priority) for priority in range(-100, 101)]
    assert classes == sorted(classes, reverse=True)
    assert set(classes) == set(range(8))


def test_priority_queue_and_run_after_travel_with_the_job(delayq: Broker) -> None:
    moment = timezone.now() + timedelta(hours=2)
    task = deeds.noop.using(priority=100, queue_name="queue_1", run_after=moment)
    result = task.enqueue()
    assert (result.task, result.task.run_after) == (task, moment)
    view = job_of(result)
    assert (view.state, view.job.queue, view.job.priority) == ("delayed", "queue_1", 0)
    assert view.due_ms == math.ceil(moment.timestamp() * 1000)
    assert compat.task_backends["default"].get_result(result.id) == result


def test_run_after_may_be_a_timedelta_which_counts_from_the_call(delayq: Broker) -> None:
    later = deeds.noop.using(run_after=timedelta(minutes=5))
    assert later.using(priority=10).run_after == timedelta(minutes=5)
    before = timezone.now()
    result = later.enqueue()
    assert before <= result.task.run_after - timedelta(minutes=5) <= timezone.now()
    assert abs(job_of(result).due_ms / 1000 - result.task.run_after.timestamp()) < 2
    assert deeds.noop.get_result(result.id) == result
    with pytest.raises(InvalidTask, match="or a timedelta that is not negative; got"):
        deeds.noop.using(run_after=timedelta(seconds=-1))


def test_what_the_framework_refuses_is_refused(delayq: Broker) -> None:
    with pytest.raises(InvalidTask, match=r"run_after must be an aware datetime\."):
        deeds.noop.using(run_after=datetime.now())
    with pytest.raises(InvalidTask, match="run_after must be a datetime, or a timedelta that is not negative; got 5"):
        deeds.noop.using(run_after=5)
    for priority in (-101, 101, 3.1):
        with pytest.raises(InvalidTask, match="priority must be a whole number between -100 and 100"):
            deeds.noop.using(priority=priority)
    with pytest.raises(InvalidTask, match="Queue 'queue-2' is not valid for backend"):
        deeds.noop.using(queue_name="queue-2")
    with pytest.raises(InvalidTaskBackend, match="The connection 'unknown' doesn't exist"):
        deeds.noop.using(backend="unknown")
    for function in (any, test_what_the_framework_refuses_is_refused.__get__(1), lambda: None):
        with pytest.raises(InvalidTask, match="must be defined at a module level"):
            compat.task()(function)
    with pytest.raises(InvalidTask, match="does not have a first argument of 'context'"):
        compat.task(takes_context=True)(deeds.meaning_of_life.func)


def test_naive_times_are_the_projects_own_without_use_tz(delayq: Broker, settings: Any) -> None:
    settings.USE_TZ = False
    moment = datetime.now() + timedelta(hours=1)
    result = deeds.noop.using(run_after=moment).enqueue()
    assert result.enqueued_at.tzinfo is None
    assert deeds.noop.get_result(result.id) == result


def test_an_empty_list_of_queues_takes_every_name_that_a_queue_can_have(delayq: Broker, settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": "django_delayq.backends.DelayQBackend", "QUEUES": []}}
    result = deeds.noop.using(queue_name="anything").enqueue()
    assert job_of(result).job.queue == "anything"
    with pytest.raises(InvalidTask, match="queue name '1 2' is not usable"):
        deeds.noop.using(queue_name="1 2")


def test_a_task_is_validated_again_at_the_call(delayq: Broker, settings: Any) -> None:
    task = deeds.noop.using(queue_name="queue_1")
    settings.TASKS = {"default": {"BACKEND": "django_delayq.backends.DelayQBackend", "QUEUES": ["default"]}}
    with pytest.raises(InvalidTask, match="Queue 'queue_1' is not valid"):
        task.enqueue()
    with pytest.raises(InvalidTask, match="Queue 'queue_1' is not valid"):
        async_to_sync(task.aenqueue)()


def test_using_leaves_the_task_itself_alone(delayq: Broker) -> None:
    other = deeds.noop.using()
    assert other == deeds.noop and other is not deeds.noop
    assert deeds.noop.using(priority=1).using(queue_name="mail").priority == 1
    assert (deeds.noop.priority, deeds.noop.queue_name, deeds.noop.run_after) == (0, "default", None)


def test_call_and_acall_run_the_function_here(delayq: Broker) -> None:
    assert deeds.meaning_of_life.call() == 42
    assert async_to_sync(deeds.meaning_of_life.acall)() == 42
    assert deeds.fetch.call(1) == [1, 2]
    assert async_to_sync(deeds.fetch.acall)(1) == [1, 2]
    assert delayq.queue_names() == []


def test_the_signal_comes_from_the_backends_class_and_is_logged(
    delayq: Broker, heard: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, WORLD):
        result = deeds.noop.enqueue()
    assert heard == [("task_enqueued", DelayQBackend, "READY")]
    (line,) = [record.getMessage() for record in caplog.records if record.name == WORLD]
    assert result.id in line and "enqueued backend=default" in line


def test_without_redis_the_caller_is_told(settings: Any, heard: list[Any]) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": "redis://127.0.0.1:1/0?retries=0"}
    with pytest.raises(QueueUnavailable):
        deeds.noop.enqueue()
    assert heard == []


@pytest.mark.django_db(transaction=True)
def test_in_a_transaction_what_is_not_rolled_back_is_sent_and_told_of_after_the_commit(
    delayq: Broker, heard: list[Any]
) -> None:
    with transaction.atomic():
        result = deeds.noop.enqueue(1)
        assert result.enqueued_at is not None
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            dropped = deeds.noop.enqueue("dropped")
            raise ZeroDivisionError
        assert heard == [] and delayq.queue_names() == []
        with pytest.raises(TaskResultDoesNotExist):
            deeds.noop.get_result(result.id)
    assert heard == [("task_enqueued", DelayQBackend, "READY")]
    assert deeds.noop.get_result(result.id) == result
    with pytest.raises(TaskResultDoesNotExist):
        deeds.noop.get_result(dropped.id)


@pytest.mark.django_db(transaction=True)
def test_what_cannot_be_sent_after_the_commit_is_not_told_of(
    delayq: Broker, settings: Any, heard: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    good = settings.DELAYQ
    with transaction.atomic():
        deeds.noop.enqueue()
        settings.DELAYQ = {**good, "REDIS": "redis://127.0.0.1:1/0?retries=0"}
    assert heard == []
    assert "was not sent after the commit" in caplog.text
    settings.DELAYQ = good
