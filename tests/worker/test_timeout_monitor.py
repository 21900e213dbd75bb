"""Time limits strike the run that they are for, and leave nothing behind in the process."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, JobTimeout, NewJob
from django_delayq.worker.timeouts import TimeoutMonitor
from tests.support.attempt_stage import (
    Attempt,
    BatchAttempt,
    CurrentJob,
    make_attempt,
    make_job,
    strike,
    strike_while_disarmed,
)
from tests.support.worker_stage import config, put, put_payload, registry_of, run_dry, working

PROGRAM = """
import sys, threading
from tests.worker.test_timeout_monitor import overrun
{act}
sys.settrace(lambda *_: None)
(lambda: None)()
print("went on")
"""


def spin(until: float) -> None:
    """Keep the thread busy until a moment (monotonic), in a frame of its own.

    CPython 3.13 leaves the jump at the end of a loop out of the ``try`` or ``with`` block around the loop.
    """
    while time.monotonic() < until:
        pass


def overrun(*, raises: bool) -> Attempt:
    """A run in this thread whose limit struck; the exception of it was raised, or is still to be."""
    attempt = make_attempt()
    timeout_monitor = TimeoutMonitor(None, lambda _: None, lambda: None, running=[attempt])
    timeout_monitor.arm(attempt, 0)
    try:
        strike(timeout_monitor, attempt)
        if raises:
            spin(until=time.monotonic() + 5)
    except JobTimeout:
        pass
    finally:
        timeout_monitor.disarm(attempt)
    return attempt


@pytest.mark.parametrize("raises", [True, False])
def test_a_traced_program_goes_on_after_a_time_limit(raises: bool) -> None:
    program = PROGRAM.format(act=f"overrun(raises={raises})")
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.stdout, done.stderr, done.returncode) == ("went on\n", "", 0)


def test_a_limit_that_struck_too_late_does_not_strike_later() -> None:
    gc.disable()  # a weak reference's callback that the collector runs would swallow the exception, with a warning
    try:
        for _ in range(100):
            overrun(raises=False)
            sum(range(1000))
    finally:
        gc.enable()


def test_a_limit_that_strikes_while_it_is_disarmed_keeps_no_lock() -> None:
    attempt = make_attempt()
    timeout_monitor = TimeoutMonitor(None, lambda _: None, lambda: None, running=[attempt])
    assert isinstance(strike_while_disarmed(timeout_monitor, attempt), JobTimeout)
    other = threading.Thread(target=timeout_monitor.arm, args=(make_attempt(), 60), daemon=True)
    other.start()
    other.join(5)
    assert not other.is_alive(), "the next attempt begins"


def test_a_run_that_never_reached_its_limit_is_left_alone() -> None:
    attempt = make_attempt()
    timeout_monitor = TimeoutMonitor(None, lambda _: None, lambda: None, running=[attempt])
    timeout_monitor.arm(attempt, 60)
    timeout_monitor.disarm(attempt)
    assert (attempt.limited_by, attempt.should_stop) == (0.0, False)


def test_a_limit_strikes_when_it_ends_and_not_with_the_next_look_around() -> None:
    """The monitor sleeps until the nearest limit that it knows, or its beat; a limit that ends sooner wakes it."""
    beats = threading.Semaphore(0)
    running: list[Attempt | None] = [None]
    timeout_monitor = TimeoutMonitor(None, lambda _: None, lambda: beats.release(), running=running)
    timeout_monitor.start()
    try:
        beats.acquire(timeout=5)
        time.sleep(0.05)  # it looks around once, and then sleeps for a second
        running[0] = attempt = make_attempt()
        began = time.monotonic()
        with pytest.raises(JobTimeout):
            timeout_monitor.arm(attempt, 0.1)
            spin(until=began + 5)
        assert time.monotonic() - began < 0.5
        timeout_monitor.disarm(attempt)
    finally:
        timeout_monitor.close()


# --- the time that is left for a handler


def left(attempt: Attempt) -> float:
    return CurrentJob(attempt).seconds_left


@pytest.mark.parametrize(
    ("lease", "limit", "state", "seconds"),
    [
        (10, 5, {}, 5),
        (10, 50, {}, 10),
        (-1, 50, {}, 0),
        (10, 50, {"lost": True}, 0),
        # The timeout monitor struck; the limit that it watches now is the end of its patience.
        (10, 5, {"limited_by": 1.0}, 0),
        # Acked before it began, it has no lease.
        (-1, 5, {"acked": True}, 5),
        (-1, math.inf, {"acked": True}, math.inf),
    ],
)
def test_what_is_left_ends_with_the_lease_or_the_limit(
    lease: float, limit: float, state: dict[str, Any], seconds: float
) -> None:
    now = time.monotonic()
    attempt = make_attempt(deadline=now + lease, limit_at=now + limit, **state)
    assert left(attempt) == pytest.approx(seconds, abs=0.5)
    assert (CurrentJob(attempt).deadline is None) is (seconds == math.inf)


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
