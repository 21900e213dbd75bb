"""The same Idempotency-Key gets the same answer, and nothing is done twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.api import idempotency
from django_delayq.core.broker import Broker
from django_delayq.core.outcomes import ack
from django_delayq.models import OutboxJob
from django_delayq.scheduling.build import Scheduling
from tests.support.api_caller import Caller

from ..support.redis_box import RedisBox
from .errands import carry, live, put, reserve, waiting

JOBS = "v1/queues/errands/jobs"
HERE = "tests.api.test_idempotency"


def post(api: Caller, body: Any, key: str = "k1", path: str = JOBS) -> tuple[int, Any]:
    return api.post(path, body, **{"Idempotency-Key": key})


def forget_calls(broker: Broker) -> None:
    """Delete the remembered calls, as two minutes would."""
    queue = broker.queue("errands")
    for number in queue.numbers:
        names = queue.shard(number).names
        broker.client.delete(names["reply"], names["window"])


def answers(broker: Broker) -> list[str]:
    """Return the keys of the kept responses."""
    return [key.decode() for key in broker.client.scan_iter(match=f"{broker.prefix}:answer:*")]


def test_a_repetition_is_answered_with_the_first_answer_and_does_nothing(api: Caller, delayq: Broker) -> None:
    body = {"task": "errands.carry", "args": [1], "delay": 60}
    first = post(api, body)
    headers = {name: api.response[name] for name in ("Location", "Content-Type")}
    assert (first[0], "Idempotent-Replayed" in api.response) == (201, False)
    delayq.queue("errands").cancel(first[1]["id"])
    assert post(api, body) == first
    assert api.response["Idempotent-Replayed"] == "true"
    assert {name: api.response[name] for name in headers} == headers
    assert waiting(delayq) == []


def test_no_id_that_follows_from_a_key_begins_with_a_dash(api: Caller, delayq: Broker) -> None:
    """A command would take it for an option."""
    assert post(api, {"jobs": [{"task": "errands.carry", "delay": 60}] * 250})[0] in (200, 201)
    ids = waiting(delayq)
    assert len(ids) == 250
    assert [ident for ident in ids if ident.startswith("-")] == []


def test_answers_are_kept_as_long_as_the_settings_say(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"keep_answers": 100}}
    post(api, {"task": "errands.carry"})
    (name,) = answers(delayq)
    assert 95 < delayq.client.ttl(name) <= 100


def test_refusals_are_kept_as_well(api: Caller, delayq: Broker) -> None:
    delayq.queue("errands")
    first = post(api, {"task": "errands.carry", "delay": "soon"})
    assert (first[0], first[1]["code"]) == (400, "invalid")
    assert post(api, {"task": "errands.carry", "delay": "soon"}) == first
    assert (api.response["Idempotent-Replayed"], api.response["Content-Type"]) == ("true", "application/problem+json")


@pytest.mark.parametrize("change", ["body", "path", "query"])
def test_a_key_that_was_used_for_another_request_is_refused(api: Caller, delayq: Broker, change: str) -> None:
    delayq.queue("other")
    body = {"task": "errands.carry", "delay": 60}
    assert post(api, body)[0] == 201
    path = {"path": "v1/queues/other/jobs", "query": f"{JOBS}?x=1"}.get(change, JOBS)
    status, answer = post(api, {**body, "delay": 61} if change == "body" else body, path=path)
    assert (status, answer["code"], len(waiting(delayq)), waiting(delayq, "other")) == (
        422,
        "idempotency_mismatch",
        1,
        [],
    )


def test_the_keys_of_two_users_have_nothing_to_do_with_each_other(
    caller: Callable[..., Caller], delayq: Broker
) -> None:
    one, two = caller("produce"), caller("produce")
    assert [post(who, {"task": "errands.carry", "args": [n]})[0] for n, who in enumerate((one, two))] == [201, 201]
    assert len(waiting(delayq)) == 2


inside = threading.Event()
go_on = threading.Event()


def waits(next: Callable[[Scheduling], Any]) -> Callable[[Scheduling], Any]:
    def call(scheduling: Scheduling) -> Any:
        inside.set()
        assert go_on.wait(20)
        return next(scheduling)

    return call


@pytest.mark.django_db(transaction=True)
def test_while_the_first_request_is_under_way_the_key_is_refused(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "SCHEDULE_MIDDLEWARE": [f"{HERE}.waits"]}
    inside.clear()
    go_on.clear()
    told: list[tuple[int, Any]] = []
    body = {"task": "errands.carry", "delay": 60}

    def first() -> None:
        from django.db import connections

        try:
            told.append(post(Caller(api.token), body))
        finally:
            connections.close_all()

    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert inside.wait(20)
        status, answer = post(api, body)
        assert (status, answer["code"]) == (409, "idempotency_in_progress")
        assert 1 <= int(api.response["Retry-After"]) <= idempotency.UNDER_WAY
    finally:
        go_on.set()
        thread.join()
    assert told[0][0] == 201
    assert post(api, body) == told[0]
    assert len(waiting(delayq)) == 1


def test_answers_that_change_by_waiting_are_not_kept(api: Caller, delayq: Broker, settings: Any) -> None:
    delayq.queue("errands")
    delayq.pause("errands", "in")
    body = {"task": "errands.carry", "delay": 60}
    assert (post(api, body)[0], api.response["Idempotent-Answer"], answers(delayq)) == (503, "not-kept", [])
    delayq.resume("errands", "in")
    assert post(api, body)[0] == 201


def breaks(next: Callable[[Scheduling], Any]) -> Callable[[Scheduling], Any]:
    def call(scheduling: Scheduling) -> Any:
        raise RuntimeError("a fault of the project")

    return call


def test_after_a_fault_the_key_is_free_again(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "SCHEDULE_MIDDLEWARE": [f"{HERE}.breaks"]}
    with pytest.raises(RuntimeError):
        post(api, {"task": "errands.carry"})
    assert answers(delayq) == []


def test_an_answer_that_is_too_large_is_given_once(
    api: Caller, delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "LARGEST", 1000)
    body = {"jobs": [{"task": "errands.carry", "delay": 60}] * 50}
    first = post(api, body)
    assert (first[0], api.response["Idempotent-Answer"], answers(delayq)) == (200, "not-kept", [])
    again = post(api, body)
    assert [job["id"] for job in again[1]["results"]] == [job["id"] for job in first[1]["results"]]
    assert (again[1]["counts"], len(waiting(delayq))) == ({"created": 50}, 50)


def test_after_a_death_in_between_the_same_jobs_are_recognised_and_later_replaced(api: Caller, delayq: Broker) -> None:
    body = {
        "jobs": [{"task": "errands.carry", "args": [n], "delay": 60} for n in range(5)]
        + [{"task": "errands.carry", "id": "own", "delay": 60}]
    }
    first = post(api, body)
    (name,) = answers(delayq)
    for outcome in ("created", "replaced"):
        delayq.client.delete(name)  # as if its process had died before it kept the answer, and the mark had ended
        again = post(api, body)
        assert [job["id"] for job in again[1]["results"]] == [job["id"] for job in first[1]["results"]]
        assert (again[1]["counts"], len(waiting(delayq))) == ({outcome: 6}, 6)
        forget_calls(delayq)
    other = post(api, body, key="k2")
    assert (other[1]["counts"], len(waiting(delayq))) == ({"created": 5, "replaced": 1}, 11)


@pytest.mark.parametrize("body", [{"task": "errands.carry"}, {"task": "errands.collect", "id": "a", "payload": 1}])
def test_a_job_that_runs_again_has_the_key_by_which_exactly_once_knows_it(
    api: Caller, delayq: Broker, body: dict[str, Any]
) -> None:
    keys = []
    for _ in range(2):
        status, answer = post(api, body)
        job = reserve(delayq, answer["id"])
        keys += [payload.key for payload in job.payloads] or [job.key]
        assert (status, delayq.queue("errands").settle([ack(job, 1, 1)])) == (201, [True])
        delayq.client.delete(*answers(delayq))
        forget_calls(delayq)
    assert keys[0] == keys[1]


def test_durable_jobs_of_a_request_are_written_once(api: Caller, delayq: Broker) -> None:
    body = {"task": "errands.keep", "id": "a"}

    def again() -> tuple[int, str, int]:
        delayq.client.delete(*answers(delayq))
        forget_calls(delayq)
        status, answer = post(api, body)
        return status, answer["outcome"], OutboxJob.objects.count()

    assert post(api, body)[0] == 201
    assert again() == (201, "created", 1)
    assert delayq.queue("errands").settle([ack(reserve(delayq, "a"), 1, 1)]) == [True]
    OutboxJob.objects.all().delete()  # as the dispatcher does, which learns of the end
    assert (again(), waiting(delayq)) == ((201, "created", 0), [])


def test_the_mark_of_a_request_that_died_ends_by_itself(api: Caller, delayq: Broker, settings: Any) -> None:
    ttls: list[int] = []

    def spy(scheduling: Any, **words: Any) -> None:
        ttls.extend(delayq.client.ttl(name) for name in answers(delayq))

    from django_delayq.signals import job_scheduled

    job_scheduled.connect(hear := lambda **words: spy(None))
    try:
        post(api, {"task": "errands.carry"})
    finally:
        job_scheduled.disconnect(hear)
    assert [0 < ttl <= idempotency.UNDER_WAY for ttl in ttls] == [True]


def test_verbs_have_keys_too(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, id="a", delay=60)
    first = post(api, {"ids": ["a"]}, path="v1/queues/errands/cancel")
    put(delayq, carry, id="a", delay=60)
    assert post(api, {"ids": ["a"]}, path="v1/queues/errands/cancel") == first
    assert (first[1]["counts"], waiting(delayq)) == ({"cancelled": 1}, ["a"])


def test_an_empty_body_is_a_body(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, id="a", delay=60)
    first = post(api, None, path="v1/queues/errands/kill-failed")
    assert post(api, None, path="v1/queues/errands/kill-failed") == first
    assert api.response["Idempotent-Replayed"] == "true"
    assert post(api, {}, path="v1/queues/errands/kill-failed")[0] == 422


def test_other_methods_have_no_keys(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, id="a", delay=60)
    key = {"Idempotency-Key": "not a key at all"}
    assert api.patch(f"{JOBS}/a", {"delay": 5}, **key)[0] == 200
    assert api.get(f"{JOBS}/a", **key)[0] == 200
    assert api.delete(f"{JOBS}/a", **key)[0] == 200
    assert answers(delayq) == []


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é", "a\tb", "\x7f"])
def test_a_key_that_can_be_none_is_refused(api: Caller, delayq: Broker, key: str) -> None:
    delayq.queue("errands")
    status, answer = post(api, {"task": "errands.carry"}, key=key)
    assert (status, answer["code"], waiting(delayq), answers(delayq)) == (400, "invalid", [], [])


def test_the_longest_key_is_one(api: Caller, delayq: Broker) -> None:
    assert post(api, {"task": "errands.carry"}, key="~" * 255)[0] == 201


def test_what_was_not_allowed_or_not_read_is_not_kept(caller: Callable[..., Caller], delayq: Broker) -> None:
    delayq.queue("errands")
    assert post(caller("view"), {"task": "errands.carry"})[0] == 403
    assert post(caller("produce"), "no JSON")[0] == 400
    assert answers(delayq) == []


@pytest.mark.broken_on_purpose
@pytest.mark.one_server("ends a Redis of its own")
def test_without_redis_nothing_is_done(api: Caller, redis_factory: Callable[..., RedisBox], settings: Any) -> None:
    from django_delayq import connections
    from django_delayq.models import OutboxJob

    box = redis_factory()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": box.url}
    connections.close_broker()
    assert post(api, {"task": "errands.keep", "id": "a"}, key="k0")[0] == 201
    box.kill()
    status, answer = post(api, {"task": "errands.keep", "id": "b"})
    assert (status, answer["code"], "Retry-After" in api.response) == (503, "unavailable", True)
    assert not OutboxJob._default_manager.filter(job_id="b").exists()
    connections.close_broker()


def test_an_answer_is_given_again_byte_for_byte(api: Caller, delayq: Broker) -> None:
    body = json.dumps({"jobs": [{"task": "errands.carry", "id": "grün ✓"}] * 2})
    post(api, body)
    before = api.response.content
    post(api, body)
    assert (api.response.content, live(delayq, "grün ✓").id) == (before, "grün ✓")
