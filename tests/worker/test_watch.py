"""Queues, by choices of operators, and tasks come and go while a worker runs."""

from __future__ import annotations

import threading

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, QueueUnavailable, Registry, Task, TaskOptions
from tests.support.worker_stage import (
    Worker,
    announced_queues,
    config,
    eventually,
    is_resting,
    outage_of,
    put,
    registry_away,
    registry_of,
    worked_queues,
    working,
)

from .test_orders import BEAT


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


def choose(broker: Broker, worker: Worker, word: str, queue: str) -> None:
    """Let an operator add a queue ("watch") or take it away ("ignore"), and wait until the worker has done so."""
    eventually(lambda: broker.workers(), "the worker is announced")
    assert broker.tell_worker(worker.name, word, queue)
    eventually(lambda: (queue in worked_queues(worker)) is (word == "watch"), f"{word} {queue}")
    eventually(lambda: is_resting(worker), "no reserve is under way that began before")


def test_a_queue_that_is_watched_from_now_on_is_worked_on_at_once(broker: Broker, runs: Runs) -> None:
    put(broker, "work", id="early", queue="extra")
    with working(broker, runs.registry(), config(heartbeat=BEAT)) as worker:
        put(broker, "work", id="own")
        assert runs.next() == ("default", "own")
        assert ready(broker, "extra") == 1
        choose(broker, worker, "watch", "extra")
        assert runs.next() == ("extra", "early")
        put(broker, "work", id="late", queue="extra")
        assert runs.next() == ("extra", "late")
        put(broker, "work", id="still")
        assert runs.next() == ("default", "still")
        assert announced_queues(worker) == ["default", "extra"]
        choose(broker, worker, "watch", "extra")  # again: nothing changes
        assert announced_queues(worker) == ["default", "extra"]


def test_an_ignored_queue_is_left_alone_until_it_is_watched_again(broker: Broker, runs: Runs) -> None:
    with working(broker, runs.registry(), config(queues=("default", "extra"), heartbeat=BEAT)) as worker:
        choose(broker, worker, "ignore", "extra")
        put(broker, "work", id="left", queue="extra")
        put(broker, "work", id="own")
        assert runs.next() == ("default", "own")
        assert ready(broker, "extra") == 1
        assert announced_queues(worker) == ["default"]
        choose(broker, worker, "watch", "extra")
        assert runs.next() == ("extra", "left")


def test_a_job_in_hand_is_finished_although_its_queue_is_ignored_meanwhile(broker: Broker) -> None:
    began, go_on = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert go_on.wait(15)

    with working(broker, registry_of(work), config(heartbeat=BEAT)) as worker:
        put(broker, "work")
        assert began.wait(15)
        choose(broker, worker, "ignore", "default")
        go_on.set()
        eventually(lambda: broker.inspector.counts("default").counters.get("acked") == 1, "the job is acked")
        put(broker, "work")
        choose(broker, worker, "watch", "default")
        eventually(lambda: broker.inspector.counts("default").counters.get("acked") == 2, "the next one, too")


def test_without_redis_the_queues_stay_as_they_are(broker: Broker, runs: Runs) -> None:
    with working(broker, runs.registry(), config(queues=("default", "extra"), heartbeat=BEAT)) as worker:
        eventually(lambda: broker.workers())
        with registry_away(broker, QueueUnavailable("gone")):
            assert broker.tell_worker(worker.name, "ignore", "extra")
            eventually(lambda: outage_of(worker), "the worker could not read the registry")
            assert announced_queues(worker) == ["default", "extra"]
            put(broker, "work", id="x", queue="extra")
            assert runs.next() == ("extra", "x")
        eventually(lambda: announced_queues(worker) == ["default"], "the choice counts as soon as it can be read")


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
