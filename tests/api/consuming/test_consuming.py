"""Reserve and the ends of held jobs, over HTTP."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from django_delayq import Queue, connections, task
from django_delayq.api import settle
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.task import registry
from tests.support.api_caller import Caller
from tests.support.event_entries import read_events

from .feed import LOST, VERBS, end, moment, places, put, scheduled, take

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("delayq")]
EVERY_BYTE = bytes(range(256))
# --- reserve


def test_a_job_of_a_pull_queue_comes_with_its_bytes_and_all_that_is_known_of_it(consumer: Caller) -> None:
    due = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    put("grün", id="a", at=due, context={"trace": "t"}, max_attempts=3)
    before = connections.broker().now_ms() / 1000
    (job,) = take(consumer, ttr=30, worker="w1")
    lease_ends = moment(job.pop("lease_ends")).timestamp()
    assert before + 29.99 <= lease_ends <= before + 40
    assert job.pop("due") == "2026-01-02T03:04:05.678Z"
    assert before - 1 <= moment(job.pop("created")).timestamp() <= time.time()
    assert re.fullmatch(r"0\.\d{16}", job.pop("lease"))
    assert re.fullmatch(r"[0-9a-f]{32}", job.pop("key"))
    assert job == {
        "queue": "feed",
        "id": "a",
        "task": "raw",
        "body": "grün",
        "attempt": 1,
        "failures": 0,
        "noe": 0,
        "releases": 0,
        "lives": 3,
        "context": {"trace": "t"},
    }
    (seen,) = connections.broker().inspector.page("feed", "reserved").jobs
    assert seen.job.worker == "w1"


def test_bytes_that_are_no_text_come_in_base64(consumer: Caller) -> None:
    put(EVERY_BYTE)
    (job,) = take(consumer)
    assert "body" not in job and base64.b64decode(job["body_base64"]) == EVERY_BYTE


def test_the_holder_is_named_after_the_user(consumer: Caller) -> None:
    put(b"")
    take(consumer)
    (seen,) = connections.broker().inspector.page("feed", "reserved").jobs
    assert seen.job.worker == consumer.user.username


def test_a_call_of_a_task_comes_with_its_arguments_as_they_are_stored(consumer: Caller) -> None:
    @task(name="api.pay")
    def pay(amount: Decimal, *, note: str) -> None:
        return None

    try:
        scheduled(pay, Decimal("1.50"), note="n", id="p")
        scheduled(pay, args=[Decimal(2)], kwargs={"note": "password=hunter2"}, id="q")
        found = {job["id"]: job for job in take(consumer, "default", max=5)}
    finally:
        registry.remove(pay)
    assert {name: (job["task"], job["args"], job["kwargs"]) for name, job in found.items()} == {
        "p": ("api.pay", [{"$dec": "1.50"}], {"note": "n"}),
        "q": ("api.pay", [{"$dec": "2"}], {"note": "password=hunter2"}),
    }


def test_a_merged_job_comes_with_its_payloads_and_ends_with_them(consumer: Caller) -> None:
    @task(name="api.merged", queue="crm", merge=True)
    def merged(payloads_by_id: dict[str, list[Any]]) -> None:
        return None

    try:
        for score in (2, 1):
            scheduled(merged, id="57", payload={"version": score}, score=score)
        (job,) = take(consumer, "crm")
        assert (job["payloads"], "args" in job) == ([{"version": 1}, {"version": 2}], False)
        assert end(consumer, "fail", job, queue="crm", delay=0) == [True]
        (again,) = take(consumer, "crm")
        assert (again["payloads"], again["attempt"]) == ([{"version": 1}, {"version": 2}], 2)
        assert end(consumer, "ack", again, queue="crm") == [True]
        assert places("crm") == {}
    finally:
        registry.remove(merged)


def test_nothing_due_is_an_empty_list_that_says_when_to_ask_again(consumer: Caller) -> None:
    put(b"", delay=60)
    began = time.monotonic()
    assert consumer.post("v1/queues/feed/reserve", {"wait": 20}) == (200, {"jobs": []})
    assert consumer.response["Retry-After"] == "1"
    assert time.monotonic() - began < 10, "under WSGI nothing waits"


def test_jobs_are_taken_of_several_queues_in_turn(consumer: Caller) -> None:
    for name in ("feed", "wide"):
        for number in range(4):
            put(b"", name, id=number)
    found = [consumer.post("v1/reserve", {"queues": ["feed", "wide"]})[1]["jobs"][0]["queue"] for _ in range(8)]
    assert sorted(found) == ["feed"] * 4 + ["wide"] * 4
    assert {found[0], found[1]} == {"feed", "wide"}


def test_a_queue_that_there_is_not_is_not_made(consumer: Caller, delayq: Broker) -> None:
    before = delayq.queue_names()
    for path, body in (
        ("v1/queues/nowhere/reserve", {}),
        ("v1/reserve", {"queues": ["feed", "nowhere"]}),
        ("v1/queues/nowhere/ack", {"jobs": [{"id": "a", "lease": LOST}]}),
        ("v1/queues/nowhere/touch", {"jobs": [{"id": "a", "lease": LOST}]}),
    ):
        status, problem = consumer.post(path, body)
        assert (status, problem["code"]) == (404, "queue_not_found"), path
    assert delayq.queue_names() == before


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({"max": 0}, "/max"),
        ({"max": 251}, "/max"),
        ({"max": True}, "/max"),
        ({"max": "1"}, "/max"),
        ({"wait": 20.1}, "/wait"),
        ({"wait": -1}, "/wait"),
        ({"wait": "nan"}, "/wait"),
        ({"ttr": 0}, "/ttr"),
        ({"ttr": 3601}, "/ttr"),
        ({"ttr": None}, "/ttr"),
        ({"worker": "w" * 201}, "/worker"),
        ({"worker": "é" * 150}, "/worker"),
        ({"worker": 5}, "/worker"),
        ({"limit": 5}, "/limit"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(consumer: Caller, asked: dict[str, Any], pointer: str) -> None:
    status, problem = consumer.post("v1/queues/feed/reserve", asked)
    assert (status, problem["code"]) == (400, "invalid")
    assert [error["pointer"] for error in problem["errors"]] == [pointer]


@pytest.mark.parametrize(
    ("queues", "pointer"),
    [([], "/queues"), ("feed", "/queues"), (["feed"] * 51, "/queues"), (["feed", 5], "/queues/1"), (None, "/queues")],
)
def test_a_list_of_queues_that_is_none_is_refused(consumer: Caller, queues: Any, pointer: str) -> None:
    status, problem = consumer.post("v1/reserve", {"queues": queues})
    assert (status, [error["pointer"] for error in problem["errors"]]) == (400, [pointer])


def not_wide(request: Any, action: str, queue: str) -> bool:
    """A project's own word: names of queues only, and "wide" is not for everybody."""
    return action == "consume" and queue == "feed"


