"""Known faults of the seed systems, one scenario each; the numbers are those of the consolidated list (T01 … T64).

Here are those that the core alone answers for; those that need a worker, Django or a network are in files beside.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_delayq.core import fsck
from django_delayq.core.broker import Broker
from django_delayq.core.errors import IdTaken
from django_delayq.core.job import NewJob, Payload, new_key
from django_delayq.core.options import TaskOptions
from django_delayq.core.outcomes import ack, fail, release
from django_delayq.core.times import due_of
from django_delayq.worker.ends import End
from tests.core.stage import LEASE, T0, Stage
from tests.core.world import unchanged


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


def test_t02_ten_thousand_leases_expire_at_once(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{number}", "work") for number in range(10_000))
    while stage.take(250, worker="dead"):
        pass
    stage.wait(LEASE)
    recovered: list[str] = []
    while stage.queue.expired(0):
        found = stage.take_lost()
        assert all(stage.settle(*(release(job, unclear=True) for job in found)))
        recovered += [job.id for job in found]
    assert len(recovered) == len(set(recovered)) == 10_000
    assert stage.broker.inspector.counts("q").ready == 10_000
    assert len(stage.take(250, worker="next")) == 250


def test_t06_an_id_scheduled_while_it_runs_runs_afterwards_exactly_once(stage: Stage) -> None:
    stage.put("x", args=b"first")
    job = stage.take_one()
    assert stage.put("x", args=b"second") == "gated"
    assert not stage.take(), "never beside the first run"
    stage.done(job)
    second = stage.take_one()
    assert (job.args, second.args) == (b"first", b"second")
    stage.done(second)
    assert not stage.take()
    assert stage.shard_is_empty()


def test_t07_when_the_first_run_fails_both_payloads_are_there_in_the_order_of_their_scores(stage: Stage) -> None:
    stage.add("x", b"second version", "2")
    job = stage.take_one()
    stage.add("x", b"third version", "3")
    stage.add("x", b"first version", "1")
    stage.failed(job, 3_600_000)
    again = stage.take_one()
    assert [payload.data for payload in again.payloads] == [b"first version", b"second version", b"third version"]


@pytest.mark.parametrize("merged", [True, False])
def test_t08_fifty_producers_schedule_one_id_a_thousand_times(broker: Broker, merged: bool) -> None:
    queue = broker.queue("q")
    start = threading.Barrier(50)

    def produce(number: int) -> list[str]:
        start.wait()
        outcomes = []
        for turn in range(20):
            data = b"%d/%d" % (number, turn)
            if merged:
                new = NewJob("x", "sync", on_conflict="merge", due_policy="keep", payload=Payload(data, "1", new_key()))
            else:
                new = NewJob("x", "work", args=data)
            outcomes.append(queue.schedule(new))
        return outcomes

    with ThreadPoolExecutor(50) as pool:
        outcomes = [outcome for outcomes in pool.map(produce, range(50)) for outcome in outcomes]
    assert outcomes.count("created") == 1
    assert outcomes.count("merged" if merged else "replaced") == 999
    assert broker.inspector.counts("q").ready == 1
    if not merged:
        (job,) = queue.reserve(0, 10, worker="w").jobs
        assert job.args.endswith(b"/19"), "the last one wins"
        return
    found: set[bytes] = set()
    while jobs := queue.reserve(0, 10, worker="w").jobs:
        found |= {payload.data for payload in jobs[0].payloads}
        queue.settle([ack(jobs[0], 0, 0)])
    assert found == {b"%d/%d" % (number, turn) for number in range(50) for turn in range(20)}


def test_t21_cancel_in_every_state(stage: Stage) -> None:
    stage.in_morgue("buried")
    stage.put("running")
    job = stage.take_one()
    stage.put("ready")
    stage.put("delayed", at=1000)
    with unchanged(stage.broker):
        assert stage.queue.cancel("buried") == ""
    assert stage.queue.cancel("delayed") == "cancelled"
    assert stage.queue.cancel("ready") == "cancelled"
    assert stage.queue.cancel("running") == "stopping"
    assert stage.picture() == {"reserved": [f"running by w until +{LEASE} stopping"], "morgue": ["buried buried"]}
    stage.failed(job)
    assert stage.picture() == {"morgue": ["buried buried"]}


def test_t22_an_ack_counts_once_and_only_for_who_holds_the_job(stage: Stage) -> None:
    stage.put("x")
    first = stage.take_one(worker="slow")
    stage.wait(LEASE)
    stage.settle(release(*stage.take_lost(), unclear=True))
    second = stage.take_one(worker="next")
    with unchanged(stage.broker):
        assert stage.done(first) == [False]
    assert stage.done(second) == [True]
    assert stage.done(second) == [False]
    assert stage.shard_is_empty()


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


@pytest.mark.parametrize(
    ("at", "policy", "due"),
    [
        (500, "replace", 500),
        (1000, "replace", 1000),
        (2000, "replace", 2000),
        (500, "keep", 1000),
        (2000, "keep", 1000),
        (500, "earliest", 500),
        (2000, "earliest", 1000),
        (500, "latest", 1000),
        (2000, "latest", 2000),
    ],
)
def test_t24_an_id_scheduled_again_has_the_new_content_whatever_becomes_of_its_time(
    stage: Stage, at: int, policy: str, due: int
) -> None:
    stage.put("x", at=1000, args=b"old")
    assert stage.put("x", at=at, args=b"new", due_policy=policy) == "replaced"
    assert stage.picture() == {"waiting": [f"x +{due}"]}
    stage.wait(2000)
    assert stage.take_one().args == b"new"


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
def test_t30_a_job_is_started_exactly_as_often_as_it_may_be(stage: Stage, max_attempts: int) -> None:
    stage.put("x")
    policy = TaskOptions(max_attempts=max_attempts, retry_in=lambda n: 0)
    starts = 0
    while jobs := stage.take():
        starts += 1
        assert starts < 10
        stage.settle(End(jobs[0], policy, 1, 2).raised(ValueError("no")))
    assert starts == max_attempts
    view = stage.broker.inspector.get("q", "x")
    assert view is not None
    assert (view.state, view.outcome, view.job.failures) == ("morgue", "exhausted", max_attempts)


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


def test_t46_looking_at_a_queue_changes_nothing(stage: Stage) -> None:
    for ident in "abc":
        stage.put(ident)
    stage.take(1)
    stage.in_morgue("d", at=-1, priority=0)
    inspector = stage.broker.inspector
    with unchanged(stage.broker):
        for place in ("waiting", "reserved", "failed", "morgue"):
            inspector.page("q", place)
        inspector.peek("q")
        inspector.get("q", "a")
        inspector.all_counts()
        stage.queue.leases(0)
        fsck.check(stage.broker)


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


def test_t64_the_token_is_a_fence_against_a_worker_that_rose_from_the_dead(stage: Stage) -> None:
    """A store that keeps the highest token it saw refuses the writes of every earlier holder."""
    stage.put("x")
    highest, tokens = 0, []
    for turn in range(5):
        job = stage.take_one(worker=f"w{turn}")
        tokens.append(job)
        stage.wait(LEASE if turn % 2 else -20)
        if found := stage.queue.expired(0):
            stage.settle(release(*stage.queue.take_over(found, "reaper")))
        else:
            stage.released(job)
    for job in tokens:
        assert job.token > highest
        highest = job.token
    assert stage.done(*tokens) == [False] * 5
    with pytest.raises(IdTaken):
        stage.put("x", on_conflict="error")
