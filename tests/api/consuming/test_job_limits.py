"""Row 40 over HTTP: the lease and the time limit that a producer gives a job."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_delayq import connections
from tests.support.api_caller import Caller

from .feed import moment, put, take

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("delayq")]


def left(text: str) -> float:
    """Seconds until a moment."""
    return moment(text).timestamp() - time.time()


def touched(consumer: Caller, job: dict[str, Any], **more: Any) -> float:
    """Touch a job and return the seconds until its lease ends."""
    entry = {"id": job["id"], "lease": job["lease"], **more}
    status, body = consumer.post("v1/queues/feed/touch", {"jobs": [entry]})
    (result,) = body["results"]
    assert status == 200 and result["held"]
    return left(result["lease_ends"])


def test_a_producer_gives_a_job_its_limits(caller: Any) -> None:
    producer = caller("produce")
    status, body = producer.post("v1/queues/feed/jobs", {"body": "x", "id": "a", "ttr": 300, "timeout": 2.0})
    assert (status, body["outcome"]) == (201, "created")
    (view,) = connections.broker().inspector.page("feed", "waiting").jobs
    assert view.job.options == {"timeout": 2, "ttr_ms": 300_000}


@pytest.mark.parametrize("given", [{"ttr": 0}, {"ttr": -1}, {"ttr": "60"}, {"timeout": 0}, {"timeout": True}])
def test_a_limit_that_is_none_is_refused_with_its_place(caller: Any, given: dict[str, Any]) -> None:
    status, body = caller("produce").post("v1/queues/feed/jobs", {"body": "x", **given})
    assert (status, body["code"]) == (400, "invalid")
    assert [error["pointer"] for error in body["errors"]] == [f"/{name}" for name in given]


def test_a_consumer_that_names_no_ttr_has_that_of_each_job(consumer: Caller) -> None:
    put("x", id="long", ttr=300)
    put("x", id="usual")
    jobs = {job["id"]: job for job in take(consumer, max=2)}
    for ident, ttr in (("long", 300), ("usual", 60)):
        assert ttr - 5 < left(jobs[ident]["lease_ends"]) <= ttr + 1
        assert ttr - 5 < touched(consumer, jobs[ident]) <= ttr + 1
        assert 115 < touched(consumer, jobs[ident], ttr=120) <= 121


def test_a_ttr_of_the_reserve_goes_before_that_of_the_job(consumer: Caller) -> None:
    put("x", id="long", ttr=300)
    (job,) = take(consumer, ttr=20)
    assert 15 < left(job["lease_ends"]) <= 21
