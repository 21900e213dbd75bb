"""Runs and workers that are to end: time limits, stops, cancellations, replacement."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, RedisConfig, Registry, Task, connect
from tests.support.attempt_stage import make_attempt
from tests.support.supervisor_stage import let_overrun, worker_with
from tests.support.worker_stage import (
    DEADLINE,
    EXIT_FATAL,
    EXIT_NO_REDIS,
    EXIT_OK,
    EXIT_RECYCLE,
    EXIT_STUCK,
    Gate,
    Hooks,
    Worker,
    config,
    drain,
    eventually,
    exit_code,
    places,
    put,
    put_payload,
    registry_named,
    registry_of,
    run_dry,
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


class RecordingConsumer:
    """Fetch loop that records how it is stopped."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.held: set[Any] = set()

    def advance(self, stage: Any) -> None:
        self.calls.append(stage.name)


def test_a_stop_after_a_run_that_ignores_its_limit_gives_back_what_has_not_begun() -> None:
    consumer = RecordingConsumer()
    worker = worker_with(consumer)
    let_overrun(worker, make_attempt())
    stop_by = worker.stop_by
    assert stop_by and consumer.calls == ["DRAIN"]
    worker.begin_stop(100.0)
    assert consumer.calls == ["DRAIN", "GIVE_BACK"]
    assert worker.stop_by == stop_by


def test_stopping_gives_back_what_has_not_begun_and_waits_for_what_has(broker: Broker) -> None:
    gate = Gate()
    for _ in range(4):
        put(broker, "work")
    with working(broker, registry_of(gate.work), config(threads=1)) as worker:
        gate.wait_begun()
        stopper = threading.Thread(target=worker.stop, args=(DEADLINE,))
        stopper.start()
        eventually(lambda: places(broker) == {"ready": 3, "reserved": 1}, "what has not begun is given back")
        gate.open()
        stopper.join(DEADLINE)
    assert broker.inspector.counts("default").counters["acked"] == 1 and places(broker) == {"ready": 3}
    assert broker.workers() == []


def run_until_told_to_stop(begun: threading.Event) -> None:
    """Do what a long handler does."""
    job = current_job()
    assert job is not None
    begun.set()
    until = time.monotonic() + DEADLINE
    while not job.should_stop and time.monotonic() < until:
        threading.Event().wait(0.01)


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


def test_a_worker_that_has_grown_ends_to_be_replaced(broker: Broker) -> None:
    with working(broker, Registry(), config(max_rss=1.0)) as worker:
        assert worker.done.wait(DEADLINE) and exit_code(worker) == EXIT_RECYCLE


# --- last words


threads_die = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Mortal:
    """A duty whose thread dies at its second turn."""

    turns = 0

    def run(self) -> float:
        self.turns += 1
        if self.turns == 2:
            raise SystemExit("the duty is dead")
        return 0.01


def worker_of(broker: Broker, *functions: Callable[..., Any], hooks: Hooks, **options: Any) -> Worker:
    settings = config(threads=1, grace=0.3, heartbeat=0.2)
    return Worker(broker, registry_of(*functions), settings, hooks, **options)


