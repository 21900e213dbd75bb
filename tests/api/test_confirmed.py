"""Jobs over HTTP that wait for a confirmation by replicas."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.client import errors
from tests.support.api_caller import Caller


@pytest.fixture
def alone(delayq: Any, redis_setting: Any, settings: Any) -> Any:
    """Demand a replica, of which there is none."""
    plain = {"URL": redis_setting} if isinstance(redis_setting, str) else redis_setting
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": {**plain, "WAIT_REPLICAS": 1, "WAIT_TIMEOUT": 0.1}}
    delayq.queue("images", kind="pull")
    return delayq


def test_a_missing_confirmation_is_a_problem_of_its_own(api: Caller, alone: Any) -> None:
    for entry in ({"body": "x", "id": "1"}, {"jobs": [{"body": "x", "id": "1"}]}):
        status, problem = api.post("v1/queues/images/jobs", entry)
        assert (status, problem["code"]) == (503, "not_confirmed")
        assert "is stored" in problem["detail"]
        assert "again with the same id" in problem["detail"]
    assert alone.inspector.counts("images").ready == 1
    error = errors.error_of(status, problem, 5)
    assert isinstance(error, errors.NotConfirmed)
    assert isinstance(error, errors.TryLater)


def test_a_job_may_do_without(api: Caller, alone: Any) -> None:
    assert api.post("v1/queues/images/jobs", {"body": "x", "wait_for_confirmation": False})[0] == 201
    assert api.post("v1/queues/images/jobs", {"jobs": [{"body": "x", "wait_for_confirmation": False}]})[0] == 200
    assert api.post("v1/queues/images/jobs", {"body": "x", "wait_for_confirmation": "no"})[0] == 400


def test_a_repeated_request_is_not_confirmed_either(api: Caller, alone: Any) -> None:
    for _ in range(2):
        status, problem = api.post("v1/queues/images/jobs", {"body": "x"}, **{"Idempotency-Key": "k1"})
        assert (status, problem["code"]) == (503, "not_confirmed")
    assert alone.inspector.counts("images").ready == 1


def test_without_anything_that_confirms_the_wish_is_refused(api: Caller, delayq: Any) -> None:
    delayq.queue("images", kind="pull")
    status, problem = api.post("v1/queues/images/jobs", {"body": "x", "wait_for_confirmation": True})
    assert (status, problem["errors"][0]["pointer"]) == (400, "/wait_for_confirmation")
    assert "WAIT_REPLICAS" in problem["detail"]