def test_the_project_is_asked_for_every_queue(consumer: Caller, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"allow": f"{__name__}.not_wide"}}
    put(b"", "wide")
    assert consumer.post("v1/reserve", {"queues": ["feed"]}) == (200, {"jobs": []})
    for path, body in (
        ("v1/reserve", {"queues": ["feed", "wide"]}),
        ("v1/queues/wide/reserve", {}),
        ("v1/queues/wide/ack", {"jobs": [{"id": "a", "lease": LOST}]}),
    ):
        status, problem = consumer.post(path, body)
        assert (status, problem["code"]) == (403, "permission_denied"), path
    assert places("wide") == {"ready": 1}


@pytest.mark.parametrize("path", ["reserve", "queues/feed/reserve", *(f"queues/feed/{verb}" for verb in VERBS)])
def test_only_consumers_may(path: str, caller: Callable[..., Caller]) -> None:
    assert caller(anonymous=True).post(f"v1/{path}", {})[0] == 401
    assert caller("view", "produce", "operate", "admin").post(f"v1/{path}", {})[0] == 403
    assert caller("consume").get(f"v1/{path}")[0] == 405


# --- what cannot be handed out


@pytest.mark.parametrize("stored", [b"\xff\xfe", b'"text"', b"[NaN]", b'["\\ud800"]', b"[" * 300 + b"]" * 300])
def test_a_job_that_cannot_be_shown_is_buried_and_the_others_come(consumer: Caller, stored: bytes) -> None:
    connections.queue("default").schedule_many([NewJob("bad", "api.task", stored), NewJob("good", "api.task", b"[1]")])
    assert [(job["id"], job["args"]) for job in take(consumer, "default", max=5)] == [("good", [1])]
    assert places("default") == {"reserved": 1, "morgue": 1}
    (grave,) = connections.broker().inspector.graves("default", "bad")
    assert (grave.outcome, grave.reason, grave.job.args) == ("undecodable", "undecodable", stored)


