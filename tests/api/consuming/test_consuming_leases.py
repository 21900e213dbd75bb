"""Leases of held jobs over HTTP: lost, wrong, of several shards and epochs."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from django_delayq import Queue, connections
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from tests.support.api_caller import Caller
from tests.support.reaping import reaping

from .feed import LOST, VERBS, end, places, put, take

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


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("entry", "pointer"),
    [
        ({"id": "a", "lease": "x"}, "/jobs/1/lease"),
        ({"id": "a", "lease": "1.2.3"}, "/jobs/1/lease"),
        ({"id": "a", "lease": "0.99999999999999999"}, "/jobs/1/lease"),
        ({"id": "a", "lease": "0.9999999999999999"}, "/jobs/1/lease"),
        ({"id": "a", "lease": "0.１２"}, "/jobs/1/lease"),
        ({"id": "a", "lease": None}, "/jobs/1/lease"),
        ({"id": "a"}, "/jobs/1/lease"),
        ({"lease": LOST}, "/jobs/1/id"),
        ({"id": "", "lease": LOST}, "/jobs/1/id"),
        ({"id": "a\0b", "lease": LOST}, "/jobs/1/id"),
        ({"id": "é" * 128, "lease": LOST}, "/jobs/1/id"),
        ({"id": ["a"], "lease": LOST}, "/jobs/1/id"),
        ({"id": "a", "lease": LOST, "leese": 1}, "/jobs/1/leese"),
        ("a", "/jobs/1"),
    ],
)
def test_an_entry_that_is_none_is_refused_and_nothing_is_done(
    verb: str, entry: Any, pointer: str, consumer: Caller
) -> None:
    put(b"", id="a")
    (job,) = take(consumer)
    good = {"id": "a", "lease": job["lease"]}
    status, problem = consumer.post(f"v1/queues/feed/{verb}", {"jobs": [good, entry]})
    assert (status, problem["code"]) == (400, "invalid")
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert places("feed") == {"reserved": 1}


@pytest.mark.parametrize(
    ("verb", "member", "value"),
    [
        ("ack", "delay", 1),
        ("fail", "error", 5),
        ("fail", "error", {"code": "x"}),
        ("fail", "error", {"class": 5}),
        ("fail", "delay", True),
        ("fail", "delay", "5"),
        ("fail", "delay", 1e12),
        ("release", "delay", True),
        ("release", "priority", 8),
        ("bury", "reason", "r" * 201),
        ("touch", "ttr", 0),
        ("touch", "ttr", 3601),
    ],
)
def test_a_member_that_is_wrong_is_named(verb: str, member: str, value: Any, consumer: Caller) -> None:
    body = {"jobs": [{"id": "a", "lease": LOST, member: value}]}
    status, problem = consumer.post(f"v1/queues/feed/{verb}", body)
    assert (status, [error["pointer"] for error in problem["errors"]]) == (400, [f"/jobs/0/{member}"])


@pytest.mark.parametrize("jobs", [[], "a", None, {}])
def test_a_list_that_is_none_is_refused(jobs: Any, consumer: Caller) -> None:
    assert consumer.post("v1/queues/feed/ack", {"jobs": jobs})[1]["errors"][0]["pointer"] == "/jobs"


def test_more_than_250_are_too_many(consumer: Caller) -> None:
    status, problem = consumer.post("v1/queues/feed/ack", {"jobs": [{"id": "a", "lease": LOST}] * 251})
    assert (status, problem["code"]) == (413, "too_large")


def test_null_is_as_good_as_nothing(consumer: Caller) -> None:
    put(b"", id="a")
    (job,) = take(consumer)
    assert end(consumer, "release", job, delay=None, priority=None) == [True]
    assert places("feed") == {"ready": 1}


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


def test_a_durable_job_is_marked_when_it_ends(consumer: Caller, delayq: Broker) -> None:
    from django_delayq.core.job import new_key

    plain = NewJob("a", "raw", b"", key=new_key(durable=True))
    connections.queue("feed").schedule(plain)
    (job,) = take(consumer)
    assert end(consumer, "ack", job) == [True]
    assert [mark.key for mark in delayq.queue("feed").marks(0)] == [plain.key]


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


def test_large_arguments_are_not_read_again_to_end_a_job(consumer: Caller) -> None:
    put(b"x" * 200_000, id="a", max_attempts=1)
    (job,) = take(consumer)
    assert len(job["body"]) == 200_000
    assert end(consumer, "fail", job, error=json.dumps({"reason": "too large"})) == [True]
    assert connections.broker().inspector.graves("feed", "a")[0].job.args == b"x" * 200_000


def test_a_lease_that_ran_out_is_somebody_elses(consumer: Caller, delayq: Broker) -> None:
    put(b"", id="a")
    (job,) = take(consumer, ttr=1)
    with reaping(connections.broker(), "feed"):
        (again,) = Queue("feed").reserve(wait=timedelta(seconds=20))
    assert again.attempt == 2, "it counts as a crash"
    assert end(consumer, "ack", job) == [False]
    assert again.ack()
