"""Queues and shards that come, change and go while a worker runs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, InvalidJob, NewJob, QueueUnavailable, Registry, Task, TaskOptions
from django_delayq.core.workers import ORDERS_KEPT
from tests.support.supervisor_stage import Program
from tests.support.worker_stage import (
    Gate,
    Worker,
    announced_queues,
    config,
    epoch_of,
    eventually,
    held_by,
    is_resting,
    outage_of,
    places,
    put,
    registry_away,
    registry_of,
    served_shards,
    shards_of_epoch,
    worked_queues,
    working,
)

from .test_orders import BEAT


class Seen:
    """Record of the attempts in order, with the epoch of the shard."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, str, int]] = []
        self.bell = threading.Condition()

    def note(self) -> None:
        job = current_job()
        assert job is not None
        with self.bell:
            self.runs.append((job.queue, job.id, epoch_of(job)))
            self.bell.notify_all()

    def wait_for(self, ident: str, timeout: float = 15.0) -> tuple[str, str, int]:
        with self.bell:
            assert self.bell.wait_for(lambda: any(run[1] == ident for run in self.runs), timeout), f"{ident} never ran"
            return next(run for run in self.runs if run[1] == ident)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def registry(seen: Seen) -> Registry:
    return registry_of(seen.note)


@pytest.fixture
def other(broker: Broker) -> Callable[[], Broker]:
    """Other processes."""
    return lambda: Broker(broker.connection, prefix=broker.prefix)


def forget_calls(broker: Broker, name: str = "default") -> None:
    """As if the last calls to the first epoch were long ago."""
    shard = broker.shard(name, 0)
    broker.client.delete(shard.names["window"], shard.names["reply"])


def test_t34_an_idle_worker_hears_of_new_shards_from_the_first_job_in_them(
    broker: Broker, seen: Seen, registry: Registry, other: Callable[[], Broker]
) -> None:
    broker.queue("default", shards=2)
    elsewhere = other()
    with working(broker, registry, config(heartbeat=60.0)):
        put(elsewhere, "note", id="before")
        assert seen.wait_for("before") == ("default", "before", 0)
        elsewhere.reshard("default", 5)
        for number in range(12):
            put(elsewhere, "note", id=f"after-{number}")
            assert seen.wait_for(f"after-{number}") == ("default", f"after-{number}", 1)


def test_shards_that_are_retired_are_asked_no_more(
    broker: Broker, seen: Seen, registry: Registry, other: Callable[[], Broker]
) -> None:
    elsewhere = other()
    with working(broker, registry, config(heartbeat=0.05)) as worker:
        elsewhere.reshard("default", 3)
        eventually(lambda: len(served_shards(worker)) == 4, "old and new shards")
        forget_calls(elsewhere)
        assert elsewhere.epochs.retire("default") == [0]
        eventually(lambda: len(served_shards(worker)) == 3, "the new shards alone")
        put(elsewhere, "note", id="after")
        assert seen.wait_for("after") == ("default", "after", 1)
        assert [list(queue.numbers) for queue in worker.scope.queues] == [shards_of_epoch(1, 3)]


def test_a_worker_of_all_queues_serves_those_that_come_later(
    broker: Broker, seen: Seen, registry: Registry, other: Callable[[], Broker]
) -> None:
    with working(broker, registry, config(heartbeat=0.05, all_queues=True)) as worker:
        put(other(), "note", id="a", queue="later")
        assert seen.wait_for("a") == ("later", "a", 0)
        assert announced_queues(worker) == ["default", "later"]
        for number in range(3):
            put(other(), "note", id=f"b{number}", queue="later")
            seen.wait_for(f"b{number}")


def test_a_queue_that_nobody_declares_is_served_once_it_is_there_and_never_made(
    broker: Broker, seen: Seen, registry: Registry, other: Callable[[], Broker]
) -> None:
    options = config(heartbeat=0.05, queues=("default", "later"), awaited=frozenset({"later"}))
    with working(broker, registry, options) as worker:
        put(other(), "note", id="a")
        seen.wait_for("a")
        assert broker.queue_names() == ["default"]
        put(other(), "note", id="b", queue="later")
        assert seen.wait_for("b") == ("later", "b", 0)
        assert [queue.name for queue in worker.scope.queues] == ["default", "later"]


