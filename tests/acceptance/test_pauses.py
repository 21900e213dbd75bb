"""Queues that are paused and resumed while a real worker serves them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from django_delayq import QueuePaused
from tests.support.redis_box import RedisBox

from .world import Mill, until


@pytest.fixture(scope="module")
def shared(redis_box: RedisBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mill]:
    """One worker with a queue for each test."""
    with Mill(redis_box.url, tmp_path_factory.mktemp("shared"), lease=1.5) as mill:
        for name, shards in (("default", 3), ("resumed", 1), ("closed", 2)):
            mill.broker.queue(name, shards=shards)
        mill.start("--threads", 3, queues="default,resumed,closed")
        yield mill


@pytest.fixture
def mill(shared: Mill) -> Iterator[Mill]:
    yield shared
    shared.check()


def test_t62_while_a_queue_is_paused_nothing_new_is_started_and_what_runs_ends(mill: Mill) -> None:
    running = [mill.put("wait_for", str(mill.gate()), id=f"running-{number}") for number in range(2)]
    for ident in running:
        mill.wait_starts(ident)

    mill.broker.pause("default", "out")
    waiting = mill.put_many("grind", 20)
    waiting.append(mill.put("grind", id="one-more"))
    first = leases(mill)
    until(lambda: all(leases(mill)[ident] > first[ident] + 1_600 for ident in running), "more than a lease's time")
    assert set(started(mill, "default")) == set(running)
    mill.gate().touch()
    mill.wait_ended(running)
    until(lambda: mill.counts().reserved == 0, "the acks of what ran")
    assert set(started(mill, "default")) == set(running)
    assert mill.counts().ready == len(waiting)

    mill.broker.resume("default")
    mill.wait_ended(waiting)
    assert started(mill, "default") == dict.fromkeys([*running, *waiting], 1)


def started(mill: Mill, queue: str) -> Counter[str]:
    """Count the starts of each job of a queue."""
    return Counter(line["id"] for line in mill.starts() if line["queue"] == queue)


def leases(mill: Mill) -> dict[str, int]:
    """Return the end of each running job's lease, Unix ms."""
    queue = mill.broker.queue("default")
    return {job.id: job.deadline_ms for number in queue.numbers for job in queue.leases(number)}


def test_t62_a_resumed_queue_is_at_work_in_less_than_a_second(mill: Mill) -> None:
    for number in range(3):
        mill.broker.pause("resumed", "out")
        ident = mill.put("grind", id=f"after-pause-{number}", queue="resumed")
        before = heard(mill)
        until(lambda before=before: heard(mill) > before, "a sign of life")  # type: ignore[misc]
        assert mill.starts(ident) == []
        resumed = time.time()
        mill.broker.resume("resumed")
        (start,) = mill.wait_starts(ident)
        assert start["at"] - resumed < 1.0
        mill.wait_ended([ident])


def heard(mill: Mill) -> int:
    """Return the time of the worker's last sign of life, Unix ms."""
    (worker,) = mill.broker.workers()
    seen: int = worker["seen_ms"]
    return seen


def test_t62_a_queue_that_is_paused_for_new_jobs_refuses_them_and_works_off_the_others(mill: Mill) -> None:
    queue = mill.broker.queue("closed", shards=2)
    later = mill.put_many("grind", 10, queue="closed", delay_ms=300)
    mill.broker.pause("closed", "in")
    with pytest.raises(QueuePaused, match="closed"):
        mill.put("grind", id="refused", queue="closed")
    assert queue.count_many([mill.job("grind"), mill.job("grind")]) == {"paused": 2}
    mill.wait_ended(later)
    mill.wait_empty("closed")
    assert mill.view("refused", "closed") is None

    mill.broker.resume("closed")
    ident = mill.put("grind", id="refused", queue="closed")
    mill.wait_ended([ident])
    assert started(mill, "closed") == dict.fromkeys([*later, ident], 1)
