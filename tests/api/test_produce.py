"""Jobs come in over HTTP."""

from __future__ import annotations

import json
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import pytest
from django.db.models import Model

from django_delayq.core.broker import Broker
from django_delayq.models import OutboxJob
from tests.support.api_caller import Caller
from tests.support.moments import in_days

from .errands import contents, live, waiting

JOBS = "v1/queues/errands/jobs"
HERE = "tests.api.test_produce"
#: deeper than arguments may be, and not too deep for a request
DEEP = json.loads("[" * 40 + "]" * 40)
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


@pytest.mark.parametrize("at", ["2030-01-01T00:00:00Z", "2030-01-01T01:00:00+01:00", 1893456000, 1893456000.0])
def test_a_moment_is_iso_8601_or_unix_seconds(api: Caller, delayq: Broker, at: Any) -> None:
    status, body = api.post(JOBS, {"task": "errands.carry", "id": "x", "at": at})
    assert (status, body["due"]) == (201, "2030-01-01T00:00:00.000Z")
    assert live(delayq, "x").due_ms == 1893456000_000


def test_a_job_expires_at_a_moment(api: Caller, delayq: Broker) -> None:
    moment = in_days(30)
    api.post(JOBS, {"task": "errands.carry", "id": "x", "expires": moment.isoformat()})
    assert live(delayq, "x").job.options == {"expires_ms": moment.timestamp() * 1000}


def test_the_second_job_of_an_id_replaces_or_is_ignored(api: Caller, delayq: Broker) -> None:
    job = {"task": "errands.carry", "id": "x", "delay": 60}
    answers = [
        api.post(JOBS, {**job, "args": [n], **more}) for n, more in enumerate(({}, {}, {"on_conflict": "ignore"}))
    ]
    told = [(status, body["outcome"]) for status, body in answers]
    assert told == [(201, "created"), (201, "replaced"), (200, "ignored")]
    assert live(delayq, "x").arguments == ([1], {})


def test_an_id_that_must_be_new_and_is_not_is_taken(api: Caller, delayq: Broker) -> None:
    api.post(JOBS, {"task": "errands.carry", "id": "x", "args": [1], "delay": 60})
    status, body = api.post(JOBS, {"task": "errands.carry", "id": "x", "args": [2], "on_conflict": "error"})
    assert (status, body["code"], live(delayq, "x").arguments) == (409, "id_taken", ([1], {}))
    status, body = api.post(JOBS, {"task": "errands.greet", "id": "x", "args": ["Ada"]})
    assert (status, body["code"]) == (409, "id_taken")


def test_payloads_of_a_merged_task_are_united(api: Caller, delayq: Broker) -> None:
    outcomes = [
        api.post(JOBS, {"task": "errands.collect", "id": 5, "payload": {"n": n}, "score": 3 - n, "delay": 60})[1][
            "outcome"
        ]
        for n in range(3)
    ]
    assert outcomes == ["created", "merged", "merged"]
    assert [payload.data for payload in delayq.inspector.payloads("errands", "5")] == [
        b'{"n":2}',
        b'{"n":1}',
        b'{"n":0}',
    ]


@pytest.mark.parametrize(
    "value",
    [
        {"$dt": "2030-01-01T00:00:00+00:00"},
        {"$b": "AAAA"},
        {"$dec": "1.5"},
        {"$$dt": 1},
        {"$": 1},
        {"$.money": [1, 2]},
        {"$uuid": "no uuid"},
        {"$unknown": {"$d": "2030-01-01"}},
    ],
)
def test_what_looks_like_a_tag_of_the_codec_arrives_as_it_was_sent(api: Caller, delayq: Broker, value: Any) -> None:
    args, kwargs = [value, [value], {"deep": [value]}], {"one": value}
    api.post(JOBS, {"task": "errands.carry", "id": "x", "args": args, "kwargs": kwargs})
    api.post(JOBS, {"task": "errands.carry", "id": "y", "kwargs": value})
    api.post(JOBS, {"task": "errands.collect", "id": "z", "payload": value})
    assert live(delayq, "x").arguments == (args, kwargs)
    assert live(delayq, "y").arguments == ([], value)
    shown = api.get(f"{JOBS}/x")[1]
    assert (shown["args"], shown["kwargs"]) == (args, kwargs)
    assert [one["payload"] for one in api.get(f"{JOBS}/z")[1]["payloads"]] == [value]


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


