"""Known faults of the seed systems, one scenario each; the numbers are those of the consolidated list (T01 … T64).

Here are those that the core alone answers for; those that need a worker, Django or a network are in files beside.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import ack, fail, release
from django_delayq.core.times import due_of
from tests.core.stage import LEASE, T0, Stage


def script_us(broker: Broker, act: Callable[[], object]) -> float:
    """Mean time (µs) that the server spent in each script call of ``act``."""

    def spent() -> tuple[int, int]:
        stats = broker.client.info("commandstats")
        mine = [stats[name] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats]
        return sum(stat["usec"] for stat in mine), sum(stat["calls"] for stat in mine)

    usec, calls = spent()
    act()
    after_usec, after_calls = spent()
    return (after_usec - usec) / (after_calls - calls)


@pytest.mark.parametrize("jobs", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_t01_many_jobs_due_in_the_same_millisecond(broker: Broker, jobs: int) -> None:
    queue = broker.queue("q")

    def put(n: int) -> None:
        queue.schedule_many(NewJob(f"j{number}", "work", due_ms=T0, delay_ms=None) for number in range(n))

    def drain() -> list[str]:
        taken: list[str] = []
        while jobs := queue.reserve(0, 250, worker="w").jobs:
            taken += [job.id for job in jobs]
            assert all(queue.settle([ack(job, 0, 0) for job in jobs]))
        return taken

    put(250)
    drain()  # loads the scripts
    few, many = [], []
    for _ in range(10):
        put(250)
        few.append(script_us(broker, drain))
    put(jobs)
    taken: list[str] = []
    many.append(script_us(broker, lambda: taken.extend(drain())))
    assert sorted(taken) == sorted(f"j{number}" for number in range(jobs))
    # Two in three calls of the small rounds find 250 jobs or settle them, nearly all of the large one do.
    assert many[0] < 4 * max(few)


@pytest.mark.parametrize("reaper_first", [True, False])
def test_t23_a_release_and_the_reaper_race_and_exactly_one_wins(stage: Stage, reaper_first: bool) -> None:
    stage.put("x")
    job = stage.take_one()
    stage.wait(LEASE)
    (found,) = stage.queue.expired(0)

    def by_holder() -> list[bool]:
        return stage.settle(release(job, delay_ms=3_600_000))

    def by_reaper() -> list[bool]:
        return stage.settle(*(fail(one, delay_ms=0, outcome="crashed") for one in stage.queue.take_over([found], "r")))

    assert (
        (by_reaper(), by_holder()) == ([True], [False]) if reaper_first else (by_holder(), by_reaper()) == ([True], [])
    )
    due = LEASE if reaper_first else LEASE + 3_600_000
    assert stage.picture()["waiting"] == [f"x +{due}"]


def test_t23_the_same_from_two_threads_many_times(broker: Broker) -> None:
    quick = Broker(broker.connection, prefix=broker.prefix, lease_ms=1)
    queue = quick.queue("q")
    with ThreadPoolExecutor(2) as pool:
        for _ in range(100):
            queue.schedule(NewJob("x", "work"))
            (job,) = queue.reserve(0, 1, worker="w").jobs
            while not (found := queue.expired(0)):
                pass
            holder = pool.submit(queue.settle, [release(job, delay_ms=3_600_000)])
            reaper = pool.submit(lambda: queue.settle([release(one) for one in queue.take_over(found, "reaper")]))
            assert holder.result() != (reaper.result() == [True] and [True])
            view = quick.inspector.get("q", "x")
            assert view is not None
            assert (view.due_ms > quick.now_ms() + 3_000_000) == holder.result()[0]


@pytest.mark.parametrize("ahead", [-300.0, 300.0])
def test_t43_due_times_and_leases_follow_the_clock_of_redis_not_the_callers(
    broker: Broker, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    queue = broker.queue("q")
    _, delay = due_of(delay=60)
    queue.schedule(NewJob("later", "work", delay_ms=delay))
    queue.schedule(NewJob("now", "work"))
    batch = queue.reserve(0, 10, worker="w")
    now = broker.now_ms()
    assert [job.id for job in batch.jobs] == ["now"]
    assert batch.next_due_ms == pytest.approx(60_000, abs=5000)
    assert abs(now - real() * 1000) < 60_000
    (lease,) = queue.leases(0)
    assert lease.deadline_ms == pytest.approx(now + broker.lease_ms, abs=5000)
    assert queue.expired(0) == []


def test_t49_what_is_done_leaves_nothing_behind(stage: Stage) -> None:
    client = stage.broker.client

    def pass_through(n: int) -> None:
        for start in range(0, n, 1000):
            stage.queue.schedule_many(NewJob(f"j{start + number}", "work", args=b"x" * 50) for number in range(1000))
            jobs = stage.take(250)
            while jobs:
                acks = [ack(job, 0, 0, event=False) for job in jobs]
                counted, batch = stage.queue.settle_reserve(0, acks, 250, worker="w")
                assert all(counted)
                jobs = batch.jobs
            stage.wait(130_000)
            for _ in range(3):
                stage.queue.tick(0)

    pass_through(2000)
    keys, before = set(client.keys()), client.info("memory")["used_memory"]
    pass_through(20_000)
    assert stage.shard_is_empty()
    assert set(client.keys()) == keys
    assert client.info("memory")["used_memory"] - before < 200_000
