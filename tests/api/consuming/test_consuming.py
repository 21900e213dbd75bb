"""Reserve and the ends of held jobs, over HTTP."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from django_delayq import Queue, connections, task
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.task import registry
from django_delayq.pull import search
from django_delayq.worker.attempt import CurrentJob
from tests.support.api_caller import Caller
from tests.support.attempt_stage import make_attempt
from tests.support.event_entries import read_events

from .feed import LOST, end, moment, places, put, scheduled, take

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("delayq")]
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


# --- what cannot be handed out


def test_jobs_that_cannot_be_shown_are_buried_and_the_others_come(consumer: Caller) -> None:
    stored = [b"\xff\xfe", b'"text"', b"[NaN]", b'["\\ud800"]', b"[" * 300 + b"]" * 300]
    bad = [NewJob(f"bad{n}", "api.task", args) for n, args in enumerate(stored)]
    connections.queue("default").schedule_many([*bad, NewJob("good", "api.task", b"[1]")])
    assert [(job["id"], job["args"]) for job in take(consumer, "default", max=9)] == [("good", [1])]
    assert places("default") == {"reserved": 1, "morgue": 5}
    for n, args in enumerate(stored):
        (grave,) = connections.broker().inspector.graves("default", f"bad{n}")
        assert (grave.outcome, grave.reason, grave.job.args) == ("undecodable", "undecodable", args)


# --- how they end


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


def test_a_reserve_ends_when_it_has_taken_enough_bytes(
    caller: Callable[..., Caller], delayq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST_BYTES", 25_000)
    wide = delayq.queue("wide", shards=16, kind="pull")
    wide.schedule_many([NewJob(f"j{n}", "raw", b"x" * 10_000) for n in range(64)])
    consumer = caller("consume")
    seen: list[str] = []
    while jobs := consumer.post("v1/queues/wide/reserve", {"max": 250})[1]["jobs"]:
        # One shard gives what it has in one move (up to 4 MiB); no other one is asked behind that.
        assert len(jobs) <= 16
        seen += [job["id"] for job in jobs]
    assert sorted(seen) == sorted(f"j{n}" for n in range(64))


def test_a_queue_that_was_deleted_and_made_again_is_served(caller: Callable[..., Caller], delayq: Any) -> None:
    program = caller("consume", "admin", "produce")
    for _ in range(3):
        assert program.post("v1/queues", {"name": "mail", "kind": "pull", "shards": 2})[0] == 201
        for number in range(4):
            program.post("v1/queues/mail/jobs", {"id": f"j{number}", "body": "x"})
        _, body = program.post("v1/queues/mail/reserve", {"max": 250})
        assert sorted(job["id"] for job in body["jobs"]) == ["j0", "j1", "j2", "j3"]
        (old,) = [job for job in body["jobs"] if job["id"] == "j0"]
        assert program.delete("v1/queues/mail?force=true")[0] == 204
    assert program.post("v1/queues/mail/ack", {"jobs": [{"id": "j0", "lease": old["lease"]}]})[0] == 404


def test_a_polling_handler_sees_attempts_releases_and_the_first_schedule_in_every_attempt(consumer: Caller) -> None:
    before = timezone.now() - timedelta(milliseconds=1)
    put("x", id="a")
    created = []
    for expected in ((1, 0), (1, 1), (2, 1)):
        (job,) = take(consumer)
        assert (job["attempt"], job["releases"]) == expected
        created.append(job["created"])
        assert end(consumer, "release" if expected == (1, 0) else "fail", job, delay=0)
    (held,) = Queue("feed").reserve(ttr=30)
    assert (held.attempt, held.releases) == (3, 1)
    assert len(set(created)) == 1 and held.created is not None
    assert before <= held.created <= timezone.now()
    assert moment(created[0]) == held.created
    view = CurrentJob(make_attempt(held.record))
    assert (view.attempt, view.releases, view.created) == (3, 1, held.created), "the same names in a worker"


RESERVE = "v1/queues/feed/reserve"


@pytest.fixture
def held(consumer: Caller) -> str:
    """Return the end of the lease of a job."""
    put("held")
    (job,) = take(consumer, ttr=30)
    return str(job["lease_ends"])


@pytest.mark.parametrize("wait", [0, 20])
def test_within_the_margin_of_a_lease_the_answer_comes_at_once_and_says_so(
    consumer: Caller, held: str, wait: int
) -> None:
    asked = {"wait": wait, "holding": [held], "deadline_margin": 60}
    assert consumer.post(RESERVE, asked) == (200, {"jobs": [], "deadline_soon": True})
    assert "Retry-After" not in consumer.response
    put("due")
    status, body = consumer.post("v1/reserve", {"queues": ["wide", "feed"], **asked})
    assert (status, body["jobs"][0]["body"], body["deadline_soon"]) == (200, "due", True)


def test_before_it_nothing_is_said_and_ends_that_are_over_do_not_count(consumer: Caller, held: str) -> None:
    for holding, margin in (([held], 1), (["2020-01-01T00:00:00Z"], 60), ([None], 60), ([], 60)):
        answer = consumer.post(RESERVE, {"holding": holding, "deadline_margin": margin})
        assert answer == (200, {"jobs": []})
        assert consumer.response["Retry-After"] == "1"
