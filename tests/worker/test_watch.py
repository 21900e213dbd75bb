"""Queues and tasks come and go while a worker runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, InvalidJob, QueueUnavailable, Registry, Task, TaskOptions
from tests.support.worker_stage import (
    Worker,
    announced_queues,
    config,
    eventually,
    is_resting,
    put,
    registry_away,
    registry_of,
    working,
)


class Runs:
    """A task that notes the queue and the id of each run, and lets the test wait for them."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self._ran = threading.Semaphore(0)

    def registry(self) -> Registry:
        def work() -> None:
            job = current_job()
            assert job is not None
            self.seen.append((job.queue, job.id))
            self._ran.release()

        return registry_of(work)

    def next(self) -> tuple[str, str]:
        assert self._ran.acquire(timeout=15)
        return self.seen[-1]


@pytest.fixture
def runs() -> Runs:
    return Runs()


def ready(broker: Broker, queue: str) -> int:
    return broker.inspector.counts(queue).ready


def at_rest(worker: Worker) -> None:
    """Wait until no reserve is under way that began before the worker ignored the queue."""
    eventually(lambda: is_resting(worker), "the worker rests")


def test_a_queue_that_is_watched_from_now_on_is_worked_on_at_once(broker: Broker, runs: Runs) -> None:
    put(broker, "work", id="early", queue="extra")
    with working(broker, runs.registry()) as worker:
        put(broker, "work", id="own")
        assert runs.next() == ("default", "own")
        assert ready(broker, "extra") == 1
        worker.watch("extra")
        assert runs.next() == ("extra", "early")
        put(broker, "work", id="late", queue="extra")
        assert runs.next() == ("extra", "late")
        put(broker, "work", id="still")
        assert runs.next() == ("default", "still")
        assert announced_queues(worker) == ["default", "extra"]
        worker.watch("extra")  # again: nothing changes
        assert announced_queues(worker) == ["default", "extra"]


def test_a_queue_that_does_not_exist_yet_may_be_watched(broker: Broker, runs: Runs) -> None:
    with working(broker, runs.registry()) as worker:
        worker.watch("new")
        assert "new" in broker.queue_names()
        put(broker, "work", id="first", queue="new")
        assert runs.next() == ("new", "first")


def test_an_ignored_queue_is_left_alone_until_it_is_watched_again(broker: Broker, runs: Runs) -> None:
    with working(broker, runs.registry(), config(queues=("default", "extra"))) as worker:
        worker.ignore("extra")
        at_rest(worker)
        put(broker, "work", id="left", queue="extra")
        put(broker, "work", id="own")
        assert runs.next() == ("default", "own")
        assert ready(broker, "extra") == 1
        assert announced_queues(worker) == ["default"]
        worker.watch("extra")
        assert runs.next() == ("extra", "left")


def test_a_job_in_hand_is_finished_although_its_queue_is_ignored_meanwhile(broker: Broker) -> None:
    began, go_on = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert go_on.wait(15)

    with working(broker, registry_of(work)) as worker:
        put(broker, "work")
        assert began.wait(15)
        worker.ignore("default")
        go_on.set()
        eventually(lambda: broker.inspector.counts("default").counters.get("acked") == 1, "the job is acked")
        put(broker, "work")
        worker.watch("default")
        eventually(lambda: broker.inspector.counts("default").counters.get("acked") == 2, "the next one, too")


def test_a_worker_that_serves_all_queues_may_ignore_some(broker: Broker, runs: Runs) -> None:
    for queue in ("a", "b"):
        broker.queue(queue)
    with working(broker, runs.registry(), config(queues=("default",), all_queues=True)) as worker:
        worker.ignore("a")
        at_rest(worker)
        put(broker, "work", id="left", queue="a")
        put(broker, "work", id="taken", queue="b")
        assert runs.next() == ("b", "taken")
        assert ready(broker, "a") == 1


def test_a_choice_made_before_the_start_counts(broker: Broker, runs: Runs) -> None:
    put(broker, "work", id="extra", queue="extra")
    put(broker, "work", id="left")
    worker = Worker(broker, runs.registry(), config())
    worker.watch("extra")
    worker.ignore("default")
    worker.start()
    try:
        assert runs.next() == ("extra", "extra")
        assert ready(broker, "default") == 1
    finally:
        worker.stop(2.0)


def test_a_wrong_queue_is_refused_and_nothing_changes(broker: Broker, runs: Runs) -> None:
    broker.queue("feed", kind="pull")
    with working(broker, runs.registry()) as worker:
        with pytest.raises(InvalidJob, match="is of kind 'pull'"):
            worker.watch("feed")
        with pytest.raises(InvalidJob, match="queue name"):
            worker.watch("no queue")
        assert announced_queues(worker) == ["default"]
        put(broker, "work", id="own")
        assert runs.next() == ("default", "own")


@pytest.mark.parametrize("choose", [Worker.watch, Worker.ignore])
def test_without_redis_nothing_changes(broker: Broker, runs: Runs, choose: Callable[[Worker, str], None]) -> None:
    with working(broker, runs.registry(), config(queues=("default", "extra"))) as worker:
        with registry_away(broker, QueueUnavailable("gone")), pytest.raises(QueueUnavailable):
            choose(worker, "extra" if choose is Worker.ignore else "more")
        assert announced_queues(worker) == ["default", "extra"]
        put(broker, "work", id="x", queue="extra")
        assert runs.next() == ("extra", "x")


def test_tasks_are_looked_up_for_each_job_so_they_may_come_and_go(broker: Broker) -> None:
    registry, seen, ran = Registry(), [], threading.Semaphore(0)

    def make(word: str) -> Task:
        def work() -> None:
            seen.append(word)
            ran.release()

        return Task(work, name="work", options=TaskOptions())

    first, second = make("first"), make("second")
    registry.add(first)
    with working(broker, registry):
        put(broker, "work")
        assert ran.acquire(timeout=15)
        registry.remove(first)
        put(broker, "work", id="unknown")
        eventually(lambda: broker.inspector.counts("default").counters.get("released") == 1, "it is given back")
        registry.add(second)
        broker.queue("default").run_now("unknown")
        assert ran.acquire(timeout=15)
    assert seen == ["first", "second"]