def test_the_queue_of_the_address_wins_over_the_task_s_own(api: Caller, delayq: Broker) -> None:
    delayq.queue("elsewhere")
    status, body = api.post("v1/queues/elsewhere/jobs", {"task": "errands.carry", "id": "x"})
    assert (status, body["queue"], live(delayq, "x", "elsewhere").job.task) == (201, "elsewhere", "errands.carry")
    assert api.response["Location"] == "/delayq/v1/queues/elsewhere/jobs/x"


def test_a_queue_that_nobody_knows_is_not_brought_into_being(api: Caller, delayq: Broker) -> None:
    status, body = api.post("v1/queues/typo/jobs", {"task": "errands.carry"})
    assert (status, body["code"], delayq.queue_names()) == (404, "queue_not_found", [])


# --- bytes ---


def test_bytes_go_to_a_queue_of_kind_pull_as_text_or_base64(api: Caller, pull: str, delayq: Broker) -> None:
    assert api.post(pull, {"id": "a", "body": "grün\n", "delay": 5, "priority": 0})[0] == 201
    assert api.post(pull, {"id": "b", "body_base64": "/wA="})[0] == 201
    assert api.post(pull, {"id": "c", "body": ""})[0] == 201
    assert [live(delayq, ident, "raw").job.args for ident in "abc"] == ["grün\n".encode(), b"\xff\x00", b""]
    assert live(delayq, "a", "raw").job.priority == 0


def test_many_bytes_come_in_at_once(api: Caller, pull: str, delayq: Broker) -> None:
    status, body = api.post(pull, {"jobs": [{"id": "a", "body": "x"}, {"body_base64": "eA=="}]})
    assert (status, body["counts"], body["results"][0]) == (200, {"created": 2}, {"id": "a", "outcome": "created"})
    assert {live(delayq, one["id"], "raw").job.args for one in body["results"]} == {b"x"}


@pytest.mark.parametrize(
    ("job", "pointer"),
    [
        ({}, "/body"),
        ({"body": "x", "body_base64": "eA=="}, "/body"),
        ({"body": 5}, "/body"),
        ({"body_base64": "no!"}, "/body_base64"),
        ({"body_base64": "é"}, "/body_base64"),
        ({"body_base64": 1}, "/body_base64"),
        ({"body": "x", "task": "errands.carry"}, "/task"),
        ({"body": "x", "durable": True}, "/durable"),
        ({"body": "x", "delay": "soon"}, "/delay"),
        ({"body": "x", "on_conflict": "merge"}, "/on_conflict"),
    ],
)
def test_bytes_that_are_wrong_are_refused(api: Caller, pull: str, delayq: Broker, job: Any, pointer: str) -> None:
    api.post(pull, {"body": "there is the queue"})
    before = contents(delayq)
    status, body = api.post(pull, job)
    assert (status, body["code"], body["errors"][0]["pointer"], contents(delayq)) == (400, "invalid", pointer, before)


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
    assert contents(delayq) == before


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"delay": "soon"}, "/delay"),
        ({"delay": 10**12}, "/delay"),
        ({"delay": True}, "/delay"),
        ({"at": "tomorrow"}, "/at"),
        ({"at": "2030-01-01T00:00:00"}, "/at"),
        ({"at": "9999-12-31T23:59:59Z"}, "/at"),
        ({"at": "0001-01-01T00:00:00+14:00"}, "/at"),
        ({"at": 10**18}, "/at"),
        ({"at": []}, "/at"),
        ({"at": 5, "delay": 5}, "/delay"),
        ({"id": ""}, "/id"),
        ({"id": "x" * 256}, "/id"),
        ({"id": "a\nb"}, "/id"),
        ({"id": "a\0b"}, "/id"),
        ({"id": 1.5}, "/id"),
        ({"id": ["x"]}, "/id"),
        ({"priority": 8}, "/priority"),
        ({"priority": "high"}, "/priority"),
        ({"on_conflict": "merge"}, "/on_conflict"),
        ({"on_conflict": 1}, "/on_conflict"),
        ({"due_policy": "inherit"}, "/due_policy"),
        ({"due_policy": "whatever"}, "/due_policy"),
        ({"reset_retries": 1}, "/reset_retries"),
        ({"max_attempts": 0}, "/max_attempts"),
        ({"retry_in": -1}, "/retry_in"),
        ({"retry_in": "no preset"}, "/retry_in"),
        ({"retry_in": {}}, "/retry_in"),
        ({"expires": 0}, "/expires"),
        ({"expires": "2001-01-01T00:00:00Z"}, "/expires"),
        ({"expires": "x"}, "/expires"),
        ({"expires": []}, "/expires"),
        ({"context": 5}, "/context"),
        ({"context": {"x": "y" * 70_000}}, "/context"),
        ({"durable": "yes"}, "/durable"),
        ({"args": {}}, "/args"),
        ({"args": "abc"}, "/args"),
        ({"kwargs": []}, "/kwargs"),
        ({"task": 5}, "/task"),
        ({"task": None}, "/task"),
        ({"task": ["errands.carry"]}, "/task"),
        ({"queue": "other"}, "/queue"),
        ({"using_db": "default"}, "/using_db"),
        ({"a/b~c": 1}, "/a~1b~0c"),
        ({"payload": 1}, "/payload"),
        ({"score": 1}, "/score"),
        ({"body": "x"}, "/body"),
        ({"args": [DEEP]}, "/args/0"),
        ({"args": [1], "kwargs": {"x": DEEP}}, "/kwargs/x"),
    ],
)
def test_each_wrong_member_is_pointed_at(api: Caller, delayq: Broker, change: Any, pointer: str) -> None:
    delayq.queue("errands")
    before = contents(delayq)
    job = {"task": "errands.carry", **change}
    status, body = api.post(JOBS, job)
    assert (status, body["code"], [error["pointer"] for error in body["errors"]]) == (400, "invalid", [pointer])
    status, body = api.post(JOBS, {"jobs": [{"task": "errands.carry", "id": "good"}, job]})
    assert (status, [error["pointer"] for error in body["errors"]]) == (400, [f"/jobs/1{pointer}"])
    assert contents(delayq) == before


