"""Produced jobs follow the rules of schedule(): back-pressure, durability, signals, middlewares, permissions."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from django.db.models import Model

from django_delayq import signals
from django_delayq.core.broker import Broker
from django_delayq.models import OutboxJob
from django_delayq.scheduling.build import Scheduling
from tests.support.api_caller import Caller

from ..support.redis_box import RedisBox
from .errands import carry, live, waiting

JOBS = "v1/queues/errands/jobs"
HERE = "tests.api.test_produce_rules"
tenant: ContextVar[str] = ContextVar("tenant")


def row_keys() -> list[tuple[str, str]]:
    model: type[Model] = OutboxJob
    return list(model._default_manager.order_by("pk").values_list("job_id", "state"))


# --- back-pressure ---


def test_a_body_in_a_queue_of_tasks_is_refused_with_the_way_out(api: Caller, delayq: Broker) -> None:
    status, answer = api.post(JOBS, {"body": "x"})
    assert status == 400 and "a body goes into a queue of kind pull" in answer["detail"]


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


@pytest.mark.parametrize(
    ("jobs", "value"),
    [
        ([{"task": "errands.carry"}] * 251, True),
        ([{"task": "errands.carry"}, {"task": "errands.keep"}], True),
        ([{"task": "errands.carry"}], 1),
    ],
)
def test_all_or_none_is_for_up_to_250_jobs_that_are_not_durable(
    api: Caller, delayq: Broker, jobs: list[Any], value: Any
) -> None:
    status, answer = api.post(JOBS, {"jobs": jobs, "all_or_none": value})
    assert (status, answer["code"], "all_or_none" in answer["detail"]) == (400, "invalid", True)
    assert waiting(delayq) == []


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
    status, answer = api.post(JOBS, {"task": "errands.keep", "id": "k"})
    assert (status, answer["outcome"], row_keys()) == (202, "outbox", [("k", "unsent")])
    status, answer = api.post(JOBS, {"jobs": [{"task": "errands.keep", "id": "l"}]})
    assert (status, answer["counts"], row_keys()) == (202, {"outbox": 1}, [("k", "unsent"), ("l", "unsent")])
    connections.close_broker()


# --- as schedule() ---


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


# --- who may ---


def test_only_who_may_produce_can_put_jobs_in(caller: Callable[..., Caller], delayq: Broker) -> None:
    delayq.queue("errands")
    job = {"task": "errands.carry", "id": "x"}
    assert [caller(*actions).post(JOBS, job)[0] for actions in ([], ["view", "consume", "operate", "admin"])] == [
        403,
        403,
    ]
    assert caller(anonymous=True).post(JOBS, job)[0] == 401
    assert waiting(delayq) == []
    assert caller("produce").post(JOBS, job)[0] == 201


def only_mails(request: Any, action: str, queue: str) -> bool:
    return queue == "mails"


def test_the_project_may_object_to_a_queue(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"allow": f"{HERE}.only_mails"}}
    delayq.queue("mails")
    assert api.post(JOBS, {"task": "errands.carry"})[0] == 403
    assert api.post("v1/queues/mails/jobs", {"task": "errands.carry"})[0] == 201
    assert carry.name == "errands.carry"
