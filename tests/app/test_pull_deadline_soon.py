"""A wait for jobs ends before the lease of a job that the caller holds already does (beanstalkd's DEADLINE_SOON)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_delayq import InvalidJob, Queue
from django_delayq.core.broker import Broker

LONG = 20.0


@pytest.fixture
def feed(delayq: Broker, settings: Any) -> Queue:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"feed": {"kind": "pull"}}}
    return Queue("feed")


def seconds_of(call: Callable[[], object]) -> float:
    began = time.monotonic()
    assert call() == []
    return time.monotonic() - began


@pytest.mark.parametrize("wait", [LONG, None])
def test_a_wait_ends_before_the_lease_of_a_held_job(feed: Queue, wait: float | None) -> None:
    feed.put(b"x")
    (job,) = feed.reserve(ttr=3)
    assert 0.5 < seconds_of(lambda: feed.reserve(wait=wait, deadline_margin=timedelta(seconds=2))) < 2
    assert feed.soon_ending(2) == [job]
    assert job.touch()


def test_a_job_that_is_due_comes_first(feed: Queue) -> None:
    feed.put(b"x")
    (job,) = feed.reserve(ttr=3)
    feed.put(b"y", id="y")
    assert [one.id for one in feed.reserve(wait=LONG, deadline_margin=10)] == ["y"]
    assert seconds_of(lambda: feed.reserve(wait=LONG, deadline_margin=10)) < 1
    assert job.in_hand


def test_a_touch_during_the_wait_lengthens_it(feed: Queue) -> None:
    feed.put(b"x")
    (job,) = feed.reserve(ttr=2)
    timer = threading.Timer(0.3, lambda: job.touch(4))
    timer.start()
    assert 2 < seconds_of(lambda: feed.reserve(wait=LONG, deadline_margin=1)) < 5
    timer.join()


@pytest.mark.parametrize("end", ["ack", "over", "none"])
def test_jobs_that_are_not_held_any_more_end_no_wait(feed: Queue, end: str) -> None:
    if end != "none":
        feed.put(b"x", max_attempts=1)
        (job,) = feed.reserve(ttr=0.05)
        if end == "ack":
            assert job.ack()
        time.sleep(0.06)
    assert seconds_of(lambda: feed.reserve(wait=0.6, deadline_margin=5)) > 0.5


def test_without_the_margin_leases_end_no_wait(feed: Queue) -> None:
    feed.put(b"x")
    (job,) = feed.reserve(ttr=30)
    assert seconds_of(lambda: feed.reserve(wait=0.4)) > 0.3
    assert seconds_of(lambda: Queue("feed").reserve(wait=0.4, deadline_margin=40)) > 0.3  # it holds none itself
    assert job.in_hand


@pytest.mark.parametrize("margin", [0, -1, "1"])
def test_a_wrong_margin_is_refused(feed: Queue, margin: Any) -> None:
    with pytest.raises(InvalidJob, match="deadline_margin"):
        feed.reserve(deadline_margin=margin)
