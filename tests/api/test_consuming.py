"""Reserve and the ends of held jobs, over HTTP."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import TestCase

from django_delayq import Queue, connections, schedule, task
from django_delayq.api import brokers, leases
from django_delayq.core import events
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.task import registry
from django_delayq.scheduling.handle import JobHandle
from tests.support.reaping import reaping

from .conftest import Caller

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("delayq")]
EVERY_BYTE = bytes(range(256))
LOST = "0.1234567890123456"


@pytest.fixture
def delayq(delayq: Broker, settings: Any) -> Broker:
    """The process's broker, with "feed" for raw bytes and "wide" in four shards; both are there."""
    kinds = {"feed": {"kind": "pull"}, "wide": {"kind": "pull", "shards": 4}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": kinds}
    for name in kinds:
        connections.broker().queue(name)
    return connections.broker()


@pytest.fixture
def consumer(caller: Callable[..., Caller]) -> Caller:
    """User who may only reserve jobs."""
    return caller("consume")


def put(body: bytes | str, queue: str = "feed", **options: Any) -> JobHandle:
    """Raw bytes, at once: a test is a transaction, which never commits."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        return Queue(queue).put(body, **options)


def scheduled(*args: Any, **options: Any) -> JobHandle:
    with TestCase.captureOnCommitCallbacks(execute=True):
        return schedule(*args, **options)


def places(queue: str) -> dict[str, int]:
    """Count the jobs of a queue by place; empty places are left out."""
    counts = connections.broker().inspector.counts(queue)
    names = ("ready", "delayed", "reserved", "gated", "failed", "morgue")
    return {name: getattr(counts, name) for name in names if getattr(counts, name)}


def take(consumer: Caller, queue: str = "feed", **asked: Any) -> list[dict[str, Any]]:
    status, body = consumer.post(f"v1/queues/{queue}/reserve", asked)
    assert status == 200, body
    return body["jobs"]


def end(consumer: Caller, verb: str, *jobs: dict[str, Any], queue: str = "feed", **more: Any) -> list[bool]:
    """Settle jobs with a verb and return for each if it counted."""
    entries = [{"id": job["id"], "lease": job["lease"], **more} for job in jobs]
    status, body = consumer.post(f"v1/queues/{queue}/{verb}", {"jobs": entries})
    assert status == 200, body
    assert [one["id"] for one in body["results"]] == [job["id"] for job in jobs]
    return [one["counted"] for one in body["results"]]


def moment(text: str) -> datetime:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    return datetime.fromisoformat(text)


# --- reserve


def test_a_job_of_a_pull_queue_comes_with_its_bytes_and_all_that_is_known_of_it(consumer: Caller) -> None:
    due = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    put("grün", id="a", at=due, context={"trace": "t"}, max_attempts=3)
    before = connections.broker().now_ms() / 1000
    (job,) = take(consumer, ttr=30, worker="w1")
    lease_ends = moment(job.pop("lease_ends")).timestamp()
    assert before + 29.99 <= lease_ends <= before + 40
    assert job.pop("due") == "2026-01-02T03:04:05.678Z"
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


VERBS = ("ack", "fail", "release", "bury", "touch")


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
    (event,) = events.read(delayq, queue.name, 0)
    told = event.fields
    assert (event.id, told["task"], told["key"], told["worker"]) == ("a", "raw", job["key"], "w1")
    assert told["due"] == "1700000000000"
    assert took_from - 1 <= int(told["started"]) <= took_to
    assert 0 <= int(told["ms"]) <= delayq.now_ms() - took_from + 1
    brokers.broker().tally.flush()
    figures = delayq.figures()
    assert (figures.lateness["feed"].count, figures.run["feed", "raw"].count) == (1, 1)


def test_the_moment_of_a_lease_is_known_in_later_epochs_too(delayq: Broker) -> None:
    delayq.reshard("feed", 3)
    put(b"")
    (job,) = Queue("feed").reserve()
    assert job.record.shard >= 1024
    assert abs(leases.lease_of(job.record).taken_ms - delayq.now_ms()) < 60_000
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
        ("fail", "delay", -1),
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
    brokers.broker().observe(lambda script, seconds, failed: calls.append(script))
    lost = {**jobs[7], "lease": jobs[7]["lease"].partition(".")[0] + ".5"}
    assert end(consumer, "fail", *jobs[:7], lost, *jobs[8:], queue="wide", error="no") == (
        [True] * 7 + [False] + [True] * 242
    )
    assert places("wide") == {"delayed": 249, "failed": 249, "reserved": 1}
    assert calls.count("fail") == 4


def test_a_job_of_an_older_epoch_ends_where_it_is_held(consumer: Caller, delayq: Broker) -> None:
    put(b"", id="a")
    (job,) = take(consumer)
    brokers.broker().reshard("feed", 3)
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
