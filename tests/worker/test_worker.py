"""A whole worker in this process, against a real Redis."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from datetime import datetime
from typing import Any

import pytest
import redis

from django_delayq import current_job
from django_delayq.core import Broker, JobView, NewJob, Registry, Retry, new_id
from tests.support.worker_stage import (
    DEADLINE,
    Gate,
    Hooks,
    config,
    encode_args,
    eventually,
    is_resting,
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
    gate = Gate()
    for _ in range(10):
        put(broker, "work")
    with working(broker, registry_of(gate.work), config(threads=3)):
        gate.wait_begun(3)
        assert eventually(lambda: places(broker) == {"ready": 7, "reserved": 3})
        gate.open()
        eventually(lambda: places(broker) == {})


def test_work_that_waits_for_a_slot_too_long_is_given_back(broker: Broker) -> None:
    gate = Gate()

    def quick() -> None: ...

    registry = registry_of(quick, gate.work)
    for _ in range(500):
        put(broker, "quick")
    for _ in range(50):
        put(broker, "work")
    with working(broker, registry, config(threads=2)):
        gate.wait_begun()
        # Measured by the quick ones, the worker took more of the slow ones than it has slots; it notices.
        eventually(lambda: places(broker) == {"ready": 48, "reserved": 2})
        gate.open()
        eventually(lambda: places(broker) == {})


def test_an_idle_slot_takes_over_when_a_batch_meets_a_slow_job(broker: Broker) -> None:
    gate, ran = Gate(), Counter[str]()

    def quick() -> None:
        ran["quick"] += 1

    for n in range(400):
        put(broker, "work" if n == 200 else "quick", delay_ms=0)
    with working(broker, registry_of(quick, gate.work), config(threads=2)):
        eventually(lambda: ran["quick"] == 399, "the quick ones pass the slow one")
        gate.open()
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


def test_a_body_that_nobody_can_read_does_not_stop_the_others(broker: Broker) -> None:
    ran: list[int] = []
    broker.queue("default").schedule(NewJob("bad", "work", b"\xff\xfe"))
    put(broker, "work", 1)
    run_dry(broker, registry_named("work", ran.append))
    assert ran == [1] and places(broker) == {"morgue": 1}


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


# --- unknown tasks


def job_of(broker: Broker, ident: str) -> JobView:
    """Return what is known of a job."""
    view = broker.inspector.get("default", ident)
    assert view is not None
    return view


def when_given_back(broker: Broker, ident: str) -> JobView:
    """Return the job as soon as it was given back."""

    def given_back() -> JobView | None:
        view = broker.inspector.get("default", ident)
        return view if view is not None and view.state == "delayed" else None

    found: JobView = eventually(given_back, "the job is given back")
    return found


def test_a_worker_leaves_a_task_that_it_does_not_know_to_the_one_that_does(broker: Broker) -> None:
    """Deploy skew: the new worker is busy for a moment, so that the old one takes the job."""
    gate, due = Gate(), dict[str, datetime]()

    def work() -> None:
        job = current_job()
        assert job is not None
        due[job.id] = job.due
        if job.id == "first":
            gate.work()

    put(broker, "work", id="first")
    with working(broker, registry_of(work), config(threads=1, prefetch_ms=0)):
        gate.wait_begun()
        eventually(broker.workers, "the new worker is announced")
        put(broker, "work", id="second")
        due_ms = job_of(broker, "second").due_ms
        with working(broker, Registry(), config(threads=1)):
            view = when_given_back(broker, "second")
            assert 500 < view.due_ms - due_ms < 2_500, "a second or two, not half a minute"
            assert view.job.postponed_for == "unknown task"
        gate.open()
        eventually(lambda: "second" in due, "the new worker runs the job")
    assert abs(due["second"].timestamp() * 1000 - due_ms) < 1
    eventually(lambda: broker.figures().lateness.get("default"))
    assert broker.figures().lateness["default"].sum_ms > 500, "the wait is a part of the lateness"


# --- a pause


def test_consumers_wake_up_when_a_pause_for_a_time_ends(broker: Broker) -> None:
    started: list[float] = []

    def work() -> None:
        started.append(broker.now_ms())

    broker.queue("default", shards=2)
    with working(broker, registry_of(work), config(dispatcher=False)) as worker:
        broker.pause("default", "out", seconds=1.5)
        end = broker.queue("default").layout["paused"]["out"]
        for _ in range(10):
            put(broker, "work")
        eventually(lambda: is_resting(worker))
        assert started == []
        eventually(lambda: len(started) == 10)
    assert 0 <= started[0] - end < 500
