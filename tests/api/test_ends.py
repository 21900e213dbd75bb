"""Ends of jobs over HTTP: those who listen in the web process are called as in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import connections, task
from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode, encode_args
from django_delayq.core.job import NewJob, Payload, new_key
from django_delayq.core.task import registry
from tests.support.api_caller import Caller
from tests.support.listening import Ears, listening

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("delayq")]
ARGS = encode_args((7,), {"to": "Ann"})


@pytest.fixture
def ears(delayq: Broker) -> Iterator[Ears]:
    with listening() as ears:
        yield ears


@pytest.fixture
def parcel(ears: Ears) -> Iterator[Any]:
    @task(name="http.parcel", max_attempts=2, retry_in=0, on_exhausted=ears.exhausted)
    def parcel(number: int, *, to: str = "") -> None: ...

    yield parcel
    registry.remove(parcel)


def end(api: Caller, verb: str, **more: Any) -> bool:
    """Take the due job and end it; whether that counted."""
    _, taken = api.post("v1/queues/default/reserve", {"max": 1})
    (job,) = taken["jobs"]
    _, body = api.post(f"v1/queues/default/{verb}", {"jobs": [{"id": job["id"], "lease": job["lease"], **more}]})
    counted: bool = body["results"][0]["counted"]
    return counted


def test_a_failure_over_http_is_sent_as_a_signal_and_the_last_one_calls_the_tasks_hook(
    api: Caller, ears: Ears, parcel: Any
) -> None:
    connections.queue("default").schedule(NewJob("a", "http.parcel", ARGS))
    assert end(api, "fail", error="closed")
    assert end(api, "fail", error={"class": "TimeoutError", "message": "no answer"})
    assert ears.heard == [
        ("job_failed", "a", ARGS, "Reported", "closed", ("failed", 0.0)),
        ("on_exhausted", "a", ([7], {"to": "Ann"}), "Reported", "no answer", 2),
        ("job_buried", "a", ARGS, "Reported", "no answer", "exhausted"),
    ]


def test_a_burial_over_http_is_sent_as_a_signal(api: Caller, ears: Ears) -> None:
    payload = Payload(encode({"x": 1}), "1", new_key())
    connections.queue("default").schedule(NewJob("a", "http.merged", payload=payload, on_conflict="merge"))
    assert end(api, "bury", reason="nonsense")
    assert ears.heard == [("job_buried", "a", [payload.data], "Bury", "nonsense", "nonsense")]


def test_an_ack_and_a_lost_lease_call_nobody(api: Caller, ears: Ears) -> None:
    queue = connections.queue("default")
    for ident in ("a", "b"):
        queue.schedule(NewJob(ident, "http.parcel", ARGS))
    assert end(api, "ack")
    lost = [{"id": "b", "lease": "0.1234567890123456"}]
    _, body = api.post("v1/queues/default/fail", {"jobs": lost})
    assert body["results"] == [{"id": "b", "counted": False}]
    assert ears.heard == []