def test_t51_a_worker_that_was_told_its_queues_leaves_the_others_alone(
    broker: Broker, seen: Seen, registry: Registry, other: Callable[[], Broker]
) -> None:
    elsewhere = other()
    put(elsewhere, "note", id="theirs", queue="other")
    with working(broker, registry, config(heartbeat=0.05)) as worker:
        put(elsewhere, "note", id="ours")
        seen.wait_for("ours")
        before = broker.worker_registry.changes
        elsewhere.queue("another")
        eventually(lambda: broker.worker_registry.changes != before, "an announcement that tells of the new queue")
        assert [queue.name for queue in worker.scope.queues] == ["default"]
    assert [run[1] for run in seen.runs] == ["ours"]
    assert broker.inspector.counts("other").ready == 1


def test_t44_a_queue_that_is_deleted_and_comes_back_is_served_again(
    broker: Broker, seen: Seen, registry: Registry, other: Callable[[], Broker]
) -> None:
    elsewhere = other()
    with working(broker, registry, config(heartbeat=0.05)) as worker:
        put(elsewhere, "note", id="before")
        seen.wait_for("before")
        assert elsewhere.delete_queue("default", force=True)
        eventually(lambda: served_shards(worker) == [], "no shard to serve")
        put(elsewhere, "note", id="after")
        assert seen.wait_for("after") == ("default", "after", 1)


def test_t44_a_worker_survives_that_the_queue_of_its_job_is_deleted(
    broker: Broker, other: Callable[[], Broker]
) -> None:
    begun, end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        end.wait(15)
        ended.set()

    def after() -> None:
        ended.set()

    with working(broker, registry_of(work, after), config(heartbeat=0.05)) as worker:
        put(broker, "work", id="a")
        assert begun.wait(15)
        other().delete_queue("default", force=True)
        end.set()
        assert ended.wait(15)
        eventually(lambda: not held_by(worker), "nothing in hand")
        ended.clear()
        put(other(), "after", id="b")
        assert ended.wait(15)


def test_the_dispatcher_looks_after_pull_queues_and_the_consumer_never_takes_from_them(
    connection: object, prefix: str, seen: Seen, registry: Registry
) -> None:
    broker = Broker(connection, prefix=prefix, lease_ms=200)  # type: ignore[arg-type]
    queue = broker.queue("pulled", kind="pull")
    queue.schedule(NewJob("a", "note"))
    assert queue.reserve(0, 1, worker="gone").jobs
    with working(broker, registry, config(heartbeat=0.05, all_queues=True)) as worker:
        eventually(lambda: broker.inspector.counts("pulled").ready == 1, "the end of the lease")
        put(broker, "note", id="b")
        seen.wait_for("b")
        assert worked_queues(worker) == ["default"]
    assert [run[1] for run in seen.runs] == ["b"]


def test_an_old_epoch_that_is_empty_is_taken_off_by_a_dispatcher(
    broker: Broker, registry: Registry, other: Callable[[], Broker]
) -> None:
    elsewhere = other()
    elsewhere.queue("default").schedule(NewJob("a", "nobody", delay_ms=3_600_000))
    elsewhere.reshard("default", 3)
    with working(broker, registry, config(heartbeat=0.05, epoch_check=0.05)):
        elsewhere.queue("idle")
        layout = elsewhere.registry.change_layout("idle", lambda now: {**now, "next": [1, 2]})
        assert layout["next"] == [1, 2]
    with working(broker, registry, config(queues=("default", "idle"), heartbeat=0.05, epoch_check=0.05)):
        queue = elsewhere.queue("idle")
        eventually(lambda: queue.reload() or len(queue.epochs) == 2, "a finished change")
        forget_calls(elsewhere, "idle")
        eventually(lambda: queue.reload() or queue.epochs == ((1, 2),), "a retired epoch")
        elsewhere.known_queue("default")
        assert elsewhere.queue("default").epochs == ((0, 1), (1, 3)), "a job lies there"


# --- queues by choices of operators, and tasks that come and go


def ready(broker: Broker, queue: str) -> int:
    return broker.inspector.counts(queue).ready


def choose(broker: Broker, worker: Worker, word: str, queue: str) -> None:
    """Let an operator add a queue ("watch") or take it away ("ignore"), and wait until the worker has done so."""
    eventually(lambda: broker.workers(), "the worker is announced")
    assert broker.tell_worker(worker.name, word, queue)
    eventually(lambda: (queue in worked_queues(worker)) is (word == "watch"), f"{word} {queue}")
    eventually(lambda: is_resting(worker), "no reserve is under way that began before")


