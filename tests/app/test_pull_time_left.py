"""Remaining lease of pulled jobs, and those whose lease ends soon."""

from __future__ import annotations

import gc
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from django_delayq import InvalidJob, Queue
from django_delayq.core.broker import Broker
from django_delayq.pull import held as module


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
    assert job.seconds_left == 0


def test_nothing_is_left_of_a_job_that_has_ended(feed: Queue) -> None:
    feed.put(b"x")
    (job,) = feed.reserve()
    assert job.in_hand
    assert job.ack()
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


def test_a_job_that_was_taken_by_its_id_is_among_them(feed: Queue) -> None:
    feed.put(b"", id="a")
    job = feed.reserve_id("a", ttr=1)
    assert feed.soon_ending(margin=1) == [job]


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


@pytest.mark.parametrize("margin", [-1, "soon"])
def test_a_margin_is_a_number_of_seconds(feed: Queue, margin: Any) -> None:
    with pytest.raises(InvalidJob, match="margin"):
        feed.soon_ending(margin)


def test_a_job_is_given_back_with_another_priority(feed: Queue) -> None:
    for ident in "abc":
        feed.put(b"", id=ident)
    held = {job.id: job for job in feed.reserve(3)}
    assert held["c"].release(priority=0)
    assert held["a"].release(priority=7)
    assert held["b"].release()
    assert [job.id for job in feed.reserve(3)] == ["c", "b", "a"]
    feed.put(b"", id="d")
    (job,) = feed.reserve()
    with pytest.raises(InvalidJob, match="priority"):
        job.release(priority=8)
    assert job.in_hand
