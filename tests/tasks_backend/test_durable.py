"""Durable tasks: what Redis does not know (yet, or any more) the database tells."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from django_delayq.backends import DelayQBackend
from django_delayq.core import Broker
from django_delayq.models import OutboxJob
from tests.tasks_backend import deeds
from tests.tasks_backend.stage import TaskResultDoesNotExist, TaskResultStatus

pytestmark = pytest.mark.django_db(transaction=True)
READY, FAILED = TaskResultStatus.READY, TaskResultStatus.FAILED
BACKEND = "django_delayq.backends.DelayQBackend"


@pytest.fixture(autouse=True)
def durable(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"defaults": {"durable": True}}}}


def test_a_durable_task_has_a_row_of_its_own_and_is_sent_after_the_commit(delayq: Broker, heard: list[Any]) -> None:
    with transaction.atomic():
        result = deeds.letter.enqueue("Ann", copies=2)
        assert deeds.letter.get_result(result.id) == result  # the row is there for its own transaction
        assert heard == []
    assert heard == [("task_enqueued", DelayQBackend, "READY")]
    assert list(OutboxJob.objects.values_list("job_id", "queue", "state")) == [(result.id, "mail", "sent")]
    assert deeds.letter.get_result(result.id) == result


def test_a_rollback_takes_it_away(delayq: Broker) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        result = deeds.letter.enqueue("Ann")
        raise ZeroDivisionError
    with pytest.raises(TaskResultDoesNotExist):
        deeds.letter.get_result(result.id)


def test_what_redis_lost_is_ready_and_not_gone(delayq: Broker) -> None:
    result = deeds.letter.enqueue("Ann", copies=2)
    delayq.client.flushall()
    assert deeds.letter.get_result(result.id) == result


def test_while_redis_is_away_the_task_is_kept_and_told_of(delayq: Broker, settings: Any, heard: list[Any]) -> None:
    good = settings.DELAYQ
    settings.DELAYQ = {**good, "REDIS": "redis://127.0.0.1:1/0"}
    result = deeds.letter.enqueue("Ann")
    assert heard == [("task_enqueued", DelayQBackend, "READY")]
    settings.DELAYQ = good
    assert OutboxJob.objects.get().state == "unsent"
    assert deeds.letter.get_result(result.id) == result


@pytest.mark.parametrize(
    ("state", "status"), [("moved", READY), ("buried", FAILED), ("cancelled", FAILED), ("refused", FAILED)]
)
def test_the_row_says_what_is_to_become_of_it(delayq: Broker, state: str, status: Any) -> None:
    result = deeds.letter.enqueue("Ann")
    delayq.client.flushall()
    OutboxJob.objects.update(state=state)
    result.refresh()
    assert result.status == status


def test_a_durable_task_that_is_done_has_its_result(delayq: Broker, work: Any) -> None:
    result = deeds.letter.enqueue("Ann")
    work()
    result.refresh()
    assert result.return_value["to"] == "Ann"
    assert len(result.id) < 64
