"""The paths that pass by the serializers, for speed, do what the serializers say."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rest_framework.exceptions import ValidationError

from django_delayq import Queue
from django_delayq.api import responses
from django_delayq.api.content import render_held_job
from django_delayq.api.entries import Bytes, Call
from django_delayq.api.fields import Resource
from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode, encode_args
from django_delayq.core.job import NewJob, Payload, new_key
from tests.support.api_caller import Caller
from tests.support.moments import in_days

from .errands import carry, collect

pytestmark = pytest.mark.django_db
CALLS, MERGED = carry.name, collect.name
LATER = in_days(30).isoformat()
#: option → values that are valid, and values that are not
OPTIONS: dict[str, tuple[list[Any], list[Any]]] = {
    "id": (["a/b c", 17, "x" * 255], ["", "x" * 256, "a\nb", "a\0b", 1.5, ["x"], True]),
    "delay": ([0, 1.5, 315_360_000, -1], ["5", "soon", True, 1e12, []]),
    "at": (["2030-01-01T00:00:00Z", 0, 1893456000.5], ["soon", "2030-01-01T00:00:00", [], True, "2030-01-01"]),
    "priority": ([0, 7], [-1, 8, "high", 1.0, True]),
    "on_conflict": (["replace", "ignore", "error"], ["whatever", 1]),
    "due_policy": (["keep", "replace", "earliest", "latest"], ["whatever", 1]),
    "reset_retries": ([True, False], [1, "yes"]),
    "max_attempts": ([1, 1_000_000], [0, 1_000_001, "3", True]),
    "retry_in": ([5, [1, 2], "exponential"], [-1, "no preset", {}, True]),
    "timeout": ([1, 0.5], [0, -1, "5", True]),
    "ttr": ([1, 0.5, 7200], [0, -1, "5", True, 1e12]),
    "expires": ([1, 0.5, LATER], [0, -1, "x", [], True]),
    "context": ([{}, {"trace": {"a": [1]}}], [5, [], "x"]),
}
CALL_OPTIONS: dict[str, tuple[list[Any], list[Any]]] = {
    "args": ([[], [1, {"a": None}]], [{}, "abc", 5]),
    "kwargs": ([{}, {"a": 1}], [[], "abc"]),
    "durable": ([False], ["yes", 1]),
}


def is_valid(kind: type[Resource], entry: dict[str, Any]) -> bool:
    try:
        kind.read(entry)
    except ValidationError:
        return False
    return True


def check(api: Caller, queue: str, kind: type[Resource], entry: dict[str, Any], name: str, values: Any) -> None:
    """Each value is stored or refused with a pointer to its member, alone and among others, as the serializer says."""
    path, (good, bad) = f"v1/queues/{queue}/jobs", values
    for value in good:
        status, body = api.post(path, {**entry, name: value})
        assert status in (200, 201), (name, value, body)
        # The serializer does not say that a payload may be null: null is a JSON value.
        assert is_valid(kind, {**entry, name: value}) or value is None, (name, value)
    for value in bad:
        status, body = api.post(path, {**entry, name: value})
        assert (status, [one["pointer"] for one in body["errors"]]) == (400, [f"/{name}"]), (name, value, body)
        status, body = api.post(path, {"jobs": [entry, {**entry, name: value}]})
        assert (status, [one["pointer"] for one in body["errors"]]) == (400, [f"/jobs/1/{name}"]), (name, value, body)
        assert not is_valid(kind, {**entry, name: value}), (name, value)


def known_members(api: Caller, queue: str, entry: dict[str, Any]) -> set[str]:
    """The members that an entry may have, as the refusal of an unknown one lists them."""
    status, body = api.post(f"v1/queues/{queue}/jobs", {**entry, "nonsense": 1})
    assert status == 400
    return set(re.findall(r"\w+", body["errors"][0]["detail"].partition("Known are:")[2]))


def test_an_entry_may_have_the_members_of_its_serializer_and_no_others(api: Caller, delayq: Broker) -> None:
    delayq.queue("errands")
    delayq.queue("mail", kind="pull")
    calls = known_members(api, "errands", {"task": CALLS}) | known_members(api, "errands", {"task": MERGED})
    assert calls == set(Call().fields)
    assert known_members(api, "mail", {"body": "x"}) == set(Bytes().fields)


PAYLOAD_OPTIONS: dict[str, tuple[list[Any], list[Any]]] = {
    "score": ([1, 1.5, "12.5", -3], ["x", [], True]),
    "payload": ([None, [1]], []),
}


@pytest.mark.parametrize(
    ("queue", "kind", "entry", "options"),
    [
        ("errands", Call, {"task": CALLS}, OPTIONS | CALL_OPTIONS),
        ("errands", Call, {"task": MERGED, "id": "7"}, PAYLOAD_OPTIONS),
        ("mail", Bytes, {"body": "x"}, OPTIONS | {"body": (["", "x"], [5, []])}),
    ],
    ids=["call", "payload", "bytes"],
)
def test_an_option_is_valid_where_the_serializer_says_so(
    queue: str, kind: type[Resource], entry: dict[str, Any], options: dict[str, Any], api: Caller, delayq: Broker
) -> None:
    delayq.queue(queue, kind="pull" if kind is Bytes else "python")
    for name, values in options.items():
        check(api, queue, kind, entry, name, values)


def test_results_have_the_members_of_their_serializers(api: Caller, delayq: Broker) -> None:
    delayq.queue("mail", kind="pull")
    _, one = api.post("v1/queues/mail/jobs", {"body": "x", "id": "a"})
    _, many = api.post("v1/queues/mail/jobs", {"jobs": [{"body": "x", "id": "b"}]})
    _, taken = api.post("v1/queues/mail/reserve", {"max": 2})
    held = [{"id": job["id"], "lease": job["lease"]} for job in taken["jobs"]]
    _, touched = api.post("v1/queues/mail/touch", {"jobs": held})
    _, ended = api.post("v1/queues/mail/ack", {"jobs": held})
    found = [one, many, many["results"][0], touched["results"][0], ended["results"][0]]
    kinds = [responses.Produced, responses.Results, responses.Result, responses.Extended, responses.Counted]
    assert [set(answer) for answer in found] == [set(kind().fields) for kind in kinds]


def test_reserved_jobs_have_the_members_of_their_serializer(delayq: Broker) -> None:
    due = {"due_ms": 1_700_000_000_123}
    payload = Payload(encode({"name": "Ada"}), "1", new_key())
    delayq.queue("mail", kind="pull").schedule_many(
        [
            NewJob("text", "raw", "grün".encode(), **due),
            NewJob("bytes", "raw", b"\xff\x00", options=b'{"context":{"trace":"t"}}'),
        ]
    )
    delayq.queue("errands").schedule_many(
        [
            NewJob("call", CALLS, encode_args((5,), {"reason": "unpaid"}), **due),
            NewJob("nothing", CALLS, b""),
            NewJob("merged", MERGED, on_conflict="merge", payload=payload),
        ]
    )
    jobs = [job for name in ("mail", "errands") for job in Queue(name).reserve(10)]
    assert len(jobs) == 5
    for job in jobs:
        rendered, members = render_held_job(job), responses.HeldJob().fields
        assert {name for name, field in members.items() if field.required} <= set(rendered) <= set(members)
        if job.id == "merged":
            assert (rendered["payloads"], "args" in rendered) == ([{"name": "Ada"}], False)
