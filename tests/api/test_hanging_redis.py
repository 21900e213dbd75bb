"""A Redis that stands still, its connections open: requests say so soon, and hold no thread of the server for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import connections
from django_delayq.api import brokers
from tests.support.redis_box import RedisBox

from .conftest import Caller

#: patience of these tests, seconds; a request may need several answers, and a line that was lost is made anew once
SHORT = 0.3
MOST = SHORT * 8

LOOKS = ("v1/queues", "v1/queues/mail", "v1/queues/mail/jobs", "v1/stats", "v1/status", "v1/workers")
VERBS = {
    "v1/queues/mail/jobs": {"body": "x"},
    "v1/queues/mail/reserve": {"max": 1},
    "v1/queues/mail/ack": {"jobs": [{"id": "a", "lease": "0.1"}]},
    "v1/queues/mail/cancel": {"ids": ["a"]},
    "v1/queues/mail/pause": {"direction": "out"},
    "v1/queues/mail/run-now": {"all": True},
}


@pytest.fixture
def standing(api: Caller, settings: Any, redis_factory: Callable[..., RedisBox], monkeypatch: Any) -> Caller:
    """A caller of a site whose Redis has just stopped to answer, although everything was known by then."""
    box = redis_factory()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": box.url, "QUEUES": {"mail": {"kind": "pull"}}}
    connections.close_broker()
    monkeypatch.setattr(brokers, "PATIENCE", SHORT)
    assert api.post("v1/queues/mail/jobs", {"body": "x", "id": "a"})[0] == 201
    assert api.get("v1/stats")[0] == 200
    box.pause()
    return api


@pytest.mark.broken_on_purpose
@pytest.mark.parametrize("path", LOOKS)
def test_a_look_says_that_redis_does_not_answer(path: str, standing: Caller) -> None:
    began = time.monotonic()
    status, body = standing.get(path)
    assert (status, body["code"]) == (503, "unavailable")
    assert time.monotonic() - began < MOST


@pytest.mark.broken_on_purpose
@pytest.mark.parametrize("path", VERBS)
def test_a_verb_says_that_redis_does_not_answer(path: str, standing: Caller) -> None:
    began = time.monotonic()
    status, body = standing.post(path, VERBS[path])
    assert (status, body["code"]) == (503, "unavailable")
    assert time.monotonic() - began < MOST
