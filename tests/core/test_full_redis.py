"""Redis without free memory: it rejects new work, and existing jobs can be completed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from django_delayq.core import Broker, NewJob, QueueFull, RedisConfig, ack, bury, connect, fail, release
from tests.support.core_figures import Figures, store_violations
from tests.support.core_stored import assert_invariants, check_stored
from tests.support.redis_box import RedisBox

from .stage import LEASE, Stage
from .world import unchanged


class FullStage(Stage):
    """Stage that moves the clock of a Redis without memory, too."""

    box: RedisBox | None = None

    def _set(self) -> None:
        if self.box is None:
            super()._set()
            return
        self.box.configure(maxmemory="0")
        super()._set()
        self.box.configure(maxmemory="1mb")


@pytest.fixture
def full(redis_factory: Callable[..., RedisBox]) -> Iterator[Stage]:
    """Create ten held jobs, a waiting and a buried one; then exhaust the memory."""
    box = redis_factory()
    connection = connect(RedisConfig.parse(box.url))
    stage = FullStage(Broker(connection, lease_ms=LEASE, test_clock=True))
    stage.in_morgue("buried")
    stage.queue.schedule_many(NewJob(f"j{number}", "work") for number in range(10))
    stage.put("waiting", at=1)
    stage.queue.schedule(NewJob("w2", "work", delay_ms=5000, fresh=True))
    box.client().set("ballast", b"x" * 1_000_000)
    box.configure(maxmemory="1mb")
    stage.box = box
    yield stage
    box.configure(maxmemory="0")
    assert_invariants(stage.broker)
    connection.close()


def test_new_work_is_refused_and_nothing_of_it_is_stored(full: Stage) -> None:
    with unchanged(full.broker):
        for fresh in (False, True):
            with pytest.raises(QueueFull, match="no memory left"):
                full.queue.schedule(NewJob("new", "work", delay_ms=9000, fresh=fresh))
        with pytest.raises(QueueFull):
            full.queue.schedule_many(NewJob(f"n{number}", "work") for number in range(600))
        with pytest.raises(QueueFull):
            full.add("merged", b"p")
        with pytest.raises(QueueFull):
            full.queue.kick("buried")


def test_what_is_there_is_worked_off(full: Stage) -> None:
    jobs = full.take(10)
    assert len(jobs) == 10
    assert full.queue.touch(jobs, {(job.id, job.token) for job in jobs}) == ["held"] * 10
    ends = (ack(jobs[0], 1, 2), fail(jobs[1], 1, 2, delay_ms=0), release(jobs[2]), bury(jobs[3], 1, 2, reason="why"))
    assert full.settle(*ends) == [True] * 4
    assert full.settle(*ends) == [False] * 4
    assert full.take(0) == []
    assert full.queue.touch(jobs[:1]) == ["lost"]
    assert full.queue.cancel("nobody") == ""
    counted, batch = full.queue.settle_reserve(0, [ack(jobs[4], 1, 2)], 5, worker="w")
    assert counted == [True]
    assert {job.id for job in batch.jobs} == {jobs[1].id, jobs[2].id}
    assert full.queue.cancel(jobs[5].id) == "stopping"
    assert full.queue.cancel("waiting") == "cancelled"
    assert full.queue.discard("buried")
    full.wait(LEASE)
    assert full.queue.tick(0).expired
    found = full.take_lost()
    assert len(found) == 7
    assert all(full.settle(*(release(job, unclear=True) for job in found)))
    assert full.done(*full.take(100)) == [True] * 7
    full.broker.announce("w", {})
    assert full.broker.tell_worker("w", "stop")
    full.broker.note_figures(Figures(counts={("redis_error", "overload"): 1}))
    store_violations(full.broker, 0)
    assert full.broker.figures().counts["redis_error", "overload"] == 1
    assert check_stored(full.broker, repair=True).violations == []
