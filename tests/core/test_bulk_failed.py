"""Bulk operations on failed jobs: chunked, atomic for each job, limited to failures from before the call."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from django_delayq.core import Broker, NewJob, Payload, Queue, Settlement, ack, fail
from tests.support.core_calls import watch_calls
from tests.support.core_stored import assert_invariants
from tests.support.core_values import new_key

from .bulk_stage import (
    ProgressLog,
    cancel_all,
    delete_failed,
    fail_all,
    kick_all,
    kill_failed,
    merged_jobs,
    run_all_now,
)
from .events_stage import read_events
from .stage import LEASE, T0, Stage
from .world import read_world, unchanged


def failed_scene(stage: Stage) -> None:
    """Create failed jobs, waiting and reserved, beside jobs that never failed."""
    for ident in ("failed", "retried"):
        stage.put(ident, args=ident.encode())
    stage.add("m", b"p")
    stage.add("m", b"q")
    for job in stage.take():
        stage.failed(job, 0 if job.id == "retried" else 60_000, error=b'{"message": "no"}')
    (again,) = stage.take()
    assert again.id == "retried"
    stage.put("fresh", at=70_000)
    stage.wait(10)


def test_failed_jobs_are_killed_and_the_others_left_alone(stage: Stage) -> None:
    failed_scene(stage)
    told = ProgressLog()
    assert kill_failed(stage.queue, progress=told) == {"killed": 2}
    assert told.steps == [(3, 3)]
    assert stage.picture() == {
        "waiting": ["fresh +70000"],
        "reserved": [f"retried by w until +{LEASE}"],
        "failed": ["retried x1"],
        "morgue": ["failed buried", "m buried"],
    }
    view = stage.broker.inspector.get("q", "failed")
    assert view is not None
    assert (view.reason, view.outcome) == ("buried by an operator", "buried")
    assert (view.error, view.job.failures, view.due_ms) == ({"message": "no"}, 1, T0 + 60_000)
    assert stage.counters()["killed"] == 2
    (told_event,) = [event for event in read_events(stage.broker, "q", 0) if event.outcome == "bulk"]
    assert told_event.fields == {"jobs": "2", "created": "0", "verb": "killed"}
    assert kick_all(stage.queue) == {"kicked": 2}
    assert {job.id: [payload.data for payload in job.payloads] for job in stage.take()} == {
        "failed": [],
        "m": [b"p", b"q"],
    }


def test_failed_jobs_are_deleted_and_the_others_left_alone(stage: Stage) -> None:
    failed_scene(stage)
    assert delete_failed(stage.queue) == {"deleted": 2}
    assert stage.picture() == {
        "waiting": ["fresh +70000"],
        "reserved": [f"retried by w until +{LEASE}"],
        "failed": ["retried x1"],
    }
    assert stage.counters()["deleted"] == 2


@pytest.mark.parametrize(("verb", "outcome"), [(kill_failed, "killed"), (delete_failed, "deleted")])
def test_what_fails_after_the_call_is_left_alone(stage: Stage, verb: Callable[..., object], outcome: str) -> None:
    stage.queue.schedule_many(NewJob(f"j{number}", "work") for number in range(600))
    fail_all(stage)
    late = iter(range(10**6))

    def fail_another() -> None:
        stage.wait(1)
        stage.put(f"late {next(late)}", priority=0, at=0)
        stage.failed(stage.take_one(), 60_000)

    told = ProgressLog(fail_another)
    assert verb(stage.queue, progress=told) == {outcome: 600}
    assert stage.broker.inspector.counts("q").failed == next(late) == len(told.steps)


def test_a_killed_job_with_many_payloads_lies_in_several_graves_and_nothing_is_lost(stage: Stage) -> None:
    stage.queue.schedule_many(merged_jobs(3, 600))
    fail_all(stage)
    assert kill_failed(stage.queue) == {"killed": 3}
    assert stage.picture()["morgue"] == [f"m{number} buried" for number in (0, 0, 0, 1, 1, 1, 2, 2, 2)]
    graves = stage.broker.inspector.graves("q", "m1")
    assert sorted(view.payload_count for view in graves) == [100, 250, 250]
    assert len({view.job.key for view in graves}) == 3
    assert kick_all(stage.queue) == {"kicked": 9}
    lives = read_world(stage.queue, 0)["lives"]
    assert {ident: [payload.data for payload in live["waiting"]] for ident, live in lives.items()} == {
        f"m{ident}": [b"%d of m%d" % (number, ident) for number in range(600)] for ident in range(3)
    }


def test_a_grave_gets_no_more_bytes_than_a_run_would(stage: Stage) -> None:
    for number in range(60):
        stage.add("a", b"%02d" % number + b"x" * 400_000, str(number))
    fail_all(stage)
    assert kill_failed(stage.queue) == {"killed": 1}
    graves = stage.broker.inspector.graves("q", "a")
    assert sorted(view.payload_count for view in graves) == [10, 25, 25]
    assert len({view.job.key for view in graves}) == 3
    found = sorted(payload.data[:2] for view in graves for payload in view.payloads)
    assert found == [b"%02d" % number for number in range(60)]


@pytest.mark.parametrize(
    ("verb", "outcome"),
    [
        (kill_failed, "killed"),
        (delete_failed, "deleted"),
        (cancel_all, "cancelled"),
    ],
)
def test_a_call_with_many_payloads_rests_in_between(stage: Stage, verb: Callable[..., object], outcome: str) -> None:
    stage.queue.schedule_many(merged_jobs(10, 300))
    fail_all(stage)
    with watch_calls(stage.broker) as made:
        assert verb(stage.queue) == {outcome: 10}
    calls = Counter(call.name for call in made)
    assert calls["change"] == 3
    if outcome == "killed":
        with watch_calls(stage.broker) as made:
            assert kick_all(stage.queue) == {"kicked": 20}
        assert Counter(call.name for call in made)["kick"] > 1
        assert stage.picture()["waiting"] == [f"m{number} +0" for number in range(10)]
    else:
        assert stage.shard_is_empty()


class Load:
    """Producers and workers on the real clock; half of the attempts fail."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.pushed: set[bytes] = set()
        self.done: set[bytes] = set()
        self.lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self.guarded, args=(act,))
            for act in (self.produce, self.produce, self.work, self.work)
        ]

    def guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            self.errors.append(error)

    def produce(self) -> None:
        name, number = threading.get_ident(), 0
        while not self.stop.is_set():
            news = []
            for _ in range(20):
                number += 1
                data = b"%d %d" % (name, number)
                news.append(
                    NewJob(
                        f"m{number % 50}",
                        "sync",
                        payload=Payload(data, str(number), new_key()),
                        on_conflict="merge",
                        due_policy="keep",
                    )
                )
                with self.lock:
                    self.pushed.add(data)
            assert "taken" not in self.queue.schedule_many(news)

    def work(self) -> None:
        turn = 0
        while not self.stop.is_set():
            turn += 1
            self.round(turn)

    def round(self, turn: int) -> int:
        settlements: list[Settlement] = []
        jobs = [job for number in self.queue.numbers for job in self.queue.reserve(number, 10, worker="w").jobs]
        for place, job in enumerate(jobs):
            good = (turn + place) % 2 == 0
            settlements.append(ack(job, 1, 2) if good else fail(job, 1, 2, delay_ms=turn % 3 * 20))
        for job, settlement, counted in zip(jobs, settlements, self.queue.settle(settlements), strict=True):
            assert counted
            if settlement.verb == "ack":
                with self.lock:
                    self.done.update(payload.data for payload in job.payloads)
        return len(jobs)

    def run(self, seconds: float, operate: Callable[[], object]) -> None:
        for thread in self.threads:
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.errors:
            operate()
        self.stop.set()
        for thread in self.threads:
            thread.join()
        assert self.errors == []


