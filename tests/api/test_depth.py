"""Depth of a queue over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core import figures
from django_delayq.core.figures import DepthPoint
from django_delayq.core.times import iso_of
from tests.support.api_caller import Caller

MINUTE = 60_000


def seed(broker: Any, minutes: int) -> int:
    """A sample a minute; returns the last whole minute, Unix ms."""
    broker.queue("mail")
    now_ms = broker.now_ms()
    for ago in range(minutes, -1, -1):
        figures.record_depths(broker, {"mail": DepthPoint(ready=ago, done=30 * (minutes - ago))}, now_ms - ago * MINUTE)
    return int(now_ms // MINUTE * MINUTE)


def test_t86_the_depth_of_a_queue_is_known_by_minute(api: Caller, delayq: Any) -> None:
    last_ms = seed(delayq, 5)
    code, body = api.get("v1/queues/mail/depth?minutes=2")
    assert code == 200
    counts = {"delayed": 0, "reserved": 0, "failed": 0, "morgue": 0, "lag_seconds": 0.0, "p50_ms": None, "p99_ms": None}
    rates = {"scheduled": 0.0, "done": 0.5, "failing": 0.0}
    assert body["points"][-2:] == [
        {"at": iso_of(last_ms - MINUTE), "ready": 1, **counts, **rates},
        {"at": iso_of(last_ms), "ready": 0, **counts, **rates},
    ]


def test_an_hour_is_returned_unless_more_is_requested(api: Caller, delayq: Any) -> None:
    seed(delayq, 90)
    assert len(api.get("v1/queues/mail/depth")[1]["points"]) == 60
    assert len(api.get("v1/queues/mail/depth?minutes=1440")[1]["points"]) == 91


@pytest.mark.parametrize("minutes", ["0", "1441", "many"])
def test_a_span_that_is_not_kept_is_refused(api: Caller, delayq: Any, minutes: str) -> None:
    delayq.queue("mail")
    code, body = api.get(f"v1/queues/mail/depth?minutes={minutes}")
    assert code == 400
    assert "minutes" in str(body)


def test_the_depth_of_an_unknown_queue_is_not_found(api: Caller, delayq: Any) -> None:
    assert api.get("v1/queues/nowhere/depth")[0] == 404
