"""So many requests of an action for each user, if the project says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.cache import cache

from django_delayq.core.broker import Broker
from tests.support.api_caller import Caller

from .errands import waiting

JOBS = "v1/queues/errands/jobs"
JOB = {"task": "errands.carry"}


@pytest.fixture(autouse=True)
def fresh_cache() -> Iterator[None]:
    """Throttles remember in Django's cache."""
    cache.clear()
    yield
    cache.clear()


def test_who_produces_too_often_is_told_when_to_come_again(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"throttle": {"produce": "2/min"}}}
    assert [api.post(JOBS, JOB)[0] for _ in range(3)] == [201, 201, 429]
    status, body = api.post(JOBS, JOB)
    assert (status, body["code"]) == (429, "throttled")
    assert 1 <= int(api.response["Retry-After"]) <= 60
    assert 1 <= body["retry_after"] <= 60
    assert len(waiting(delayq)) == 2


def test_each_action_and_each_user_has_a_rate_of_its_own(
    caller: Callable[..., Caller], delayq: Broker, settings: Any
) -> None:
    delayq.queue("errands")
    settings.DELAYQ = {**settings.DELAYQ, "API": {"throttle": {"produce": "1/min", "view": "2/min"}}}
    one, two = caller("produce", "view", "operate"), caller("produce")
    assert [one.post(JOBS, JOB)[0], one.post(JOBS, JOB)[0], two.post(JOBS, JOB)[0]] == [201, 429, 201]
    assert [one.get(JOBS)[0] for _ in range(3)] == [200, 200, 429]
    assert {one.post("v1/queues/errands/cancel", {"ids": ["x"]})[0] for _ in range(5)} == {200}


def test_a_forged_address_does_not_help(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"throttle": {"produce": "1/min"}}}
    assert [api.post(JOBS, JOB, **{"X-Forwarded-For": f"10.0.0.{n}"})[0] for n in range(3)] == [201, 429, 429]


def test_who_may_not_is_refused_before_being_counted(
    caller: Callable[..., Caller], delayq: Broker, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"throttle": {"produce": "1/min"}}}
    nobody = caller("view")
    assert [nobody.post(JOBS, JOB)[0] for _ in range(3)] == [403] * 3


def test_a_throttled_request_leaves_its_key_free(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"throttle": {"produce": "1/min"}}}
    key = {"Idempotency-Key": "k"}
    assert [api.post(JOBS, JOB)[0], api.post(JOBS, JOB, **key)[0]] == [201, 429]
    cache.clear()
    assert api.post(JOBS, JOB, **key)[0] == 201
