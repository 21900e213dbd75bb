"""Remaining lease of pulled jobs, those whose lease ends soon, and waits that end before it (DEADLINE_SOON)."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_delayq import InvalidJob, Queue
from django_delayq.core.broker import Broker
from django_delayq.pull import held as module

LONG = 20.0


class Clock:
    """Time that only the test moves, for what a held job knows."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def feed(delayq: Broker, settings: Any) -> Queue:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"feed": {"kind": "pull"}, "more": {"kind": "pull"}}}
    return Queue("feed")


def test_what_is_left_is_counted_down_and_a_touch_makes_it_more(feed: Queue, clock: Clock) -> None:
    feed.put(b"x")
    (job,) = feed.reserve(ttr=30)
    assert 29 < job.seconds_left <= 30
    clock.passed = 20
    assert 9 < job.seconds_left <= 10
    assert job.touch()
    assert 29 < job.seconds_left <= 30
    assert job.touch(ttr=5)
    assert 4 < job.seconds_left <= 5
    clock.passed = 60
    assert (job.seconds_left, job.in_hand) == (0, True)
    assert job.ack()
    clock.passed = 0
    assert (job.seconds_left, job.in_hand) == (0, False)


def test_jobs_that_end_soon_are_named_the_first_one_first(feed: Queue, clock: Clock) -> None:
    held = []
    for ident, ttr in (("long", 60), ("short", 10), ("middle", 20), ("done", 10)):
        feed.put(b"", id=ident)
        held += feed.reserve(ttr=ttr)
    assert held[3].ack()
    assert feed.soon_ending() == []
    assert [job.id for job in feed.soon_ending(margin=12)] == ["short"]
    clock.passed = 9.5
    assert [job.id for job in feed.soon_ending()] == ["short"]
    assert [job.id for job in feed.soon_ending(timedelta(seconds=15))] == ["short", "middle"]
    clock.passed = 25  # over by now; a touch or an ack finds out whether somebody else has it
    (short, middle) = feed.soon_ending()
    assert (short.id, middle.id) == ("short", "middle")
    assert short.touch()
    assert [job.id for job in feed.soon_ending()] == ["middle"]


def test_a_job_that_nobody_holds_any_more_or_that_was_taken_elsewhere_is_not(feed: Queue) -> None:
    feed.put(b"", id="a")
    feed.put(b"", id="b")
    feed.reserve(ttr=1)
    other = Queue("feed", "more").reserve(ttr=1)
    gc.collect()
    assert len(other) == 1
    assert feed.soon_ending(margin=5) == []


def test_several_threads_may_take_while_one_asks(feed: Queue) -> None:
    for number in range(200):
        feed.put(b"", id=str(number))
    kept: list[Any] = []

    def take() -> None:
        for _ in range(50):
            kept.extend(feed.reserve(ttr=30))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert len(feed.soon_ending(margin=60)) <= 200
    assert {job.id for job in feed.soon_ending(margin=60)} == {str(number) for number in range(200)}


# -- waits that end before a lease -----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("margin", [-1, "1"])
def test_a_margin_is_a_number_of_seconds(feed: Queue, margin: Any) -> None:
    with pytest.raises(InvalidJob, match="deadline_margin"):
        feed.reserve(deadline_margin=margin)
    with pytest.raises(InvalidJob, match="margin"):
        feed.soon_ending(margin)
