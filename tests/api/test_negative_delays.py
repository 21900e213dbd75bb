"""A negative delay is due now, in every verb of the HTTP API that takes a delay (row 4)."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core.broker import Broker
from tests.support.api_caller import Caller

from .errands import bury, carry, live, put

QUEUE = "v1/queues/errands"
JOBS = f"{QUEUE}/jobs"

pytestmark = pytest.mark.django_db


def is_due_now(broker: Broker, ident: str, before: float) -> bool:
    view = live(broker, ident)
    return view.state == "ready" and before - 1 <= view.due_ms <= broker.now_ms()


@pytest.mark.parametrize("delay", [-1, -0.001, -86_400.5])
def test_one_job_several_jobs_and_a_moved_one_are_due_now(api: Caller, delayq: Broker, delay: float) -> None:
    before = delayq.now_ms()
    assert api.post(JOBS, {"task": "errands.carry", "id": "one", "delay": delay})[0] == 201
    several = [{"task": "errands.carry", "id": ident, "delay": delay} for ident in ("a", "b")]
    assert api.post(JOBS, {"jobs": several})[0] in (200, 201)
    put(delayq, carry, id="moved", delay=3600)
    assert api.patch(f"{JOBS}/moved", {"delay": delay})[0] == 200
    assert all(is_due_now(delayq, ident, before) for ident in ("one", "a", "b", "moved"))


def test_a_kicked_job_is_due_now(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, id="x")
    bury(delayq, "x")
    before = delayq.now_ms()
    assert api.post(f"{QUEUE}/kick", {"ids": ["x"], "delay": -5})[1]["counts"] == {"kicked": 1}
    assert is_due_now(delayq, "x", before)


@pytest.mark.parametrize("verb", ["fail", "release"])
def test_a_held_job_is_due_now(api: Caller, delayq: Broker, verb: str) -> None:
    put(delayq, carry, id="x")
    status, body = api.post(f"{QUEUE}/reserve", {})
    assert status == 200
    (job,) = body["jobs"]
    before = delayq.now_ms()
    entry: dict[str, Any] = {"id": "x", "lease": job["lease"], "delay": -5}
    assert api.post(f"{QUEUE}/{verb}", {"jobs": [entry]})[0] == 200
    assert is_due_now(delayq, "x", before)
