"""Time left for a handler: until its limit, or until its lease ends."""

from __future__ import annotations

import math
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, NewJob
from tests.support.attempt_stage import Attempt, BatchAttempt, CurrentJob, make_attempt, make_job
from tests.support.worker_stage import config, put, put_payload, registry_of, run_dry, working


def left(attempt: Attempt) -> float:
    return CurrentJob(attempt).seconds_left


def test_a_run_without_a_limit_has_what_is_left_of_its_lease() -> None:
    attempt = make_attempt(deadline=time.monotonic() + 10)
    assert 9.5 < left(attempt) <= 10


def test_a_limit_that_ends_sooner_counts_and_a_later_one_does_not() -> None:
    now = time.monotonic()
    assert 4.5 < left(make_attempt(deadline=now + 10, limit_at=now + 5)) <= 5
    assert 9.5 < left(make_attempt(deadline=now + 10, limit_at=now + 50)) <= 10


def test_nothing_is_left_when_it_is_over() -> None:
    now = time.monotonic()
    assert left(make_attempt(deadline=now - 1)) == 0
    assert left(make_attempt(lost=True)) == 0
    # The timeout_monitor struck; the limit that it watches now is the end of its patience.
    assert left(make_attempt(limited_by=now, limit_at=now + 5)) == 0


def test_a_job_that_was_acked_before_it_began_has_no_end_without_a_limit() -> None:
    attempt = make_attempt(acked=True)
    assert left(attempt) == math.inf
    assert CurrentJob(attempt).deadline is None
    attempt.limit_at = time.monotonic() + 5
    assert 4.5 < left(attempt) <= 5


def test_in_a_batch_the_lease_that_ends_first_counts_and_lost_ones_do_not() -> None:
    now = time.monotonic()
    members = [make_attempt(make_job(id=str(n)), deadline=now + n) for n in (3, 5, 9)]
    batch = BatchAttempt(members)
    assert 2.5 < left(batch) <= 3
    members[0].lost = True
    assert 4.5 < left(batch) <= 5
    members[1].lost = members[2].lost = True
    assert left(batch) == 0


def test_the_deadline_is_on_the_clock_of_redis() -> None:
    attempt = make_attempt(deadline=time.monotonic() + 10)
    attempt.offset_ms += 3_600_000  # Redis's clock is an hour ahead of ours
    deadline = CurrentJob(attempt).deadline
    assert deadline is not None
    assert 3605 < (deadline - datetime.now(UTC)).total_seconds() <= 3611


def test_a_handler_sees_its_lease_and_its_limit(broker: Broker) -> None:
    seen: list[Any] = []

    def work() -> None:
        job = current_job()
        assert job is not None
        deadline = job.deadline
        assert deadline is not None
        seen.append((job.seconds_left, deadline.timestamp() * 1000 - broker.now_ms()))

    put(broker, "work")
    run_dry(broker, registry_of(work, timeout=4))
    put(broker, "work")
    run_dry(broker, registry_of(work))
    (limited, limited_ms), (leased, leased_ms) = seen
    assert 3 < limited <= 4
    assert 12 < leased <= 14
    assert abs(limited_ms - limited * 1000) < 500
    assert abs(leased_ms - leased * 1000) < 500


@pytest.mark.parametrize("merged", [False, True])
def test_a_touch_by_the_handler_gives_it_more_time(connection: Any, prefix: str, merged: bool) -> None:
    broker = Broker(connection, prefix=prefix, lease_ms=6000)
    seen: list[Any] = []
    done = threading.Event()

    def work(*_args: Any) -> None:
        job = current_job()
        assert job is not None
        while job.seconds_left > 5.0:  # of 5.4 that can be counted on
            threading.Event().wait(0.02)
        before = job.seconds_left
        seen.append((before, job.touch(), job.seconds_left))
        done.set()

    if merged:
        put_payload(broker, "work", "a", 1)
    else:
        broker.queue("default").schedule(NewJob("a", "work"))
    # A heartbeat as rare as it may be: the first one comes before the handler began.
    with working(broker, registry_of(work, **({"merge": True} if merged else {})), config(heartbeat=60.0)):
        assert done.wait(10)
    ((before, held, after),) = seen
    assert held is True
    assert before <= 5.0
    assert before + 0.2 < after <= 5.4
