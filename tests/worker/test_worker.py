"""A whole worker in this process, against a real Redis."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest
import redis

from django_delayq import current_job
from django_delayq.core import Broker, NewJob, QueueUnavailable, Registry, Release, Retry, new_id
from tests.support.worker_stage import (
    DEADLINE,
    Hooks,
    calls_of,
    config,
    encode_args,
    eventually,
    places,
    put,
    registry_named,
    registry_of,
    run_dry,
    working,
)


def test_a_job_runs_and_nothing_of_it_stays(broker: Broker) -> None:
    seen: list[object] = []

    def work(*args: object) -> None:
        seen.append(("work", args))

    def other(*args: object) -> None:
        seen.append(("other", args))

    put(broker, "work", 1, "two")
    put(broker, "other", 3)
    run_dry(broker, registry_of(work, other), threads=1)
    assert seen == [("work", (1, "two")), ("other", (3,))] and places(broker) == {}


def test_jobs_of_several_queues_and_shards_all_run_once(broker: Broker) -> None:
    ran: Counter[int] = Counter()

    def work(n: int) -> None:
        ran[n] += 1

    broker.queue("many", shards=5)
    for n in range(300):
        put(broker, "work", n, queue="many" if n % 2 else "default")
    run_dry(broker, registry_of(work), queues=("default", "many"))
    assert ran == Counter(range(300)) and places(broker) == places(broker, "many") == {}


def test_thousands_of_tiny_jobs_travel_in_batches(broker: Broker, redis_client: redis.Redis) -> None:
    ran = [0]

    def work() -> None:
        ran[0] += 1

    broker.queue("default").schedule_many(NewJob(new_id(), "work") for _ in range(5000))
    before = redis_client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    run_dry(broker, registry_of(work))
    calls = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
    assert ran[0] == 5000 and places(broker) == {}
    assert calls < 1000


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
def test_a_failing_job_gets_exactly_its_attempts_then_the_morgue(broker: Broker, max_attempts: int) -> None:
    attempts: list[int] = []

    def work() -> None:
        job = current_job()
        assert job is not None
        attempts.append(job.attempt)
        raise ValueError("no")

    put(broker, "work")
    registry = registry_of(work, max_attempts=max_attempts, retry_in=lambda n: 0.0)
    with working(broker, registry):
        eventually(lambda: places(broker) == {"morgue": 1})
    assert attempts == list(range(1, max_attempts + 1))


def test_a_job_is_retried_when_its_back_off_is_over_and_not_before(broker: Broker) -> None:
    moments: list[float] = []
    done = threading.Event()

    def work() -> None:
        moments.append(time.monotonic())
        if len(moments) == 1:
            raise Retry(delay=0.3)
        done.set()

    put(broker, "work")
    with working(broker, registry_of(work)):
        assert done.wait(DEADLINE)
    assert 0.28 <= moments[1] - moments[0] < 2


def test_a_released_job_keeps_its_attempts(broker: Broker) -> None:
    seen: list[tuple[int, int]] = []

    def work() -> None:
        job = current_job()
        assert job is not None
        seen.append((job.attempt, job.noe))
        if len(seen) < 3:
            raise Release(delay=0)

    put(broker, "work")
    run_dry(broker, registry_of(work, max_attempts=1))
    assert seen == [(1, 0), (1, 1), (1, 2)] and places(broker) == {}


def test_a_delayed_job_starts_at_its_time(broker: Broker) -> None:
    late: list[float] = []
    done = threading.Event()

    def work(due_ms: float) -> None:
        late.append(broker.now_ms() - due_ms)
        done.set()

    with working(broker, registry_of(work)):
        due = int(broker.now_ms()) + 400
        broker.queue("default").schedule(NewJob("soon", "work", encode_args((due,), {}), due_ms=due, delay_ms=None))
        assert done.wait(DEADLINE)
    assert 0 <= late[0] < 250


def test_a_job_scheduled_while_the_worker_rests_starts_at_once(broker: Broker) -> None:
    started = threading.Event()
    with working(broker, registry_named("work", started.set)):
        eventually(lambda: broker.workers())
        for _ in range(5):
            started.clear()
            begin = time.monotonic()
            put(broker, "work")
            assert started.wait(DEADLINE)
            assert time.monotonic() - begin < 1


def test_slow_jobs_are_not_held_beyond_the_free_slots(broker: Broker) -> None:
    gate = threading.Event()
    running = threading.Semaphore(0)

    def work() -> None:
        running.release()
        gate.wait(DEADLINE)

    for _ in range(10):
        put(broker, "work")
    with working(broker, registry_of(work), config(threads=3)):
        for _ in range(3):
            assert running.acquire(timeout=DEADLINE)
        assert eventually(lambda: places(broker) == {"ready": 7, "reserved": 3})
        gate.set()
        eventually(lambda: places(broker) == {})


def test_work_that_waits_for_a_slot_too_long_is_given_back(broker: Broker) -> None:
    gate = threading.Event()
    slow = threading.Event()

    def quick() -> None: ...

    def work() -> None:
        slow.set()
        gate.wait(DEADLINE)

    registry = registry_of(quick, work)
    for _ in range(500):
        put(broker, "quick")
    for _ in range(50):
        put(broker, "work")
    with working(broker, registry, config(threads=2)):
        assert slow.wait(DEADLINE)
        # Measured by the quick ones, the worker took more of the slow ones than it has slots; it notices.
        eventually(lambda: places(broker) == {"ready": 48, "reserved": 2})
        gate.set()
        eventually(lambda: places(broker) == {})


def test_an_idle_slot_takes_over_when_a_batch_meets_a_slow_job(broker: Broker) -> None:
    gate = threading.Event()
    ran: Counter[str] = Counter()

    def quick() -> None:
        ran["quick"] += 1

    def work() -> None:
        gate.wait(DEADLINE)

    for n in range(400):
        put(broker, "work" if n == 200 else "quick", delay_ms=0)
    with working(broker, registry_of(quick, work), config(threads=2)):
        eventually(lambda: ran["quick"] == 399, "the quick ones pass the slow one")
        gate.set()
        eventually(lambda: places(broker) == {})


def test_async_jobs_run_beside_each_other(broker: Broker) -> None:
    together: list[int] = []
    running = [0]

    async def work() -> None:
        running[0] += 1
        together.append(running[0])
        for _ in range(500):
            if max(together) >= 3:
                break
            await asyncio.sleep(0.01)
        running[0] -= 1

    for _ in range(3):
        put(broker, "work")
    run_dry(broker, registry_of(work), threads=3)
    assert max(together) == 3 and places(broker) == {}


def test_the_heartbeat_keeps_a_long_run_its_own(connection: Any, prefix: str) -> None:
    broker = Broker(connection, prefix=prefix, lease_ms=1000)
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        threading.Event().wait(2.5)

    put(broker, "work")
    run_dry(broker, registry_of(work), heartbeat=0.2)
    assert runs == [1] and places(broker) == {}


@pytest.mark.parametrize("ahead", [-300.0, 300.0])
def test_t43_a_worker_whose_clock_is_wrong_starts_jobs_on_time_and_keeps_its_leases(
    connection: Any, prefix: str, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    broker = Broker(connection, prefix=prefix, lease_ms=1000)
    late: list[float] = []

    def work(due_ms: float) -> None:
        late.append(broker.now_ms() - due_ms)
        threading.Event().wait(1.5)  # longer than a lease

    with working(broker, registry_of(work), config(heartbeat=0.2)):
        due = int(broker.now_ms()) + 400
        broker.queue("default").schedule(NewJob("soon", "work", encode_args((due,), {}), due_ms=due, delay_ms=None))
        eventually(lambda: late and places(broker) == {})
    assert len(late) == 1 and 0 <= late[0] < 250


def test_the_dispatcher_takes_the_jobs_of_a_vanished_worker(connection: Any, prefix: str) -> None:
    broker = Broker(connection, prefix=prefix, lease_ms=1000)
    done = threading.Event()
    put(broker, "work", id="quiet")
    put(broker, "work", id="begun")
    jobs = broker.queue("default").reserve(0, 2, worker="vanished").jobs
    begun = next(job for job in jobs if job.id == "begun")
    broker.queue("default").touch(jobs, {("begun", begun.token)})
    seen: dict[str, int] = {}

    def work() -> None:
        job = current_job()
        assert job is not None
        seen[job.id] = job.attempt
        if len(seen) == 2:
            done.set()

    with working(broker, registry_of(work), config(heartbeat=0.2)):
        assert done.wait(DEADLINE)
        eventually(lambda: places(broker) == {})
    assert seen == {"quiet": 1, "begun": 2}


def test_an_unknown_task_waits_for_a_worker_that_knows_it(broker: Broker) -> None:
    put(broker, "shop.not_yet")
    run_dry(broker, Registry())
    assert places(broker) == {"delayed": 1}


def test_a_body_that_nobody_can_read_does_not_stop_the_others(broker: Broker) -> None:
    ran: list[int] = []
    broker.queue("default").schedule(NewJob("bad", "work", b"\xff\xfe"))
    put(broker, "work", 1)
    run_dry(broker, registry_named("work", ran.append))
    assert ran == [1] and places(broker) == {"morgue": 1}


def test_hooks_that_raise_kill_neither_slot_nor_process(broker: Broker) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("hook")

    ran: list[int] = []
    put(broker, "work", 1)
    hooks = Hooks(thread_end=broken, process_stop=broken)
    run_dry(broker, registry_named("work", ran.append), hooks)
    assert ran == [1] and places(broker) == {}


def test_the_hook_at_the_end_of_a_thread_runs_in_every_slot(broker: Broker) -> None:
    ended: list[str] = []
    hooks = Hooks(thread_end=lambda: ended.append(threading.current_thread().name))
    run_dry(broker, Registry(), hooks, threads=3)
    assert sorted(ended) == ["delayq-slot-0", "delayq-slot-1", "delayq-slot-2"]


def test_the_registry_of_workers_tells_who_works(broker: Broker) -> None:
    with working(broker, Registry(), config(name="w1")):
        info = eventually(broker.workers)[0]
        assert (info["name"], info["queues"], info["threads"], info["running"]) == ("w1", ["default"], 3, 0)
    assert broker.workers() == []


def test_no_loop_dies_while_scripts_are_flushed_and_connections_killed(
    broker: Broker, redis_client: redis.Redis
) -> None:
    ran: Counter[int] = Counter()

    def work(n: int) -> None:
        ran[n] += 1

    with working(broker, registry_of(work), config(heartbeat=0.05)):
        for n in range(200):
            redis_client.script_flush()
            if n % 10 == 0:
                redis_client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            eventually(lambda n=n: _put_somehow(broker, n))
        eventually(lambda: len(ran) == 200 and places(broker) == {})


def _put_somehow(broker: Broker, n: int) -> bool:
    try:
        put(broker, "work", n, id=f"job-{n}")
    except QueueUnavailable:
        return False
    return True


def test_a_standing_worker_costs_less_than_one_call_a_second(broker: Broker, redis_client: redis.Redis) -> None:
    broker.queue("default", shards=5)
    with working(broker, Registry()):
        eventually(broker.workers)
        threading.Event().wait(1.5)  # the first round of looks
        before, begin = calls_of(redis_client), time.monotonic()
        threading.Event().wait(6.0)
        rate = (calls_of(redis_client) - before) / (time.monotonic() - begin)
    assert rate < 1.0


def test_workers_leave_pull_queues_alone(broker: Broker) -> None:
    broker.queue("raw", kind="pull")
    put(broker, "work", queue="raw")
    run_dry(broker, Registry(), queues=("default", "raw"))
    assert places(broker, "raw") == {"ready": 1}
