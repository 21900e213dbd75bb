"""Reserve of one certain job over HTTP, by its id."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api_caller import Caller

from .feed import end, places, put, take

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("delayq")]


def test_a_job_is_reserved_by_its_id(consumer: Caller) -> None:
    put("one", id="a")
    put("two", id="b")
    (job,) = take(consumer, id="b", ttr=30, worker="w1")
    assert (job["id"], job["body"]) == ("b", "two")
    assert take(consumer, id="b") == [], "it is held"
    assert take(consumer, id="none") == []
    assert end(consumer, "ack", job) == [True]
    assert places("feed") == {"ready": 1}


def test_a_job_that_is_not_due_is_reserved_early(consumer: Caller) -> None:
    put("later", id="a", delay=3600)
    assert take(consumer, id="a") == []
    assert [job["id"] for job in take(consumer, id="a", early=True)] == ["a"]


def test_a_buried_job_is_reserved_by_its_id(consumer: Caller) -> None:
    put("one", id="a")
    assert end(consumer, "bury", *take(consumer)) == [True]
    assert take(consumer, id="a") == []
    (job,) = take(consumer, id="a", buried=True)
    assert (job["body"], job["attempt"], places("feed")) == ("one", 1, {"reserved": 1})
    assert end(consumer, "ack", job) == [True]


@pytest.mark.parametrize(
    ("body", "pointer", "text"),
    [
        ({"id": "a", "max": 5}, "/id", "leave max and wait out"),
        ({"id": "a", "wait": 5}, "/id", "leave max and wait out"),
        ({"early": True}, "/early", "this goes with id"),
        ({"buried": True}, "/buried", "this goes with id"),
        ({"where": {"text": "a"}}, "/where", "unknown member"),
        ({"id": ""}, "/id", "id"),
    ],
)
def test_a_wrong_request_is_refused_with_the_place_of_the_mistake(
    consumer: Caller, body: dict[str, Any], pointer: str, text: str
) -> None:
    status, problem = consumer.post("v1/queues/feed/reserve", body)
    assert status == 400, problem
    (error,) = problem["errors"]
    assert error["pointer"] == pointer
    assert text in error["detail"]


def test_several_queues_have_no_certain_job(consumer: Caller) -> None:
    status, problem = consumer.post("v1/reserve", {"queues": ["feed", "wide"], "id": "a"})
    assert status == 400 and "unknown member" in problem["errors"][0]["detail"]
