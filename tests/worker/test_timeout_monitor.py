"""Time limits strike the run that they are for, and leave nothing behind in the process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from django_delayq.core import JobTimeout
from django_delayq.worker.timeouts import TimeoutMonitor
from tests.support.attempt_stage import Attempt, make_attempt, strike

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
