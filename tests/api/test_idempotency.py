"""The same Idempotency-Key gets the same answer, and nothing is done twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.api import idempotency, jobs
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import ack
from django_delayq.models import OutboxJob
from django_delayq.scheduling.build import Scheduling
from django_delayq.signals import job_scheduled
from tests.support.api_caller import Caller

from .errands import carry, put, reserve, waiting

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
    body = {"task": "errands.carry", "args": [1], "id": "grün ✓", "delay": 60}
    first = post(api, body)
    headers, content = {name: api.response[name] for name in ("Location", "Content-Type")}, api.response.content
    assert (first[0], "Idempotent-Replayed" in api.response) == (201, False)
    delayq.queue("errands").cancel(first[1]["id"])
    assert post(api, body) == first
    assert (api.response["Idempotent-Replayed"], api.response.content) == ("true", content)
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


def test_a_key_that_was_used_for_another_request_is_refused(api: Caller, delayq: Broker) -> None:
    delayq.queue("other")
    body = {"task": "errands.carry", "delay": 60}
    assert post(api, body)[0] == 201
    for path, more in ((JOBS, {"delay": 61}), ("v1/queues/other/jobs", {}), (f"{JOBS}?x=1", {})):
        status, answer = post(api, {**body, **more}, path=path)
        assert (status, answer["code"]) == (422, "idempotency_mismatch"), path
    assert (len(waiting(delayq)), waiting(delayq, "other")) == (1, [])


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


def test_answers_that_change_by_waiting_are_not_kept(api: Caller, delayq: Broker) -> None:
    job = {"task": "errands.carry", "delay": 60}
    delayq.queue("errands")
    for key, body, status in (("k1", job, 503), ("k2", {"jobs": [job]}, 503), ("k3", job, 429)):
        if status == 503:
            delayq.pause("errands", "in")
        else:
            delayq.limit("errands", max_length=2)
        refused = post(api, body, key)[0], api.response["Idempotent-Answer"], answers(delayq)
        assert refused == (status, "not-kept", [])
        delayq.resume("errands", "in")
        delayq.limit("errands", max_length=None)
        assert post(api, body, key)[0] in (200, 201)
        delayq.client.delete(*answers(delayq))
    assert len(waiting(delayq)) == 3


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


def test_the_mark_of_a_request_that_died_ends_by_itself(api: Caller, delayq: Broker) -> None:
    ttls: list[int] = []

    def hear(**_: Any) -> None:
        ttls.extend(delayq.client.ttl(name) for name in answers(delayq))

    job_scheduled.connect(hear)
    try:
        post(api, {"task": "errands.carry"})
    finally:
        job_scheduled.disconnect(hear)
    assert [0 < ttl <= idempotency.UNDER_WAY for ttl in ttls] == [True]


def test_verbs_have_keys_too_and_an_empty_body_is_a_body(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, id="a", delay=60)
    first = post(api, {"ids": ["a"]}, path="v1/queues/errands/cancel")
    put(delayq, carry, id="a", delay=60)
    assert post(api, {"ids": ["a"]}, path="v1/queues/errands/cancel") == first
    assert (first[1]["counts"], waiting(delayq)) == ({"cancelled": 1}, ["a"])
    first = post(api, None, "k2", "v1/queues/errands/kill-failed")
    assert post(api, None, "k2", "v1/queues/errands/kill-failed") == first
    assert api.response["Idempotent-Replayed"] == "true"
    assert post(api, {}, "k2", "v1/queues/errands/kill-failed")[0] == 422


def test_other_methods_have_no_keys(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, id="a", delay=60)
    key = {"Idempotency-Key": "not a key at all"}
    assert api.patch(f"{JOBS}/a", {"delay": 5}, **key)[0] == 200
    assert api.get(f"{JOBS}/a", **key)[0] == 200
    assert api.delete(f"{JOBS}/a", **key)[0] == 200
    assert answers(delayq) == []


def test_a_key_that_can_be_none_is_refused(api: Caller, delayq: Broker) -> None:
    delayq.queue("errands")
    for key in ("", "a b", "x" * 256, "é", "a\tb", "\x7f"):
        status, answer = post(api, {"task": "errands.carry"}, key=key)
        assert (status, answer["code"], waiting(delayq), answers(delayq)) == (400, "invalid", [], []), key
    assert post(api, {"task": "errands.carry"}, key="~" * 255)[0] == 201


def test_what_was_not_allowed_or_not_read_is_not_kept(caller: Callable[..., Caller], delayq: Broker) -> None:
    delayq.queue("errands")
    assert post(caller("view"), {"task": "errands.carry"})[0] == 403
    assert post(caller("produce"), "no JSON")[0] == 400
    assert answers(delayq) == []


def test_a_request_that_counts_as_dead_does_not_answer_for_the_one_that_came_after_it(delayq: Broker) -> None:
    arguments: Any = (f"{delayq.prefix}:answer:k", b"f" * 32, 60)
    dead, other = idempotency.IdempotencyRecord(*arguments), idempotency.IdempotencyRecord(*arguments)
    dead.begin()
    delayq.client.delete(arguments[0])  # as Redis does after a minute
    other.begin()
    dead.drop()
    assert answers(delayq) == [arguments[0]]
    other.drop()
    assert answers(delayq) == []


def test_a_verb_that_was_not_complete_goes_on_under_the_same_key(
    api: Caller, delayq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = delayq.queue("errands")
    queue.schedule_many([NewJob(f"j{number}", carry.name, b"[]", delay_ms=60_000) for number in range(300)])
    monkeypatch.setattr(jobs, "LONGEST", -1.0)
    key = {"Idempotency-Key": "k"}
    assert api.post("v1/queues/errands/cancel", {"all": True}, **key)[1]["complete"] is False
    assert (api.response["Idempotent-Answer"], answers(delayq)) == ("not-kept", [])
    monkeypatch.setattr(jobs, "LONGEST", 10.0)
    _, body = api.post("v1/queues/errands/cancel", {"all": True}, **key)
    assert (body["complete"], "Idempotent-Replayed" in api.response) == (True, False)
    assert len(answers(delayq)) == 1


@pytest.mark.parametrize(
    ("wanted", "own"), [({"max": 2}, 20), ({"id": "7"}, 20), ({"id": "9"}, 300), ({"max": 2, "ttr": 30}, 30)]
)
def test_jobs_reserved_for_their_own_ttr_are_not_kept_longer_than_the_first_of_them_is_held(
    caller: Callable[..., Caller], delayq: Any, wanted: dict[str, Any], own: int
) -> None:
    program = caller("consume", "produce", "admin")
    program.post("v1/queues", {"name": "mail", "kind": "pull"})
    program.post("v1/queues/mail/jobs", {"jobs": [{"id": "7", "body": "x", "ttr": 20}, {"id": "8", "body": "y"}]})
    program.post("v1/queues/mail/jobs", {"id": "9", "body": "z", "ttr": 300, "delay": 1 if "max" in wanted else 0})
    jobs = program.post("v1/queues/mail/reserve", wanted, **{"Idempotency-Key": "k"})[1]["jobs"]
    assert "7" in {job["id"] for job in jobs} or own == 300
    (name,) = answers(delayq)
    assert own - 5 < delayq.client.ttl(name) <= own
