"""Runs and workers that are to end: time limits, stops, cancellations, replacement."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, Registry, Release, Task
from tests.support.attempt_stage import make_attempt
from tests.support.supervisor_stage import let_overrun, worker_with
from tests.support.worker_stage import (
    DEADLINE,
    EXIT_RECYCLE,
    EXIT_STUCK,
    config,
    eventually,
    exit_code,
    is_listening,
    places,
    put,
    registry_named,
    registry_of,
    run_dry,
    seconds_to_end,
    settled_by,
    working,
)


def busy(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_run_that_takes_too_long_is_a_timeout_and_the_next_job_is_not_disturbed(broker: Broker, kind: str) -> None:
    after: list[int] = []

    def work() -> None:
        busy(DEADLINE)

    async def work_async() -> None:
        await asyncio.sleep(DEADLINE)

    def following() -> None:
        after.append(1)

    name = "work" if kind == "thread" else "work_async"
    put(broker, name, id="slow")
    registry = registry_of(work, work_async, timeout=0.2, max_attempts=2, retry_in=lambda n: 60.0)
    registry.add(Task(following, name="following"))
    with working(broker, registry, config(threads=1)):
        eventually(lambda: places(broker) == {"delayed": 1, "failed": 1})
        put(broker, "following")
        eventually(lambda: after)
    view = broker.queue("default")
    page = broker.inspector.page(view.name, "failed")
    assert b"JobTimeout" in page.jobs[0].job.error or b"CancelledError" in page.jobs[0].job.error


def test_a_time_limit_never_strikes_after_the_run(broker: Broker) -> None:
    ran: Counter[str] = Counter()

    def work() -> None:
        ran["work"] += 1
        busy(0.0098)

    for _ in range(150):
        put(broker, "work")
    registry = registry_of(work, timeout=0.01, max_attempts=1)
    worker = run_dry(broker, registry, threads=1)
    counts = places(broker)
    assert ran["work"] == 150 and set(counts) <= {"morgue"}
    assert settled_by(worker) == 150


class Stubborn:
    """Handler that ignores its time limit until ``gate`` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def stubborn(self) -> None:
        while not self.gate.is_set():
            try:
                self.gate.wait(DEADLINE)
            except BaseException:
                continue


def test_a_run_that_ignores_its_limit_ends_the_process_but_not_its_other_jobs(broker: Broker) -> None:
    stuck = Stubborn()
    others: list[int] = []

    def work() -> None:
        others.append(1)

    registry = registry_of(stuck.stubborn, timeout=0.1)
    registry.add(Task(work, name="work"))
    put(broker, "stubborn", id="stubborn")
    with working(broker, registry, config(threads=2, grace=3.0), reaction_seconds=0.2) as worker:
        put(broker, "work")
        assert worker.done.wait(DEADLINE)
        assert not worker.stop() and exit_code(worker) == EXIT_STUCK
        stuck.gate.set()
    assert others == [1]
    assert [job.id for job in broker.queue("default").leases(0)] == ["stubborn"]


def test_the_other_jobs_of_a_process_that_must_end_are_told_to_stop(broker: Broker) -> None:
    stuck, told = Stubborn(), threading.Event()

    def work() -> None:
        job = current_job()
        until = time.monotonic() + DEADLINE
        while job is not None and not job.should_stop and time.monotonic() < until:
            threading.Event().wait(0.01)
        told.set()
        raise Release

    registry = registry_of(stuck.stubborn, timeout=0.1)
    registry.add(Task(work, name="work"))
    put(broker, "stubborn", id="stubborn")
    put(broker, "work")
    with working(broker, registry, config(threads=2, grace=6.0), reaction_seconds=0.2) as worker:
        assert worker.done.wait(DEADLINE)
        assert told.is_set() and seconds_to_end(worker) > 0
        assert not worker.stop()
        stuck.gate.set()
    assert [job.id for job in broker.queue("default").leases(0)] == ["stubborn"]


