"""Queues and shards that come, change and go while a worker runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, NewJob, Registry
from tests.support.worker_stage import (
    announced_queues,
    config,
    epoch_of,
    eventually,
    held_by,
    put,
    registry_of,
    served_shards,
    shards_of_epoch,
    worked_queues,
    working,
)


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
        assert [list(queue.numbers) for queue in worker.queues] == [shards_of_epoch(1, 3)]


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
        assert [queue.name for queue in worker.queues] == ["default", "later"]


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
        assert [queue.name for queue in worker.queues] == ["default"]
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


@pytest.mark.slow
@pytest.mark.one_server("counts the commands of one server")
def test_idle_shards_cost_less_than_one_command_a_second(broker: Broker, registry: Registry) -> None:
    client = broker.client
    broker.queue("default", shards=5)

    def commands() -> int:
        stats = client.info("commandstats")
        # What scripts do inside is counted too, but not what only clients send.
        return sum(
            stats[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_blpop", "cmdstat_client|id") if name in stats
        )

    with working(broker, registry, config()):
        eventually(lambda: broker.workers(), "the first announcement")
        threading.Event().wait(6)  # the beginning is busy
        before = commands()
        threading.Event().wait(20)
        assert commands() - before < 20
