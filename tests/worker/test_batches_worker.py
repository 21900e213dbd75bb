"""Batches of merged jobs in a worker, from the queue to the ends of their attempts."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from django_delayq import PartialFailure, current_job
from django_delayq.core import Broker, Registry, Task, TaskOptions, release
from tests.support.waiting_stage import FetchRoom
from tests.support.worker_stage import (
    DEADLINE,
    config,
    eventually,
    places,
    put,
    put_payload,
    registry_of,
    run_dry,
    settled_by,
    stops_fetching,
    working,
)


def test_a_free_slot_has_room_however_large_the_batches_are_that_run() -> None:
    """Else the fetch loop, which has a free slot and a due shard, would turn round and round."""

    def work(batch: dict[str, list[Any]]) -> None: ...

    shard = FetchRoom(registry_of(work, merge=True, batch_size=2), threads=5, batch_size=2)
    shard.run_batches(4, 250)
    assert shard.room == 1
    shard.run_batches(5, 200)
    assert shard.room <= 0


def test_reserves_are_as_large_as_the_batches(broker: Broker) -> None:
    sizes: list[int] = []

    def work(batch: dict[str, list[Any]]) -> None:
        sizes.append(len(batch))

    for n in range(25):
        put_payload(broker, "work", str(n), n)
    run_dry(broker, registry_of(work, merge=True, batch_size=10), threads=1)
    assert sizes == [10, 10, 5] and places(broker) == {}


def test_a_batch_runs_all_payloads_of_all_ids_in_score_order_once(broker: Broker) -> None:
    ran: dict[str, list[int]] = {}
    lock = threading.Lock()

    def work(batch: dict[str, list[int]]) -> None:
        with lock:
            for ident, payloads in batch.items():
                ran.setdefault(ident, []).extend(payloads)

    broker.queue("default", shards=3)
    for score in (3, 1, 2):
        for n in range(50):
            put_payload(broker, "work", str(n), score, score=score)
    worker = run_dry(broker, registry_of(work, merge=True, batch_size=20))
    assert ran == {str(n): [1, 2, 3] for n in range(50)} and places(broker) == {}
    assert settled_by(worker) == 50


def test_t20_in_a_batch_of_a_hundred_only_the_failed_id_comes_back(broker: Broker) -> None:
    calls: list[list[str]] = []

    def work(batch: dict[str, list[Any]]) -> None:
        calls.append(sorted(batch, key=int))
        if len(batch) > 1:
            raise PartialFailure({"57": ValueError("no")})

    for n in range(100):
        put_payload(broker, "work", str(n), n)
    with working(broker, registry_of(work, merge=True, batch_size=100, retry_in=lambda n: 0.0), config(threads=1)):
        eventually(lambda: places(broker) == {})
    assert calls == [[str(n) for n in range(100)], ["57"]]


def test_one_lost_id_does_not_cost_the_others_their_end(broker: Broker) -> None:
    calls: list[list[str]] = []
    answers: list[Any] = []

    def work(batch: dict[str, list[Any]]) -> None:
        job = current_job()
        assert job is not None
        calls.append(sorted(batch))
        if len(calls) == 1:
            queue = broker.queue("default")
            lost = next(held for held in queue.leases(0) if held.id == "b")
            queue.settle([release(lost)])  # as the supervisor of another machine would
            answers.extend([job.touch(), [one.lost for one in job.jobs], job.should_stop, job.lost])

    for ident in "abc":
        put_payload(broker, "work", ident, ident)
    with working(broker, registry_of(work, merge=True, batch_size=3), config(threads=1)):
        eventually(lambda: places(broker) == {})
    assert answers == [True, [False, True, False], False, False]
    assert calls == [["a", "b", "c"], ["b"]]


def test_the_heartbeat_keeps_all_jobs_of_a_long_batch(connection: Any, prefix: str) -> None:
    broker = Broker(connection, prefix=prefix, lease_ms=1000)
    calls: list[list[str]] = []
    started: list[set[bool]] = []

    def work(batch: dict[str, list[Any]]) -> None:
        calls.append(sorted(batch))
        eventually(lambda: {bool(job.flags & 1) for job in broker.queue("default").leases(0)} == {True}, "all started")
        threading.Event().wait(2.0)
        started.append({bool(job.flags & 1) for job in broker.queue("default").leases(0)})

    for ident in "abc":
        put_payload(broker, "work", ident, ident)
    run_dry(broker, registry_of(work, merge=True, batch_size=3), heartbeat=0.2)
    assert calls == [["a", "b", "c"]] and started == [{True}] and places(broker) == {}


def test_batches_that_wait_for_a_slot_are_given_back_at_the_stop(broker: Broker) -> None:
    gate, begun = threading.Event(), threading.Event()
    ran: Counter[str] = Counter()

    def work(batch: dict[str, list[Any]]) -> None:
        ran.update(list(batch))
        begun.set()
        if "slow" in batch:
            gate.wait(DEADLINE)

    with working(broker, registry_of(work, merge=True, batch_size=5), config(threads=1)) as worker:
        for n in range(20):  # so quick that the worker holds more than it has slots for
            put_payload(broker, "work", f"quick-{n}", n)
        eventually(lambda: sum(ran.values()) == 20)
        put_payload(broker, "work", "slow", 1)
        eventually(lambda: ran["slow"])
        for n in range(12):
            put_payload(broker, "work", f"waits-{n}", n)
        stopper = threading.Thread(target=worker.stop, args=(DEADLINE,))
        stopper.start()
        eventually(lambda: stops_fetching(worker))
        gate.set()
        stopper.join(DEADLINE)
    assert places(broker) == {"ready": 12}
    assert {job.failures for job in broker.queue("default").reserve(0, 50, worker="look").jobs} == {0}


def test_slow_batches_are_not_held_beyond_the_free_slots(broker: Broker) -> None:
    gate = threading.Event()
    running = threading.Semaphore(0)

    def work(batch: dict[str, list[Any]]) -> None:
        running.release()
        gate.wait(DEADLINE)

    for n in range(50):
        put_payload(broker, "work", str(n), n)
    with working(broker, registry_of(work, merge=True, batch_size=5), config(threads=3)):
        for _ in range(3):
            assert running.acquire(timeout=DEADLINE)
        assert eventually(lambda: places(broker) == {"ready": 35, "reserved": 15})
        gate.set()
        eventually(lambda: places(broker) == {})


def test_a_worker_takes_no_more_jobs_than_its_maximum_also_in_batches(broker: Broker) -> None:
    ran: Counter[str] = Counter()
    for n in range(10):
        put_payload(broker, "work", str(n), n)

    def work(batch: dict[str, list[Any]]) -> None:
        ran.update(list(batch))

    with working(broker, registry_of(work, merge=True, batch_size=4), config(max_jobs=6)) as worker:
        assert worker.done.wait(DEADLINE)
        worker.stop()
    assert sum(ran.values()) == 6 and places(broker) == {"ready": 4}


def test_plain_and_merged_tasks_may_share_a_queue(broker: Broker) -> None:
    ran: Counter[str] = Counter()
    registry = Registry()
    registry.add(
        Task(lambda batch: ran.update(list(batch)), name="merged", options=TaskOptions(merge=True, batch_size=7))
    )
    registry.add(Task(lambda name: ran.update([name]), name="plain"))
    for n in range(60):
        if n % 3:
            put_payload(broker, "merged", f"m{n}", n)
        else:
            put(broker, "plain", f"p{n}")
    run_dry(broker, registry)
    assert ran == Counter({f"{'m' if n % 3 else 'p'}{n}": 1 for n in range(60)}) and places(broker) == {}


# --- the end of attempts


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
def test_t30_each_payload_of_a_merged_job_gets_exactly_its_attempts(broker: Broker, max_attempts: int) -> None:
    seen: list[tuple[list[str], int]] = []

    def work(batch: dict[str, list[str]]) -> None:
        job = current_job()
        assert job is not None
        seen.append((batch["x"], job.attempt))
        raise ValueError("no")

    put_payload(broker, "work", "x", "old", score=1)
    put_payload(broker, "work", "x", "new", score=2)
    registry = registry_of(work, merge=True, max_attempts=max_attempts, retry_in=lambda n: 0.0)
    with working(broker, registry):
        eventually(lambda: places(broker) == {"morgue": 2})
    attempts = range(1, max_attempts + 1)
    assert seen == [*((["old", "new"], n) for n in attempts), *((["new"], n) for n in attempts)]


def test_only_the_oldest_payload_is_buried_when_the_attempts_are_used_up(broker: Broker) -> None:
    done: list[list[str]] = []

    def work(batch: dict[str, list[str]]) -> None:
        if "bad" in batch.get("x", ()):
            raise ValueError("no")
        done.extend(batch.values())

    for score, payload in enumerate(("bad", "good", "better")):
        put_payload(broker, "work", "x", payload, score=score)
    put_payload(broker, "work", "y", "fine")
    registry = registry_of(work, merge=True, batch_size=1, max_attempts=2, retry_in=lambda n: 0.0)
    with working(broker, registry):
        eventually(lambda: places(broker) == {"morgue": 1} and len(done) == 2, "the rest runs at once")
    assert sorted(done) == [["fine"], ["good", "better"]]