# --- how they end


def test_an_acked_job_is_gone(consumer: Caller) -> None:
    put(b"")
    (job,) = take(consumer)
    assert end(consumer, "ack", job) == [True]
    assert places("feed") == {}
    assert end(consumer, "ack", job) == [False], "once"


def test_an_end_is_told_with_when_it_began_and_how_long_it_took(consumer: Caller, delayq: Broker) -> None:
    put(b"", id="a", at=1_700_000_000)
    took_from = delayq.now_ms()
    (job,) = take(consumer, worker="w1")
    took_to = delayq.now_ms()
    assert end(consumer, "ack", job) == [True]
    queue = delayq.queue("feed")
    (event,) = read_events(delayq, queue.name, 0)
    told = event.fields
    assert (event.id, told["task"], told["key"], told["worker"]) == ("a", "raw", job["key"], "w1")
    assert told["due"] == "1700000000000"
    assert took_from - 1 <= int(told["started"]) <= took_to
    assert 0 <= int(told["ms"]) <= delayq.now_ms() - took_from + 1
    connections.hurried_broker().tally.flush()
    figures = delayq.figures()
    assert (figures.lateness["feed"].count, figures.run["feed", "raw"].count) == (1, 1)


def test_the_moment_of_a_lease_is_known_in_later_epochs_too(delayq: Broker) -> None:
    delayq.reshard("feed", 3)
    put(b"")
    (job,) = Queue("feed").reserve()
    assert job.record.shard >= 1024
    assert abs(settle.lease_of(job.record).taken_ms - delayq.now_ms()) < 60_000
    assert job.ack()


def test_a_failed_job_waits_for_its_next_attempt(consumer: Caller) -> None:
    put(b"", id="a")
    (job,) = take(consumer)
    told = {"class": "TimeoutError", "message": "no answer", "traceback": "at fetch (w.js:12)"}
    assert end(consumer, "fail", job, error=told) == [True]
    assert places("feed") == {"delayed": 1, "failed": 1}
    (seen,) = connections.broker().inspector.page("feed", "failed").jobs
    assert (seen.error, seen.job.failures) == (told, 1)
    assert seen.due_ms - connections.broker().now_ms() > 10_000, "the usual back-off"


def test_the_error_may_be_a_text_and_the_back_off_of_the_callers(consumer: Caller) -> None:
    put(b"", id="a")
    (job,) = take(consumer)
    assert end(consumer, "fail", job, error="503", delay=0) == [True]
    (again,) = take(consumer)
    assert (again["attempt"], again["failures"], again["noe"], again["lives"]) == (2, 1, 1, 25)
    assert again["lease"] != job["lease"] and again["key"] == job["key"]
    (seen,) = connections.broker().inspector.page("feed", "reserved").jobs
    assert seen.error == {"class": "", "message": "503", "traceback": ""}


