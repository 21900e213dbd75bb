"""Jobs come in over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import pytest
from django.db.models import Model

from django_delayq import signals
from django_delayq.client import errors
from django_delayq.core.broker import Broker
from django_delayq.models import OutboxJob
from django_delayq.scheduling.build import Scheduling
from tests.support.api_caller import Caller
from tests.support.moments import in_days

from ..support.redis_box import RedisBox
from .errands import contents, live, waiting

JOBS = "v1/queues/errands/jobs"
HERE = "tests.api.test_produce"
tenant: ContextVar[str] = ContextVar("tenant")


@pytest.fixture
def pull(settings: Any, delayq: Broker) -> str:
    """The jobs of a queue of kind pull."""
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"raw": {"kind": "pull"}}}
    return "v1/queues/raw/jobs"


def row_keys() -> list[tuple[str, str]]:
    model: type[Model] = OutboxJob
    return list(model._default_manager.order_by("pk").values_list("job_id", "state"))


# --- one job ---


def test_a_job_is_stored_as_schedule_would_store_it(api: Caller, delayq: Broker) -> None:
    status, body = api.post(
        JOBS,
        {
            "task": "errands.greet",
            "args": ["Ada"],
            "kwargs": {"password": "x"},
            "id": "a/b",
            "delay": 60,
            "priority": 1,
            "max_attempts": 7,
            "retry_in": [5, 10],
            "expires": 3600,
            "ttr": 300,
            "timeout": 2.0,
            "context": {"trace": "t1"},
        },
    )
    view = live(delayq, "a/b")
    assert status == 201
    assert body == {"id": "a/b", "queue": "errands", "outcome": "created", "due": body["due"]}
    assert abs(datetime.fromisoformat(body["due"]).timestamp() * 1000 - view.due_ms) < 1000
    assert api.response["Location"] == "/delayq/v1/queues/errands/jobs/a%2Fb"
    assert (view.job.task, view.arguments, view.job.priority) == ("errands.greet", (["Ada"], {"password": "x"}), 1)
    assert 55_000 < view.due_ms - delayq.now_ms() <= 60_000
    assert view.job.options == {
        "max_attempts": 7,
        "retry_in": [5, 10],
        "expires_in_ms": 3_600_000,
        "ttr_ms": 300_000,
        "timeout": 2,
        "context": {"trace": "t1"},
    }


def test_the_location_leads_to_the_job(api: Caller) -> None:
    for ident in ("plain", "a/b//c", "50%", "what?", "ö ü", "a#b", "%2F", ".", "..", "/lead", "trail/"):
        api.post(JOBS, {"task": "errands.carry", "id": ident, "delay": 60})
        where = api.response["Location"].removeprefix("/delayq/")
        status, body = api.get(where)
        jobs = body["jobs"] if "?id=" in where else [body]
        assert (status, [job["id"] for job in jobs]) == (200, [ident])


def test_a_job_without_anything_is_due_now_under_a_random_id(api: Caller, delayq: Broker) -> None:
    status, body = api.post(JOBS, {"task": "errands.carry"})
    assert (status, body["outcome"], waiting(delayq)) == (201, "created", [body["id"]])
    assert live(delayq, body["id"]).state == "ready"


def test_a_moment_is_iso_8601_or_unix_seconds(api: Caller, delayq: Broker) -> None:
    for at in ("2030-01-01T00:00:00Z", "2030-01-01T01:00:00+01:00", 1893456000, 1893456000.0):
        status, body = api.post(JOBS, {"task": "errands.carry", "id": "x", "at": at})
        assert (status, body["due"]) == (201, "2030-01-01T00:00:00.000Z")
        assert live(delayq, "x").due_ms == 1893456000_000
    moment = in_days(30)
    api.post(JOBS, {"task": "errands.carry", "id": "x", "expires": moment.isoformat()})
    assert live(delayq, "x").job.options == {"expires_ms": moment.timestamp() * 1000}


def test_the_second_job_of_an_id_replaces_or_is_ignored_or_refused(api: Caller, delayq: Broker) -> None:
    job = {"task": "errands.carry", "id": "x", "delay": 60}
    ignored, refused = {"on_conflict": "ignore"}, {"on_conflict": "error"}
    told = []
    for n, more in enumerate(({}, {}, ignored, refused, {"task": "errands.greet"})):
        status, body = api.post(JOBS, {**job, "args": [n], **more})
        told.append((status, body.get("outcome") or body["code"]))
    taken = (409, "id_taken")
    assert told == [(201, "created"), (201, "replaced"), (200, "ignored"), taken, taken]
    assert live(delayq, "x").arguments == ([1], {})


def test_payloads_of_a_merged_task_are_united(api: Caller, delayq: Broker) -> None:
    outcomes = []
    for n in range(3):
        job = {"task": "errands.collect", "id": 5, "payload": {"n": n}, "score": 3 - n, "delay": 60}
        outcomes.append(api.post(JOBS, job)[1]["outcome"])
    assert outcomes == ["created", "merged", "merged"]
    stored = [payload.data for payload in delayq.inspector.payloads("errands", "5")]
    assert stored == [b'{"n":2}', b'{"n":1}', b'{"n":0}']


TAGS: list[dict[str, Any]] = [
    {"$dt": "2030-01-01T00:00:00+00:00"},
    {"$b": "AAAA"},
    {"$dec": "1.5"},
    {"$$dt": 1},
    {"$": 1},
    {"$.money": [1, 2]},
    {"$uuid": "no uuid"},
    {"$unknown": {"$d": "2030-01-01"}},
]


def test_what_looks_like_a_tag_of_the_codec_arrives_as_it_was_sent(api: Caller, delayq: Broker) -> None:
    for n, value in enumerate(TAGS):
        args, kwargs = [value, [value], {"deep": [value]}], {"one": value}
        api.post(JOBS, {"task": "errands.carry", "id": f"x{n}", "args": args, "kwargs": kwargs})
        api.post(JOBS, {"task": "errands.carry", "id": f"y{n}", "kwargs": value})
        api.post(JOBS, {"task": "errands.collect", "id": f"z{n}", "payload": value})
        assert live(delayq, f"x{n}").arguments == (args, kwargs)
        assert live(delayq, f"y{n}").arguments == ([], value)
        shown = api.get(f"{JOBS}/x{n}")[1]
        assert (shown["args"], shown["kwargs"]) == (args, kwargs)
        assert [one["payload"] for one in api.get(f"{JOBS}/z{n}")[1]["payloads"]] == [value]


def test_only_tasks_of_the_api_can_be_called_and_nobody_learns_of_others(api: Caller, delayq: Broker) -> None:
    delayq.queue("errands")
    before = contents(delayq)
    answers = [api.post(JOBS, {"task": name, "args": [1]}) for name in ("errands.secret", "errands.nosuch")]
    assert [(status, body["code"]) for status, body in answers] == [(404, "task_not_found")] * 2
    first, second = (
        json.dumps(body).replace(name, "?")
        for (_, body), name in zip(answers, ("errands.secret", "errands.nosuch"), strict=True)
    )
    assert first == second
    assert contents(delayq) == before


def test_the_queue_of_the_address_wins_over_the_task_s_own_if_it_is_known(api: Caller, delayq: Broker) -> None:
    assert api.post("v1/queues/typo/jobs", {"task": "errands.carry"})[1]["code"] == "queue_not_found"
    assert delayq.queue_names() == []
    delayq.queue("elsewhere")
    status, body = api.post("v1/queues/elsewhere/jobs", {"task": "errands.carry", "id": "x"})
    assert (status, body["queue"], live(delayq, "x", "elsewhere").job.task) == (201, "elsewhere", "errands.carry")
    assert api.response["Location"] == "/delayq/v1/queues/elsewhere/jobs/x"


# --- bytes ---


def test_bytes_go_to_a_queue_of_kind_pull_as_text_or_base64(api: Caller, pull: str, delayq: Broker) -> None:
    assert api.post(pull, {"id": "a", "body": "grün\n", "delay": 5, "priority": 0})[0] == 201
    assert api.post(pull, {"id": "b", "body_base64": "/wA="})[0] == 201
    assert api.post(pull, {"id": "c", "body": ""})[0] == 201
    assert [live(delayq, ident, "raw").job.args for ident in "abc"] == ["grün\n".encode(), b"\xff\x00", b""]
    assert live(delayq, "a", "raw").job.priority == 0


# --- many ---


def test_many_jobs_are_answered_in_the_order_asked(api: Caller, delayq: Broker) -> None:
    api.post(JOBS, {"task": "errands.carry", "id": "old", "delay": 60})
    status, body = api.post(
        JOBS,
        {
            "jobs": [
                {"task": "errands.carry", "id": "new", "delay": 60},
                {"task": "errands.carry", "id": "old", "delay": 60},
                {"task": "errands.carry", "id": "old", "on_conflict": "ignore"},
                {"task": "errands.greet", "id": "old", "args": ["Ada"]},
                {"task": "errands.carry", "id": "old", "on_conflict": "error"},
                {"task": "errands.collect", "id": "m", "payload": 1, "delay": 60},
                {"task": "errands.collect", "id": "m", "payload": 2},
            ]
        },
    )
    assert (status, body) == (
        200,
        {
            "results": [
                {"id": "new", "outcome": "created"},
                {"id": "old", "outcome": "replaced"},
                {"id": "old", "outcome": "ignored"},
                {"id": "old", "outcome": "taken"},
                {"id": "old", "outcome": "exists"},
                {"id": "m", "outcome": "created"},
                {"id": "m", "outcome": "merged"},
            ],
            "counts": {"created": 2, "replaced": 1, "ignored": 1, "taken": 1, "exists": 1, "merged": 1},
        },
    )
    assert sorted(waiting(delayq)) == ["m", "new", "old"]


def test_one_wrong_job_among_many_means_that_none_is_stored(api: Caller, delayq: Broker) -> None:
    delayq.queue("errands")
    before = contents(delayq)
    status, body = api.post(
        JOBS,
        {
            "jobs": [
                {"task": "errands.carry"},
                {"task": "errands.carry", "delay": "soon"},
                "no job",
                {"task": "errands.carry", "id": ""},
                {"task": "errands.carry", "args": [{"a": [1e300, "x" * 3_000_000]}]},
            ]
        },
    )
    assert (status, body["code"]) == (400, "invalid")
    assert [error["pointer"] for error in body["errors"]] == ["/jobs/1/delay", "/jobs/2", "/jobs/3/id", "/jobs/4"]
    status, body = api.post(JOBS, {"jobs": [{"task": "errands.carry"}, {"task": "errands.secret"}, {"task": "nosuch"}]})
    assert (status, body["code"]) == (404, "task_not_found")
    assert [error["pointer"] for error in body["errors"]] == ["/jobs/1/task", "/jobs/2/task"]
    assert contents(delayq) == before


def test_more_jobs_than_a_request_may_have_are_refused(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"max_jobs": 3}}
    status, body = api.post(JOBS, {"jobs": [{"task": "errands.carry"}] * 4})
    assert (status, body["code"], delayq.queue_names()) == (413, "too_large", [])
    assert api.post(JOBS, {"jobs": [{"task": "errands.carry"}] * 3})[0] == 200


def test_a_full_queue_answers_429_and_when_to_come_again(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"errands": {"max_length": 2}}}
    many = {"jobs": [{"task": "errands.carry", "delay": 60}] * 3}
    assert api.post(JOBS, many)[1]["counts"] == {"created": 2, "full": 1}
    for body in (many, {"task": "errands.carry"}):
        status, answer = api.post(JOBS, body)
        assert (status, answer["code"], api.response["Retry-After"]) == (429, "queue_full", "5")
    assert len(waiting(delayq)) == 2


def test_of_many_jobs_all_or_none_are_stored_on_demand(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"errands": {"max_length": 4, "shards": 1}}}
    three = [{"task": "errands.carry", "id": ident, "on_conflict": "error", "delay": 60} for ident in "abc"]
    status, answer = api.post(JOBS, {"jobs": three, "all_or_none": True})
    assert (status, answer["counts"], waiting(delayq)) == (200, {"created": 3}, [*"abc"])
    again = [{"task": "errands.carry", "id": "d"}, *three]
    status, answer = api.post(JOBS, {"jobs": again, "all_or_none": True})
    outcomes = [one["outcome"] for one in answer["results"]]
    assert (status, outcomes, waiting(delayq)) == (200, ["withheld", *["exists"] * 3], [*"abc"])
    two = [{"task": "errands.carry"}] * 2
    assert api.post(JOBS, {"jobs": [*two, {"task": "errands.carry", "id": "a"}], "all_or_none": True})[0] == 429
    assert (api.post(JOBS, {"jobs": two, "all_or_none": True})[0], waiting(delayq)) == (429, [*"abc"])
    assert api.post(JOBS, {"jobs": two, "all_or_none": False})[1]["counts"] == {"created": 1, "full": 1}


def test_a_paused_queue_answers_503_and_when_to_come_again(api: Caller, delayq: Broker) -> None:
    delayq.queue("errands")
    delayq.pause("errands", "in")
    for body in ({"jobs": [{"task": "errands.carry"}] * 3}, {"task": "errands.carry"}):
        status, answer = api.post(JOBS, body)
        assert (status, answer["code"], api.response["Retry-After"]) == (503, "queue_paused", "5")
    assert waiting(delayq) == []


@pytest.mark.broken_on_purpose
@pytest.mark.one_server("fills a Redis of its own")
def test_a_redis_without_memory_answers_429(api: Caller, redis_factory: Callable[..., RedisBox], settings: Any) -> None:
    from django_delayq import connections

    box = redis_factory()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": box.url}
    connections.close_broker()
    assert api.post(JOBS, {"task": "errands.carry"})[0] == 201
    box.client().config_set("maxmemory", 1000)
    for body in ({"jobs": [{"task": "errands.carry"}] * 3}, {"task": "errands.carry"}):
        status, answer = api.post(JOBS, body)
        assert (status, answer["code"], "Retry-After" in api.response) == (429, "queue_full", True)


@pytest.mark.broken_on_purpose
@pytest.mark.one_server("ends a Redis of its own")
def test_without_redis_a_job_is_refused_and_a_durable_one_is_left_to_the_outbox(
    api: Caller, redis_factory: Callable[..., RedisBox], settings: Any
) -> None:
    from django_delayq import connections

    box = redis_factory()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": box.url}
    connections.close_broker()
    assert api.post(JOBS, {"task": "errands.carry"})[0] == 201
    box.kill()
    status, answer = api.post(JOBS, {"task": "errands.carry"})
    assert (status, answer["code"], "Retry-After" in api.response) == (503, "unavailable", True)
    status, answer = api.post(JOBS, {"task": "errands.keep", "id": "keyed"}, **{"Idempotency-Key": "k"})
    assert (status, answer["code"], "Retry-After" in api.response) == (503, "unavailable", True), "its key needs Redis"
    status, answer = api.post(JOBS, {"task": "errands.keep", "id": "k"})
    assert (status, answer["outcome"], row_keys()) == (202, "outbox", [("k", "unsent")])
    status, answer = api.post(JOBS, {"jobs": [{"task": "errands.keep", "id": "l"}]})
    assert (status, answer["counts"], row_keys()) == (202, {"outbox": 1}, [("k", "unsent"), ("l", "unsent")])
    connections.close_broker()


def test_durable_jobs_get_a_row_as_those_of_schedule_do(api: Caller, delayq: Broker) -> None:
    assert api.post(JOBS, {"task": "errands.keep", "id": "a", "delay": 60})[1]["outcome"] == "created"
    body = api.post(
        JOBS,
        {
            "jobs": [
                {"task": "errands.keep", "id": "b"},
                {"task": "errands.carry", "id": "c"},
                {"task": "errands.carry", "id": "d", "durable": True},
                {"task": "errands.keep", "id": "e", "durable": False},
            ]
        },
    )[1]
    assert body["results"] == [{"id": ident, "outcome": "created"} for ident in "bcde"]
    assert row_keys() == [("a", "sent"), ("b", "sent"), ("d", "sent")]
    assert sorted(waiting(delayq)) == ["a", "b", "c", "d", "e"]


def test_receivers_hear_of_each_job(api: Caller, delayq: Broker) -> None:
    heard: list[Any] = []

    def hear(sender: Any, **words: Any) -> None:
        heard.append((sender.name, words["id"], words["queue"], words["outcome"]))

    signals.job_scheduled.connect(hear)
    try:
        api.post(JOBS, {"task": "errands.carry", "id": "a"})
        api.post(
            JOBS, {"jobs": [{"task": "errands.carry", "id": "b"}, {"task": "errands.greet", "id": "a", "args": ["x"]}]}
        )
    finally:
        signals.job_scheduled.disconnect(hear)
    assert heard == [("errands.carry", ident, "errands", "created") for ident in "ab"]


def with_tenant(next: Callable[[Scheduling], Any]) -> Callable[[Scheduling], Any]:
    def call(scheduling: Scheduling) -> Any:
        scheduling.options["context"] = {"tenant": 5}
        if scheduling.kwargs.pop("skip", False):
            return "nothing"
        if scheduling.kwargs.pop("other", False):
            scheduling.task, scheduling.args, scheduling.options["queue"] = "errands.secret", (1,), "aside"
        handle = next(scheduling)
        seen.append(handle.outcome)
        return handle

    return call


seen: list[str] = []


def test_schedule_middlewares_stand_around_each_job(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "SCHEDULE_MIDDLEWARE": [f"{HERE}.with_tenant"]}
    seen.clear()
    assert api.post(JOBS, {"task": "errands.carry", "id": "a"})[0] == 201
    body = api.post(
        JOBS, {"jobs": [{"task": "errands.carry", "id": "b"}, {"task": "errands.carry", "kwargs": {"skip": True}}]}
    )[1]
    assert body == {
        "results": [{"id": "b", "outcome": "created"}, {"id": None, "outcome": "skipped"}],
        "counts": {"created": 1, "skipped": 1},
    }
    assert [live(delayq, ident).job.context for ident in "ab"] == [{"tenant": 5}] * 2
    assert seen == ["created", "collected"]
    status, body = api.post(JOBS, {"task": "errands.carry", "kwargs": {"skip": True}})
    assert (status, body) == (200, {"id": None, "queue": "errands", "outcome": "skipped", "due": None})


def test_a_schedule_middleware_may_send_a_job_elsewhere(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "SCHEDULE_MIDDLEWARE": [f"{HERE}.with_tenant"]}
    status, body = api.post(JOBS, {"task": "errands.carry", "id": "a", "kwargs": {"other": True}})
    assert (status, body["queue"], api.response["Location"]) == (201, "aside", "/delayq/v1/queues/aside/jobs/a")
    assert live(delayq, "a", "aside").job.task == "errands.secret"


def test_context_variables_travel_along(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CONTEXT": {"tenant": f"{HERE}.tenant"}}
    token = tenant.set("acme")
    try:
        api.post(
            JOBS,
            {
                "jobs": [
                    {"task": "errands.carry", "id": "a", "context": {"more": 1}},
                    {"task": "errands.carry", "id": "b"},
                ]
            },
        )
    finally:
        tenant.reset(token)
    assert [live(delayq, ident).job.context for ident in "ab"] == [{"tenant": "acme", "more": 1}, {"tenant": "acme"}]


# --- confirmation, and room


@pytest.fixture
def alone(delayq: Any, redis_setting: Any, settings: Any) -> Any:
    """Demand a replica, of which there is none."""
    plain = {"URL": redis_setting} if isinstance(redis_setting, str) else redis_setting
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": {**plain, "WAIT_REPLICAS": 1, "WAIT_TIMEOUT": 0.1}}
    delayq.queue("images", kind="pull")
    return delayq


def test_a_missing_confirmation_is_a_problem_of_its_own_each_time_that_the_request_is_sent(
    api: Caller, alone: Any
) -> None:
    for number, entry in enumerate(({"body": "x"}, {"jobs": [{"body": "x"}]})):
        for _ in range(2):
            status, problem = api.post("v1/queues/images/jobs", entry, **{"Idempotency-Key": f"k{number}"})
            assert (status, problem["code"]) == (503, "not_confirmed")
            assert "is stored" in problem["detail"]
            assert "again with the same id" in problem["detail"]
    assert alone.inspector.counts("images").ready == 2
    error = errors.error_of(status, problem, 5)
    assert isinstance(error, errors.NotConfirmed)
    assert isinstance(error, errors.TryLater)


def test_a_job_may_do_without(api: Caller, alone: Any) -> None:
    assert api.post("v1/queues/images/jobs", {"body": "x", "wait_for_confirmation": False})[0] == 201
    assert api.post("v1/queues/images/jobs", {"jobs": [{"body": "x", "wait_for_confirmation": False}]})[0] == 200


def test_a_request_waits_for_room_as_long_as_it_says(api: Caller, delayq: Any) -> None:
    delayq.queue("images", kind="pull")
    delayq.limit("images", max_length=1)
    assert api.post("v1/queues/images/jobs", {"body": "x", "id": "1"})[0] == 201
    timer = threading.Timer(0.4, lambda: delayq.queue("images").cancel("1"))
    timer.start()
    assert api.post("v1/queues/images/jobs", {"body": "y", "wait_for_room": 10})[0] == 201
    timer.join()
    for entry in ({"body": "z", "wait_for_room": 0.3}, {"jobs": [{"body": "z", "wait_for_room": 0.3}]}):
        began = time.monotonic()
        status, problem = api.post("v1/queues/images/jobs", entry)
        assert (status, problem["code"]) == (429, "queue_full")
        assert time.monotonic() - began >= 0.3
