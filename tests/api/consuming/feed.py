"""World of the tests of consumers: two pull queues, a consumer, and verbs over HTTP."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from django.test import TestCase

from django_delayq import Queue, connections, schedule
from django_delayq.scheduling.verbs import JobHandle
from tests.support.api_caller import Caller

LOST = "0.1234567890123456"
VERBS = ("ack", "fail", "release", "bury", "touch")


def put(body: bytes | str, queue: str = "feed", **options: Any) -> JobHandle:
    """Raw bytes, at once: a test is a transaction, which never commits."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        return Queue(queue).put(body, **options)


def scheduled(*args: Any, **options: Any) -> JobHandle:
    with TestCase.captureOnCommitCallbacks(execute=True):
        return schedule(*args, **options)


def places(queue: str) -> dict[str, int]:
    """Count the jobs of a queue by place; empty places are left out."""
    counts = connections.broker().inspector.counts(queue)
    names = ("ready", "delayed", "reserved", "gated", "failed", "morgue")
    return {name: getattr(counts, name) for name in names if getattr(counts, name)}


def take(consumer: Caller, queue: str = "feed", **asked: Any) -> list[dict[str, Any]]:
    status, body = consumer.post(f"v1/queues/{queue}/reserve", asked)
    assert status == 200, body
    return body["jobs"]


def end(consumer: Caller, verb: str, *jobs: dict[str, Any], queue: str = "feed", **more: Any) -> list[bool]:
    """Settle jobs with a verb and return for each if it counted."""
    entries = [{"id": job["id"], "lease": job["lease"], **more} for job in jobs]
    status, body = consumer.post(f"v1/queues/{queue}/{verb}", {"jobs": entries})
    assert status == 200, body
    assert [one["id"] for one in body["results"]] == [job["id"] for job in jobs]
    return [one["counted"] for one in body["results"]]


def moment(text: str) -> datetime:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    return datetime.fromisoformat(text)
