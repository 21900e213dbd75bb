"""A Redis that stands still, its connections open: requests say so soon, and hold no thread of the server for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import connections
from django_delayq.api.idempotency import UNDER_WAY, IdempotencyRecord
from tests.support.api_caller import Caller
from tests.support.redis_box import RedisBox

#: patience of these tests, seconds; a request may need several answers, and a line that was lost is made anew once
SHORT = 0.3
MOST = SHORT * 8

LOOKS = ("v1/queues", "v1/queues/mail", "v1/queues/mail/jobs", "v1/status", "v1/workers")
VERBS = {
    "v1/queues/mail/jobs": {"body": "x"},
    "v1/queues/mail/reserve": {"max": 1},
    "v1/queues/mail/ack": {"jobs": [{"id": "a", "lease": "0.1"}]},
    "v1/queues/mail/cancel": {"ids": ["a"]},
    "v1/queues/mail/pause": {"direction": "out"},
    "v1/queues/mail/run-now": {"all": True},
}
#: those that are sent with a key
KEYED = ("v1/queues/mail/jobs", "v1/queues/mail/reserve")


@pytest.fixture
def stopped(redis_factory: Callable[..., RedisBox]) -> RedisBox:
    """The server that will stand still."""
    return redis_factory()


@pytest.fixture
def standing(api: Caller, settings: Any, stopped: RedisBox, monkeypatch: Any) -> Caller:
    """A caller of a site whose Redis has just stopped to answer, although everything was known by then."""
    box = stopped
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": box.url, "QUEUES": {"mail": {"kind": "pull"}}}
    connections.close_broker()
    monkeypatch.setattr(connections, "PATIENCE", SHORT)
    assert api.post("v1/queues/mail/jobs", {"body": "x", "id": "a"})[0] == 201
    assert api.get("v1/queues")[0] == 200
    box.pause()
    return api


@pytest.mark.broken_on_purpose
def test_looks_and_verbs_say_that_redis_does_not_answer_and_a_key_that_was_refused_is_free_when_it_goes_on(
    standing: Caller, stopped: RedisBox
) -> None:
    """The claim of a key lies in Redis's socket and is carried out then, when nobody works on the request any more."""
    for method, path in (*(("GET", path) for path in LOOKS), *(("POST", path) for path in VERBS)):
        key = {"Idempotency-Key": f"once-{path}"} if path in KEYED else {}
        began = time.monotonic()
        status, body = standing(method, path, VERBS.get(path) if method == "POST" else None, **key)
        assert (status, body["code"]) == (503, "unavailable"), path
        assert body["detail"].startswith("Redis does not answer now; retry."), path
        assert time.monotonic() - began < MOST, path
    stopped.resume()
    deadline = time.monotonic() + 20
    for path in KEYED:
        while (status := standing.post(path, VERBS[path], **{"Idempotency-Key": f"once-{path}"})[0]) in (409, 503):
            assert time.monotonic() < deadline, f"the key of {path} is not given up"
            time.sleep(0.1)  # in another process nothing tells us
        assert status in (200, 201), path


@pytest.mark.broken_on_purpose
def test_a_request_whose_answer_could_not_be_kept_is_recognised_when_it_counts_as_dead(
    api: Caller, settings: Any, redis_factory: Callable[..., RedisBox], monkeypatch: Any
) -> None:
    box = redis_factory()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": box.url, "QUEUES": {"mail": {"kind": "pull"}}}
    connections.close_broker()
    monkeypatch.setattr(connections, "PATIENCE", SHORT)
    done = IdempotencyRecord.keep

    def stop_first(kept: IdempotencyRecord, response: Any) -> None:
        response.add_post_render_callback(lambda _: box.pause())
        done(kept, response)

    with monkeypatch.context() as patch:
        patch.setattr(IdempotencyRecord, "keep", stop_first)
        first = api.post("v1/queues/mail/jobs", {"body": "x"}, **{"Idempotency-Key": "once"})
    assert first[0] == 201
    box.resume()
    deadline = time.monotonic() + 20
    while (again := api.post("v1/queues/mail/jobs", {"body": "x"}, **{"Idempotency-Key": "once"}))[0] == 503:
        assert time.monotonic() < deadline, "Redis does not go on"
        time.sleep(0.1)
    assert (again[0], again[1]["code"]) == (409, "idempotency_in_progress")
    broker = connections.broker()
    (name,) = broker.client.scan_iter(f"{broker.prefix}:answer:*")
    assert 0 < broker.client.ttl(name) <= UNDER_WAY
    broker.client.delete(name)  # as Redis does after a minute
    again = api.post("v1/queues/mail/jobs", {"body": "x"}, **{"Idempotency-Key": "once"})
    assert (again[0], again[1]["id"]) == (201, first[1]["id"])
    assert api.get("v1/queues/mail")[1]["counts"]["ready"] == 1
