"""Queues that operators add to a running worker, and take from it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob
from django_delayq.core.workers import ORDERS_KEPT
from tests.support.supervisor_stage import Program
from tests.support.worker_stage import config, eventually, put, registry_of, working

from .test_orders import BEAT


def note() -> None:
    """A task that only runs."""


def queues_of(broker: Broker) -> list[list[str]]:
    return [worker["queues"] for worker in broker.workers()]


def ready(broker: Broker, queue: str) -> int:
    counts = broker.inspector.counts(queue)
    return counts.ready + counts.reserved


def test_a_running_worker_watches_a_queue_and_ignores_it_again(broker: Broker) -> None:
    put(broker, "note", queue="mail")
    with working(broker, registry_of(note), config(heartbeat=BEAT)) as worker:
        eventually(lambda: queues_of(broker) == [["default"]])
        assert ready(broker, "mail") == 1
        assert broker.tell_worker(worker.name, "watch", "mail")
        eventually(lambda: ready(broker, "mail") == 0)
        eventually(lambda: queues_of(broker) == [["default", "mail"]])
        assert broker.tell_worker(worker.name, "ignore", "mail")
        eventually(lambda: queues_of(broker) == [["default"]])
        put(broker, "note", queue="mail")
        put(broker, "note")
        eventually(lambda: ready(broker, "default") == 0)
        assert ready(broker, "mail") == 1


def test_a_queue_that_is_ignored_may_be_one_of_all(broker: Broker) -> None:
    for queue in ("default", "mail"):
        broker.queue(queue)
    with working(broker, registry_of(note), config(heartbeat=BEAT, all_queues=True)) as worker:
        eventually(lambda: broker.workers())
        assert broker.tell_worker(worker.name, "ignore", "mail")
        eventually(lambda: [one["ignored"] for one in broker.workers()] == [["mail"]])
        assert queues_of(broker) == [["default"]]
        now_ms = broker.now_ms()
        assert eventually(lambda: broker.knows_task("default", "note", now_ms))
        assert not broker.knows_task("mail", "note", now_ms)


def test_a_worker_that_starts_anew_serves_the_queues_of_its_options(broker: Broker) -> None:
    broker.queue("mail")
    with working(broker, registry_of(note), config(heartbeat=BEAT)) as worker:
        eventually(lambda: broker.workers())
        assert broker.tell_worker(worker.name, "watch", "mail")
        eventually(lambda: queues_of(broker) == [["default", "mail"]])
        (key,) = broker.client.keys(f"{{{broker.prefix}}}:choices:*")
        assert 0 < broker.client.ttl(key) <= ORDERS_KEPT
    with working(broker, registry_of(note), config(heartbeat=BEAT)):
        eventually(lambda: queues_of(broker) == [["default"]])


def test_all_processes_of_a_program_watch_also_the_one_that_replaces_a_dead_one(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    put(broker, "wait", id="other", queue="mail")
    running = program(processes=2, threads=1, heartbeat=0.2)
    eventually(lambda: len(broker.workers()) == 2)
    assert broker.tell_worker(broker.workers()[0]["name"], "watch", "mail")
    eventually(lambda: queues_of(broker) == [["default", "mail"]] * 2)
    before = {worker["pid"] for worker in broker.workers()}
    os.kill(running.await_words("begun")[0][3], signal.SIGKILL)

    def replaced() -> Any:
        found = [worker["queues"] for worker in broker.workers() if worker["pid"] not in before]
        return found and found[0]

    assert eventually(replaced) == ["default", "mail"]
    running.client.rpush("release", 1, 1)
    eventually(lambda: ready(broker, "mail") == 0)
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_a_crash_in_a_watched_queue_is_settled_by_the_supervisor(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    """Not by a reaper, which would come when the lease is over, and could not know that the process died."""
    broker.queue("mail")
    running = program(processes=1, heartbeat=0.2, lease=120_000)
    eventually(lambda: queues_of(broker) == [["default"]])
    assert broker.tell_worker(broker.workers()[0]["name"], "watch", "mail")
    eventually(lambda: queues_of(broker) == [["default", "mail"]])
    put(broker, "crash_once", id="x", queue="mail")
    assert [entry[2] for entry in running.await_words("begun", 2)] == [1, 2]
    eventually(lambda: ready(broker, "mail") == 0)
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_a_choice_that_cannot_be_is_refused_at_the_call(broker: Broker) -> None:
    broker.queue("mail")
    broker.queue("images", kind="pull")
    broker.announce("w", {})
    for word, queue, problem in (
        ("watch", "", "needs the name of a queue"),
        ("watch", "maill", "no queue 'maill'"),
        ("watch", "images", "of kind 'pull'"),
        ("stop", "mail", "leave out the queue"),
        ("dance", "mail", "stop, drain, dump, watch, ignore"),
    ):
        with pytest.raises(InvalidJob, match=problem):
            broker.tell_worker("w", word, queue)
    assert not broker.tell_worker("nobody", "watch", "mail")


def test_a_watched_queue_that_was_deleted_is_not_created_again(broker: Broker) -> None:
    broker.queue("mail")
    with working(broker, registry_of(note), config(heartbeat=BEAT)) as worker:
        eventually(lambda: broker.workers())
        broker.tell_worker(worker.name, "watch", "mail")
        eventually(lambda: queues_of(broker) == [["default", "mail"]])
        broker.delete_queue("mail")
        eventually(lambda: {queue.name for queue in worker.queues} == {"default"})
        assert broker.queue_names() == ["default"]