def test_t19_failed_jobs_are_killed_under_full_load_and_no_payload_is_lost(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    load = Load(queue)
    killed: Counter[str] = Counter()
    load.run(2.0, lambda: killed.update(kill_failed(queue)))
    assert killed["killed"] > 0
    assert load.done
    assert_invariants(broker)
    run_all_now(queue)
    kick_all(queue)
    while any(queue.reserve(number, 0, worker="w").next_due_ms is not None for number in queue.numbers):
        run_all_now(queue)
        load.round(0)
    assert load.done == load.pushed
    assert broker.inspector.counts("q").morgue == 0


def test_t19_failed_jobs_are_deleted_under_full_load_and_what_comes_later_is_not(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    load = Load(queue)
    deleted: Counter[str] = Counter()
    load.run(2.0, lambda: deleted.update(delete_failed(queue)))
    assert deleted["deleted"] > 0
    assert_invariants(broker)
    # Every payload was handled, was deleted with its failed job, or is still there: none is there twice or half.
    left = {
        payload.data
        for number in queue.numbers
        for live in read_world(queue, number)["lives"].values()
        for payload in live["waiting"]
    }
    assert left <= load.pushed
    assert load.done <= load.pushed
    assert len(load.pushed - left - load.done) > 0


def test_t19_what_is_pushed_behind_a_run_survives_the_deletion_of_failed_jobs(stage: Stage) -> None:
    stage.add("m", b"p")
    stage.failed(stage.take_one(), 0)
    job = stage.take_one()
    stage.add("m", b"q")
    with unchanged(stage.broker):
        assert delete_failed(stage.queue) == {}
        assert kill_failed(stage.queue) == {}
    stage.done(job)
    assert [payload.data for payload in stage.take_one().payloads] == [b"q"]