class RecordingConsumer:
    """Fetch loop that records how it is stopped."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.held: set[Any] = set()

    def overran(self, attempt: Any) -> None:
        self.calls.append("overran")

    def advance(self, stage: Any) -> None:
        self.calls.append(stage.name)


def test_a_stop_after_a_run_that_ignores_its_limit_gives_back_what_has_not_begun() -> None:
    consumer = RecordingConsumer()
    worker = worker_with(consumer)
    let_overrun(worker, make_attempt())
    stop_by = worker.stop_by
    assert stop_by and consumer.calls == ["overran"]
    worker.begin_stop(100.0)
    assert consumer.calls == ["overran", "GIVE_BACK"]
    assert worker.stop_by == stop_by


def test_stopping_gives_back_what_has_not_begun_and_waits_for_what_has(broker: Broker) -> None:
    gate, begun = threading.Event(), threading.Event()
    ended: list[int] = []

    def work() -> None:
        begun.set()
        gate.wait(DEADLINE)
        ended.append(1)

    for _ in range(4):
        put(broker, "work")
    with working(broker, registry_of(work), config(threads=1)) as worker:
        assert begun.wait(DEADLINE)
        stopper = threading.Thread(target=worker.stop, args=(DEADLINE,))
        stopper.start()
        eventually(lambda: places(broker) == {"ready": 3, "reserved": 1}, "what has not begun is given back")
        gate.set()
        stopper.join(DEADLINE)
    assert ended == [1] and places(broker) == {"ready": 3}
    assert broker.workers() == []


def run_until_told_to_stop(begun: threading.Event) -> None:
    """Do what a long handler does."""
    job = current_job()
    assert job is not None
    begun.set()
    until = time.monotonic() + DEADLINE
    while not job.should_stop and time.monotonic() < until:
        threading.Event().wait(0.01)


def test_long_handlers_are_told_to_stop_before_the_end(broker: Broker) -> None:
    told, begun = threading.Event(), threading.Event()

    def work() -> None:
        run_until_told_to_stop(begun)
        told.set()
        raise Release

    put(broker, "work")
    with working(broker, registry_of(work)) as worker:
        assert begun.wait(DEADLINE)
        assert worker.stop(4.0)
    assert told.is_set() and places(broker) == {"ready": 1}


def test_a_cancelled_run_hears_of_it_and_does_not_come_back(broker: Broker) -> None:
    begun, stopped = threading.Event(), threading.Event()

    def work() -> None:
        run_until_told_to_stop(begun)
        stopped.set()
        raise ValueError("stopped in the middle")

    put(broker, "work", id="x")
    with working(broker, registry_of(work), config(heartbeat=0.05)):
        assert begun.wait(DEADLINE)
        assert broker.queue("default").cancel("x") == "stopping"
        assert stopped.wait(DEADLINE)
        eventually(lambda: places(broker) == {})


def test_a_run_beyond_its_max_lease_is_told_to_stop_and_left_to_the_reaper(connection: Any, prefix: str) -> None:
    broker = Broker(connection, prefix=prefix, lease_ms=1000)
    attempts: list[int] = []

    def work() -> None:
        job = current_job()
        assert job is not None
        attempts.append(job.attempt)
        if job.attempt == 1:
            eventually(lambda: job.should_stop)
            # The next attempt may be over before a look finds the job among the failed ones.
            eventually(
                lambda: broker.inspector.counts("default").failed or len(attempts) > 1, "the reaper took the job"
            )

    put(broker, "work")
    with working(broker, registry_of(work, max_lease=0.3), config(heartbeat=0.1)):
        eventually(lambda: len(attempts) == 2)
        eventually(lambda: places(broker) == {})
    assert attempts == [1, 2]


def test_an_idle_worker_stops_at_once(broker: Broker) -> None:
    with working(broker, Registry()) as worker:
        eventually(lambda: is_listening(worker))
        begin = time.monotonic()
        assert worker.stop()
        assert time.monotonic() - begin < 1.5


class Stuck:
    """A duty that does not come back from its turn until it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    def run(self) -> float:
        self.begun.set()
        self.released.wait(DEADLINE)
        return 60.0


def test_duties_that_hang_delay_the_end_together_and_not_one_after_another(broker: Broker) -> None:
    duties = {f"stuck-{number}": Stuck() for number in range(5)}
    with working(broker, Registry(), duties=duties) as worker:
        assert all(duty.begun.wait(DEADLINE) for duty in duties.values())
        begin = time.monotonic()
        assert worker.stop()
        seconds = time.monotonic() - begin
        for duty in duties.values():
            duty.released.set()
        assert seconds < 6


def test_a_worker_that_has_done_its_jobs_ends_to_be_replaced(broker: Broker) -> None:
    ran: list[int] = []
    for n in range(5):
        put(broker, "work", n)
    with working(broker, registry_named("work", ran.append), config(max_jobs=3)) as worker:
        assert worker.done.wait(DEADLINE)
        worker.stop()
        assert exit_code(worker) == EXIT_RECYCLE
    assert len(ran) == 3 and places(broker) == {"ready": 2}


def test_a_worker_that_has_grown_ends_to_be_replaced(broker: Broker) -> None:
    with working(broker, Registry(), config(max_rss=1.0)) as worker:
        assert worker.done.wait(DEADLINE) and exit_code(worker) == EXIT_RECYCLE
