"""Producers that wait for room in a full queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_delayq import InvalidJob, Queue, QueueFull, schedule, schedule_many
from django_delayq.core.broker import Broker
from tests.app.deeds import note

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def full(delayq: Broker) -> Broker:
    """A queue with room for ten jobs, and ten jobs in it."""
    schedule_many(note, [{"args": [str(number)], "id": str(number)} for number in range(10)])
    delayq.limit("default", max_length=10)
    return delayq


def later(seconds: float, act: Callable[[], Any]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    return timer


def cancel(broker: Broker, *idents: int) -> None:
    for ident in idents:
        assert broker.queue("default").cancel(str(ident)) == "cancelled"


def calls_of(broker: Broker) -> list[str]:
    calls: list[str] = []
    broker.observe(lambda verb, seconds, failed: calls.append(verb))
    return calls


def test_a_producer_waits_for_room_and_then_its_job_is_stored(full: Broker) -> None:
    timer, began = later(0.5, lambda: cancel(full, 3)), time.monotonic()
    assert schedule(note, "new", wait_for_room=10).outcome == "created"
    assert 0.4 < time.monotonic() - began < 3
    timer.join()


def test_a_wait_that_is_over_ends_in_the_error_of_a_full_queue_without_hard_polling(full: Broker) -> None:
    calls, began = calls_of(full), time.monotonic()
    with pytest.raises(QueueFull, match="reached its max_length"):
        schedule(note, "new", wait_for_room=timedelta(seconds=1.5))
    assert 1.4 < time.monotonic() - began < 4
    assert len(calls) < 20, calls
    began = time.monotonic()
    with pytest.raises(QueueFull):
        schedule(note, "new")
    assert time.monotonic() - began < 0.5


def test_many_jobs_wait_as_long_as_there_is_progress(full: Broker) -> None:
    timers = [later(0.6 * (number + 1), lambda number=number: cancel(full, number)) for number in range(3)]
    began = time.monotonic()
    counts = schedule_many(note, [{"args": ["x"]} for _ in range(5)], wait_for_room=1.2)
    assert counts == {"created": 3, "full": 2}
    assert 2.5 < time.monotonic() - began < 8
    for timer in timers:
        timer.join()


def test_more_jobs_than_one_call_takes_wait_too_and_give_up_once(full: Broker) -> None:
    began = time.monotonic()
    assert schedule_many(note, [{"args": ["x"]} for _ in range(2_000)], wait_for_room=0.5) == {"full": 2_000}
    assert 0.5 <= time.monotonic() - began < 5


def test_only_the_entries_that_want_to_wait_do_so(full: Broker) -> None:
    timer = later(0.4, lambda: cancel(full, 1, 2, 3))
    entries = [{"args": ["x"], "id": "patient", "wait_for_room": 5}, {"args": ["x"], "id": "hasty"}]
    assert schedule_many(note, entries) == {"created": 1, "full": 1}
    timer.join()
    assert full.inspector.get("default", "patient") is not None


def test_bytes_wait_for_room_too(delayq: Broker) -> None:
    delayq.queue("images", kind="pull")
    delayq.limit("images", max_length=1)
    Queue("images").put(b"1", id="1")
    timer = later(0.3, lambda: delayq.queue("images").cancel("1"))
    assert Queue("images").put(b"2", wait_for_room=5).outcome == "created"
    timer.join()


def test_after_a_commit_there_is_no_wait(full: Broker) -> None:
    began = time.monotonic()
    with transaction.atomic():
        handle = schedule(note, "new", wait_for_room=30)
    assert isinstance(handle.error, QueueFull)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("wrong", [-1, "soon", 3_601, True])
def test_a_wait_of_no_sensible_length_is_refused(delayq: Broker, wrong: Any) -> None:
    with pytest.raises(InvalidJob, match="wait_for_room"):
        schedule(note, "new", wait_for_room=wrong)