def test_arguments_that_the_function_does_not_take_are_refused(api: Caller, delayq: Broker) -> None:
    delayq.queue("errands")
    status, body = api.post(JOBS, {"task": "errands.greet", "kwargs": {"nam": "Ada"}})
    assert (status, body["code"], waiting(delayq)) == (400, "invalid", [])
    assert "missing a required argument: 'name'" in body["detail"]
    status, body = api.post(JOBS, {"task": "errands.collect", "id": "m", "args": [1]})
    assert (status, waiting(delayq)) == (400, [])
    status, body = api.post(JOBS, {"task": "errands.collect", "payload": 1})
    assert (status, waiting(delayq), "needs an id" in body["detail"]) == (400, [], True)


def test_an_unknown_task_among_many_means_that_none_is_stored(api: Caller, delayq: Broker) -> None:
    delayq.queue("errands")
    status, body = api.post(JOBS, {"jobs": [{"task": "errands.carry"}, {"task": "errands.secret"}, {"task": "nosuch"}]})
    assert (status, body["code"]) == (404, "task_not_found")
    assert [error["pointer"] for error in body["errors"]] == ["/jobs/1/task", "/jobs/2/task"]
    assert waiting(delayq) == []


def test_more_jobs_than_a_request_may_have_are_refused(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"max_jobs": 3}}
    status, body = api.post(JOBS, {"jobs": [{"task": "errands.carry"}] * 4})
    assert (status, body["code"], delayq.queue_names()) == (413, "too_large", [])
    assert api.post(JOBS, {"jobs": [{"task": "errands.carry"}] * 3})[0] == 200


@pytest.mark.parametrize(
    "body", [[], "x", 5, None, {}, {"jobs": {}}, {"jobs": []}, {"jobs": "x"}, {"jobs": [1], "delay": 5}]
)
def test_a_body_of_another_shape_is_refused(api: Caller, delayq: Broker, body: Any) -> None:
    status, answer = api.post(JOBS, json.dumps(body))
    assert (status, answer["code"], delayq.queue_names()) == (400, "invalid", [])