def test_a_queue_that_is_watched_from_now_on_is_worked_on_at_once(
    broker: Broker, seen: Seen, registry: Registry
) -> None:
    put(broker, "note", id="early", queue="extra")
    with working(broker, registry, config(heartbeat=BEAT)) as worker:
        put(broker, "note", id="own")
        assert seen.wait_for("own")[0] == "default"
        assert ready(broker, "extra") == 1
        choose(broker, worker, "watch", "extra")
        assert seen.wait_for("early")[0] == "extra"
        put(broker, "note", id="late", queue="extra")
        assert seen.wait_for("late")[0] == "extra"
        put(broker, "note", id="still")
        assert seen.wait_for("still")[0] == "default"
        assert announced_queues(worker) == ["default", "extra"]
        choose(broker, worker, "watch", "extra")  # again: nothing changes
        assert announced_queues(worker) == ["default", "extra"]


def test_an_ignored_queue_is_left_alone_until_it_is_watched_again(
    broker: Broker, seen: Seen, registry: Registry
) -> None:
    with working(broker, registry, config(queues=("default", "extra"), heartbeat=BEAT)) as worker:
        choose(broker, worker, "ignore", "extra")
        put(broker, "note", id="left", queue="extra")
        put(broker, "note", id="own")
        assert seen.wait_for("own")[0] == "default"
        assert ready(broker, "extra") == 1
        assert announced_queues(worker) == ["default"]
        choose(broker, worker, "watch", "extra")
        assert seen.wait_for("left")[0] == "extra"


def test_a_job_in_hand_is_finished_although_its_queue_is_ignored_meanwhile(broker: Broker) -> None:
    gate = Gate()
    with working(broker, registry_of(gate.work), config(heartbeat=BEAT)) as worker:
        put(broker, "work")
        gate.wait_begun()
        choose(broker, worker, "ignore", "default")
        gate.open()
        eventually(lambda: broker.inspector.counts("default").counters.get("acked") == 1, "the job is acked")
        put(broker, "work")
        choose(broker, worker, "watch", "default")
        eventually(lambda: broker.inspector.counts("default").counters.get("acked") == 2, "the next one, too")


def test_without_redis_the_queues_stay_as_they_are(broker: Broker, seen: Seen, registry: Registry) -> None:
    with working(broker, registry, config(queues=("default", "extra"), heartbeat=BEAT)) as worker:
        eventually(lambda: broker.workers())
        with registry_away(broker, QueueUnavailable("gone")):
            assert broker.tell_worker(worker.name, "ignore", "extra")
            eventually(lambda: outage_of(worker), "the worker could not read the registry")
            assert announced_queues(worker) == ["default", "extra"]
            put(broker, "note", id="x", queue="extra")
            assert seen.wait_for("x")[0] == "extra"
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


# --- the choices of operators in a whole program


def queues_of(broker: Broker) -> list[list[str]]:
    return [worker["queues"] for worker in broker.workers()]


def test_a_queue_that_is_ignored_may_be_one_of_all(broker: Broker, registry: Registry) -> None:
    for queue in ("default", "mail"):
        broker.queue(queue)
    with working(broker, registry, config(heartbeat=BEAT, all_queues=True)) as worker:
        eventually(lambda: broker.workers())
        assert broker.tell_worker(worker.name, "ignore", "mail")
        eventually(lambda: [one["ignored"] for one in broker.workers()] == [["mail"]])
        assert queues_of(broker) == [["default"]]
        now_ms = broker.now_ms()
        assert eventually(lambda: broker.knows_task("default", "note", now_ms))
        assert not broker.knows_task("mail", "note", now_ms)


def test_a_worker_that_starts_anew_serves_the_queues_of_its_options(broker: Broker, registry: Registry) -> None:
    broker.queue("mail")
    with working(broker, registry, config(heartbeat=BEAT)) as worker:
        eventually(lambda: broker.workers())
        assert broker.tell_worker(worker.name, "watch", "mail")
        eventually(lambda: queues_of(broker) == [["default", "mail"]])
        (key,) = broker.client.keys(f"{{{broker.prefix}}}:choices:*")
        assert 0 < broker.client.ttl(key) <= ORDERS_KEPT
    with working(broker, registry, config(heartbeat=BEAT)):
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
    eventually(lambda: not places(broker, "mail"))
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
    eventually(lambda: not places(broker, "mail"))
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


def test_a_watched_queue_that_was_deleted_is_not_created_again(broker: Broker, registry: Registry) -> None:
    broker.queue("mail")
    with working(broker, registry, config(heartbeat=BEAT)) as worker:
        eventually(lambda: broker.workers())
        broker.tell_worker(worker.name, "watch", "mail")
        eventually(lambda: queues_of(broker) == [["default", "mail"]])
        broker.delete_queue("mail")
        eventually(lambda: {queue.name for queue in worker.scope.queues} == {"default"})
        assert broker.queue_names() == ["default"]
