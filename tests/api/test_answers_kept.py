"""Which answers of requests with an Idempotency-Key are kept, for how long, and in whose name."""

from __future__ import annotations

from typing import Any

from django_delayq.api import idempotency
from django_delayq.core.broker import Broker
from tests.support.api_caller import Caller

from .errands import carry, put

QUEUE = "v1/queues/errands"
KEY = {"Idempotency-Key": "k1"}


def kept(broker: Broker) -> list[bytes]:
    return list(broker.client.scan_iter(match=f"{broker.prefix}:answer:*"))


def test_the_refusal_of_a_full_queue_is_not_given_again(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, id="first", delay=60)
    delayq.limit("errands", max_length=1)
    body = {"task": "errands.carry", "id": "second", "delay": 60}
    assert api.post(f"{QUEUE}/jobs", body, **KEY)[0] == 429
    assert (api.response["Idempotent-Answer"], kept(delayq)) == ("not-kept", [])
    delayq.queue("errands").cancel("first")
    assert api.post(f"{QUEUE}/jobs", body, **KEY)[0] == 201


def test_a_request_that_counts_as_dead_does_not_answer_for_the_one_that_came_after_it(delayq: Broker) -> None:
    arguments: Any = (f"{delayq.prefix}:answer:k", b"f" * 32, 60)
    dead, other = idempotency.IdempotencyRecord(*arguments), idempotency.IdempotencyRecord(*arguments)
    dead.begin()
    delayq.client.delete(arguments[0])  # as Redis does after a minute
    other.begin()
    dead.drop()
    assert kept(delayq) == [arguments[0].encode()]
    other.drop()
    assert kept(delayq) == []