def test_the_last_attempt_of_a_job_is_its_own_or_its_tasks(consumer: Caller) -> None:
    @task(name="api.once", max_attempts=1)
    def once() -> None:
        return None

    try:
        put(b"", id="a", max_attempts=2)
        scheduled(once, id="b")
        for verb in ("delayed", "morgue"):
            (job,) = take(consumer)
            assert end(consumer, "fail", job, error="no", delay=0) == [True]
            assert (verb == "morgue") is (places("feed") == {"morgue": 1})
        (job,) = take(consumer, "default")
        assert job["lives"] == 1
        assert end(consumer, "fail", job, queue="default") == [True]
    finally:
        registry.remove(once)
    (grave,) = connections.broker().inspector.graves("default", "b")
    assert (grave.reason, grave.outcome) == ("exhausted", "exhausted")


def test_what_the_task_does_not_try_again_is_buried_under_the_name_that_the_error_has(consumer: Caller) -> None:
    @task(name="api.picky", retry_for=(ConnectionError,))
    def picky() -> None:
        return None

    try:
        scheduled(picky, id="a")
        (job,) = take(consumer, "default")
        assert end(consumer, "fail", job, queue="default", error={"class": "Boom"}) == [True]
    finally:
        registry.remove(picky)
    (grave,) = connections.broker().inspector.graves("default", "a")
    assert (grave.reason, grave.error_class) == ("not retried: Boom", "Boom")


def test_a_released_job_is_back_uncounted(consumer: Caller) -> None:
    put(b"", id="a")
    (job,) = take(consumer)
    assert end(consumer, "release", job, priority=0) == [True]
    (again,) = take(consumer)
    assert (again["attempt"], again["noe"], again["due"]) == (1, 1, job["due"])
    (seen,) = connections.broker().inspector.page("feed", "reserved").jobs
    assert seen.job.priority == 0
    assert end(consumer, "release", again, delay=3600) == [True]
    (seen,) = connections.broker().inspector.page("feed", "waiting").jobs
    assert 3_590_000 < seen.due_ms - connections.broker().now_ms() <= 3_600_001


def test_a_buried_job_lies_in_the_morgue_with_its_reason(consumer: Caller) -> None:
    put(b"x", id="a")
    put(b"y", id="b")
    first, second = take(consumer, max=2)
    assert end(consumer, "bury", first, reason="no such order") == [True]
    assert end(consumer, "bury", second) == [True]
    found = {ident: connections.broker().inspector.graves("feed", ident)[0].reason for ident in ("a", "b")}
    assert found == {"a": "no such order", "b": "buried"}


def test_a_touched_job_is_held_longer(consumer: Caller) -> None:
    put(b"", id="a")
    (job,) = take(consumer, ttr=5)
    now = connections.broker().now_ms() / 1000
    status, body = consumer.post(
        "v1/queues/feed/touch",
        {
            "jobs": [
                {"id": "a", "lease": job["lease"], "ttr": 600},
                {"id": "a", "lease": LOST},
                {"id": "b", "lease": "7.5"},
            ]
        },
    )
    lease_ends = moment(body["results"][0].pop("lease_ends")).timestamp()
    assert now + 599.99 <= lease_ends <= now + 660
    assert (status, body["results"]) == (
        200,
        [
            {"id": "a", "held": True, "stopping": False},
            {"id": "a", "held": False, "stopping": False, "lease_ends": None},
            {"id": "b", "held": False, "stopping": False, "lease_ends": None},
        ],
    )
    (seen,) = connections.broker().inspector.page("feed", "reserved").jobs
    assert seen.deadline_ms is not None and seen.deadline_ms >= lease_ends * 1000 - 1


def test_a_touch_tells_of_a_cancellation(consumer: Caller) -> None:
    put(b"", id="a")
    (job,) = take(consumer)
    assert connections.queue("feed").cancel("a") == "stopping"
    _, body = consumer.post("v1/queues/feed/touch", {"jobs": [{"id": "a", "lease": job["lease"]}]})
    assert (body["results"][0]["held"], body["results"][0]["stopping"]) == (True, True)
    assert end(consumer, "fail", job) == [True]
    assert places("feed") == {}, "it does not come back"