@threads_die
def test_a_dead_loop_ends_the_process_and_its_error_is_in_the_last_words(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []
    stopped: list[str] = []
    hooks = Hooks(last_words=heard.append, process_stop=lambda: stopped.append("stop"))
    before = threading.excepthook
    with caplog.at_level(logging.CRITICAL):
        assert worker_of(broker, hooks=hooks, duties={"mortal": Mortal()}).run() == EXIT_FATAL
    assert [(type(error), str(error)) for error in heard] == [(SystemExit, "the duty is dead")]
    assert stopped == ["stop"]
    assert "thread delayq-mortal died, so this process ends" in caplog.text
    assert threading.excepthook is before


@threads_die
def test_a_dead_fetch_loop_ends_the_process_at_once(broker: Broker) -> None:
    def die(due: Any) -> Any:
        raise SystemExit("no more")

    heard: list[Any] = []
    settings = config(queues=("default", "other"), grace=0.3, heartbeat=0.2, scheduler=die)
    worker = Worker(broker, registry_of(), settings, Hooks(last_words=heard.append))
    began = time.monotonic()
    assert worker.run() == EXIT_FATAL
    assert time.monotonic() - began < 10
    assert [str(error) for error in heard] == ["no more"]


@threads_die
def test_a_dead_thread_of_a_job_is_not_the_workers(broker: Broker) -> None:
    heard: list[Any] = []
    worker: list[Worker] = []

    def work() -> None:
        thread = threading.Thread(target=lambda: 1 / 0, name="mine")
        thread.start()
        thread.join()
        drain(worker[0])

    put(broker, "work")
    worker.append(worker_of(broker, work, hooks=Hooks(last_words=heard.append)))
    assert worker[0].run() == 0
    assert heard == []


def test_a_start_that_fails_has_last_words(broker: Broker) -> None:
    heard: list[Any] = []

    def fail() -> None:
        raise ZeroDivisionError("no tracer")

    with pytest.raises(ZeroDivisionError):
        worker_of(broker, hooks=Hooks(process_start=fail, last_words=heard.append)).run()
    assert [str(error) for error in heard] == ["no tracer"]


def test_the_end_of_grace_is_an_error_and_heard_once(broker: Broker) -> None:
    gate, heard = Gate(), list[Any]()
    put(broker, "work")
    worker = worker_of(broker, gate.work, hooks=Hooks(last_words=heard.append))
    worker.start()
    try:
        gate.wait_begun()
        assert worker.stop(0) is False
        assert worker.stop(0) is False
        assert [(type(error), str(error)) for error in heard] == [
            (TimeoutError, "1 jobs still ran at the end of the process")
        ]
    finally:
        gate.open()


def test_last_words_that_fail_are_logged(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("no")

    def broken(error: BaseException) -> None:
        raise KeyError("worse")

    with pytest.raises(ValueError, match="no"):
        worker_of(broker, hooks=Hooks(process_start=fail, last_words=broken)).run()
    assert "the hook last_words failed" in caplog.text


# --- a burst


@pytest.fixture
def calls() -> list[object]:
    """The values with which the handlers were called."""
    return []


@pytest.mark.parametrize("threads", [1, 3])
def test_content_that_waited_behind_an_attempt_runs_too(broker: Broker, calls: list[object], threads: int) -> None:
    def work(number: int) -> None:
        calls.append(number)
        if number < 3:
            put(broker, "work", number + 1, id="5")

    put(broker, "work", 1, id="5")
    run_dry(broker, registry_of(work), threads=threads, dispatcher=False)
    assert calls == [1, 2, 3] and not places(broker)


def test_payloads_that_one_attempt_cannot_take_run_too(broker: Broker, calls: list[object]) -> None:
    def work(payloads: dict[str, list[int]]) -> None:
        calls.extend(payloads["5"])

    for number in range(600):
        put_payload(broker, "work", "5", number, score=number)
    run_dry(broker, registry_of(work, merge=True), dispatcher=False)
    assert calls == list(range(600)) and not places(broker)


def test_jobs_that_a_handler_schedules_run_too(broker: Broker, calls: list[object]) -> None:
    def work(number: int) -> None:
        calls.append(number)
        if number < 5:
            put(broker, "work", number + 1, queue="other" if number % 2 else "default")

    broker.queue("other", shards=3)
    put(broker, "work", 1)
    run_dry(broker, registry_of(work), queues=("default", "other"), dispatcher=False)
    assert calls == [1, 2, 3, 4, 5]


def test_a_burst_does_not_wait_for_what_is_due_later(broker: Broker, calls: list[object]) -> None:
    def work(number: int) -> None:
        calls.append(number)
        put(broker, "work", number, id="5", delay_ms=3_600_000)

    put(broker, "work", 1, id="5")
    run_dry(broker, registry_of(work), dispatcher=False)
    assert calls == [1] and places(broker) == {"delayed": 1}


# --- without Redis


@pytest.mark.one_server("how a worker ends is the same on a cluster")
def test_a_burst_gives_up_when_redis_does_not_come(redis_factory: Callable[..., Any]) -> None:
    box = redis_factory()
    broker = Broker(connect(RedisConfig.parse(box.url)))
    box.stop()
    with working(broker, Registry(), config(burst=True, redis_patience=0.5)) as worker:
        assert worker.done.is_set() and exit_code(worker) == EXIT_NO_REDIS


@pytest.mark.one_server("how a worker ends is the same on a cluster")
def test_a_burst_gives_up_when_redis_leaves_and_does_not_return(redis_factory: Callable[..., Any]) -> None:
    box = redis_factory()
    broker = Broker(connect(RedisConfig.parse(box.url)))

    def work() -> None:
        box.stop()

    put(broker, "work")
    with working(broker, registry_of(work), config(burst=True, redis_patience=0.5, grace=0.2)) as worker:
        assert worker.done.wait(DEADLINE)
        assert exit_code(worker) == EXIT_NO_REDIS


def test_a_burst_that_has_redis_ends_well(broker: Broker, calls: list[object]) -> None:
    put(broker, "append", 1)
    worker = run_dry(broker, registry_named("append", calls.append), redis_patience=0.0)
    assert calls == [1] and exit_code(worker) == EXIT_OK
