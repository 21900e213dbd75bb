"""Leases of held jobs over HTTP: lost, wrong, of several shards and epochs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import connections, task
from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode_args
from django_delayq.core.job import NewJob
from django_delayq.core.task import registry
from tests.support.api_caller import Caller
from tests.support.listening import Ears, listening

from .feed import LOST, end, moment, places, put, take

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("delayq")]


# --- leases that are none any more


@pytest.mark.parametrize("verb", ["ack", "fail", "release", "bury"])
def test_a_lease_that_is_not_the_callers_changes_nothing(verb: str, consumer: Caller, delayq: Broker) -> None:
    put(b"", id="a")
    put(b"", id="b", delay=60)
    (job,) = take(consumer)
    before = places("feed")
    strangers = [
        {"id": "a", "lease": LOST},
        {"id": "b", "lease": job["lease"]},
        {"id": "nobody", "lease": job["lease"]},
        {"id": "a", "lease": f"1024{job['lease'][1:]}"},
        {"id": "a", "lease": f"4{job['lease'][1:]}"},
    ]
    assert end(consumer, verb, *strangers) == [False] * 5
    assert places("feed") == before
    assert delayq.inspector.counts("feed").counters["late"] == 3, "those of a shard that there is"
    assert [key for key in delayq.client.keys("*") if b"feed:1.0}" in key or b"feed:0.4}" in key] == []
    assert end(consumer, verb, job) == [True]


def test_more_than_250_are_too_many(consumer: Caller) -> None:
    status, problem = consumer.post("v1/queues/feed/ack", {"jobs": [{"id": "a", "lease": LOST}] * 251})
    assert (status, problem["code"]) == (413, "too_large")


def test_null_is_as_good_as_nothing(consumer: Caller) -> None:
    put(b"", id="a")
    (job,) = take(consumer)
    assert end(consumer, "release", job, delay=None, priority=None) == [True]
    assert places("feed") == {"ready": 1}
    assert end(consumer, "bury", *take(consumer), reason=None) == [True]
    assert connections.broker().inspector.graves("feed", "a")[0].reason == "buried"


# --- batches


def test_a_batch_over_several_shards_is_one_call_for_each_and_answered_in_order(
    consumer: Caller, delayq: Broker
) -> None:
    for number in range(250):
        put(b"%d" % number, "wide", id=number)
    jobs = take(consumer, "wide", max=250)
    assert len({job["lease"].partition(".")[0] for job in jobs}) == 4
    calls: list[str] = []
    connections.hurried_broker().observe(lambda script, seconds, failed: calls.append(script))
    lost = {**jobs[7], "lease": jobs[7]["lease"].partition(".")[0] + ".5"}
    assert end(consumer, "fail", *jobs[:7], lost, *jobs[8:], queue="wide", error="no") == (
        [True] * 7 + [False] + [True] * 242
    )
    assert places("wide") == {"delayed": 249, "failed": 249, "reserved": 1}
    assert calls.count("settle") == 4


def test_a_job_of_an_older_epoch_ends_where_it_is_held(consumer: Caller, delayq: Broker) -> None:
    put(b"", id="a")
    (job,) = take(consumer)
    connections.hurried_broker().reshard("feed", 3)
    put(b"", id="b")
    (later,) = take(consumer)
    assert job["lease"].partition(".")[0] != later["lease"].partition(".")[0]
    assert end(consumer, "fail", job, {"id": "a", "lease": LOST}, later) == [True, False, True]


def test_the_same_key_of_a_request_gives_the_same_jobs(consumer: Caller) -> None:
    put(b"", id="a")
    put(b"", id="b")
    first = consumer.post("v1/queues/feed/reserve", {}, **{"Idempotency-Key": "k1"})
    again = consumer.post("v1/queues/feed/reserve", {}, **{"Idempotency-Key": "k1"})
    assert first == again
    assert places("feed") == {"reserved": 1, "ready": 1}
    entry = {"jobs": [{"id": job["id"], "lease": job["lease"]} for job in first[1]["jobs"]]}
    answers = [consumer.post("v1/queues/feed/ack", entry, **{"Idempotency-Key": "k2"}) for _ in range(2)]
    assert [answer[1]["results"][0]["counted"] for answer in answers] == [True, True]


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


ARGS = encode_args((7,), {"to": "Ann"})


@pytest.fixture
def ears(delayq: Broker) -> Iterator[Ears]:
    with listening() as ears:
        yield ears


@pytest.fixture
def parcel(ears: Ears) -> Iterator[Any]:
    @task(name="http.parcel", max_attempts=2, retry_in=0, on_exhausted=ears.exhausted)
    def parcel(number: int, *, to: str = "") -> None: ...

    yield parcel
    registry.remove(parcel)


def end_due(api: Caller, verb: str, **more: Any) -> bool:
    """Take the due job and end it; whether that counted."""
    _, taken = api.post("v1/queues/default/reserve", {"max": 1})
    (job,) = taken["jobs"]
    _, body = api.post(f"v1/queues/default/{verb}", {"jobs": [{"id": job["id"], "lease": job["lease"], **more}]})
    counted: bool = body["results"][0]["counted"]
    return counted


def test_a_failure_over_http_is_sent_as_a_signal_and_the_last_one_calls_the_tasks_hook(
    api: Caller, ears: Ears, parcel: Any
) -> None:
    connections.queue("default").schedule(NewJob("a", "http.parcel", ARGS))
    assert end_due(api, "fail", error="closed")
    assert end_due(api, "fail", error={"class": "TimeoutError", "message": "no answer"})
    assert ears.heard == [
        ("job_failed", "a", ARGS, "Reported", "closed", ("failed", 0.0)),
        ("on_exhausted", "a", ([7], {"to": "Ann"}), "Reported", "no answer", 2),
        ("job_buried", "a", ARGS, "Reported", "no answer", "exhausted"),
    ]
