"""Queues that are paused and resumed while a real worker serves them."""

from __future__ import annotations

import time

import pytest

from django_delayq import QueuePaused

from .world import Mill, until


def test_t62_while_a_queue_is_paused_nothing_new_is_started_and_what_runs_ends(mill: Mill) -> None:
    mill.broker.queue("default", shards=3)
    mill.start("--threads", 3)
    running = [mill.put("wait_for", str(mill.gate()), id=f"running-{number}") for number in range(2)]
    for ident in running:
        mill.wait_starts(ident)

    pause(mill, "pause", "--out")
    waiting = mill.put_many("grind", 20)
    waiting.append(mill.put("grind", id="one-more"))
    first = leases(mill)
    until(lambda: all(leases(mill)[ident] > first[ident] + 1_600 for ident in running), "more than a lease's time")
    assert set(mill.starts_by_id()) == set(running)
    mill.gate().touch()
    mill.wait_ended(running)
    until(lambda: mill.counts().reserved == 0, "the acks of what ran")
    assert set(mill.starts_by_id()) == set(running)
    assert mill.counts().ready == len(waiting)

    pause(mill, "resume", "--out")
    mill.wait_ended(waiting)
    assert mill.starts_by_id() == dict.fromkeys([*running, *waiting], 1)


def leases(mill: Mill) -> dict[str, int]:
    """Return the end of each running job's lease, Unix ms."""
    queue = mill.broker.queue("default")
    return {job.id: job.deadline_ms for number in queue.numbers for job in queue.leases(number)}


def pause(mill: Mill, action: str, direction: str) -> None:
    """As an operator does it."""
    command = mill.begin(action, "default", direction, command="delayq_queue")
    assert command.wait() == 0, command.said


def test_t62_a_resumed_queue_is_at_work_in_less_than_a_second(mill: Mill) -> None:
    mill.start("--threads", 2)
    for number in range(3):
        mill.broker.pause("default", "out")
        ident = mill.put("grind", id=f"after-pause-{number}")
        before = heard(mill)
        until(lambda before=before: heard(mill) > before, "a sign of life")  # type: ignore[misc]
        assert mill.starts(ident) == []
        resumed = time.time()
        mill.broker.resume("default")
        (start,) = mill.wait_starts(ident)
        assert start["at"] - resumed < 1.0
        mill.wait_ended([ident])


def heard(mill: Mill) -> int:
    """Return the time of the worker's last sign of life, Unix ms."""
    (worker,) = mill.broker.workers()
    seen: int = worker["seen_ms"]
    return seen


def test_t62_a_queue_that_is_paused_for_new_jobs_refuses_them_and_works_off_the_others(mill: Mill) -> None:
    queue = mill.broker.queue("default", shards=2)
    later = mill.put_many("grind", 10, delay_ms=300)
    mill.start("--threads", 2)
    mill.broker.pause("default", "in")
    with pytest.raises(QueuePaused, match="default"):
        mill.put("grind", id="refused")
    assert queue.count_many([mill.job("grind"), mill.job("grind")]) == {"paused": 2}
    mill.wait_ended(later)
    mill.wait_empty()
    assert mill.view("refused") is None

    mill.broker.resume("default")
    ident = mill.put("grind", id="refused")
    mill.wait_ended([ident])
    assert mill.starts_by_id() == dict.fromkeys([*later, ident], 1)
