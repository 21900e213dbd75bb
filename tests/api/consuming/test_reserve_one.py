"""Reserve of one certain job over HTTP: by its id, or the first one that matches."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import connections
from django_delayq.api.views import consuming
from django_delayq.core import NewJob
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
    ("where", "found"),
    [
        ({"text": "B@example"}, ["b"]),
        ({"prefix": "c"}, ["c"]),
        ({"task": "raw", "text": "c@"}, ["c"]),
        ({"task": "other"}, []),
        ({"text": "d@"}, []),  # not due
    ],
)
def test_the_first_job_that_matches_is_reserved(consumer: Caller, where: dict[str, str], found: list[str]) -> None:
    for ident in "abc":
        put(f"{ident}@example.org", "wide", id=ident)
    put("d@example.org", "wide", id="d", delay=60)
    assert [job["id"] for job in take(consumer, "wide", where=where)] == found


def test_a_request_ends_in_time_and_its_cursor_continues(consumer: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "LONGEST_MATCH", 0.0)
    put("", id="first")
    jobs_of_queue = (
        NewJob(f"job-{number:04}", "raw", args=b"wanted" if number == 1_150 else b"", due_ms=number, delay_ms=None)
        for number in range(1_200)
    )
    connections.broker().queue("feed").schedule_many(jobs_of_queue)
    requests, cursor, jobs = 0, None, []
    while not jobs:
        asked = {"where": {"text": "wanted"}, **({"cursor": cursor} if cursor else {})}
        status, body = consumer.post("v1/queues/feed/reserve", asked)
        assert status == 200
        jobs, cursor, requests = body["jobs"], body.get("cursor"), requests + 1
    assert (jobs[0]["id"], cursor, requests) == ("job-1150", None, 3)


@pytest.mark.parametrize(
    ("body", "pointer", "text"),
    [
        ({"id": "a", "where": {"text": "b"}}, "", "give either id or where"),
        ({"id": "a", "max": 5}, "/id", "leave max and wait out"),
        ({"where": {"text": "a"}, "wait": 5}, "/where", "leave max and wait out"),
        ({"where": {}}, "/where", "Give text, task or prefix"),
        ({"where": {"text": 5}}, "/where/text", "text is a text of up to 1000"),
        ({"where": {"failures": 5}}, "/where/failures", "known are: text, task, prefix"),
        ({"early": True}, "/early", "this goes with id or where"),
        ({"where": {"text": "a"}, "buried": True}, "/buried", "this goes with id"),
        ({"id": "a", "cursor": "MDo6Og"}, "/cursor", "this goes with where"),
        ({"where": {"text": "a"}, "cursor": "nonsense"}, "/cursor", "start again without one"),
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


def test_a_text_is_refused_where_another_codec_stores_the_arguments(consumer: Caller, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CODEC": "django_delayq.messagepack.codec"}
    connections.broker().queue("calls")
    status, problem = consumer.post("v1/queues/calls/reserve", {"where": {"text": "a"}})
    assert (status, "leave text out" in problem["detail"]) == (400, True), problem
