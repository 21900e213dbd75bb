"""Threads of one process that share its queues: each test pre-empts one of them in turn at each of its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import pytest

from django_delayq.core import Broker, Connection, InvalidJob, NewJob, Queue, Registry, Task, TaskOptions
from tests.support.core_calls import in_use, lock_of
from tests.support.core_figures import Tally, flush_now, is_scheduled
from tests.support.core_stored import assert_invariants

from ..support.forks import holds_in_a_child
from ..support.preemption import each_line
from .epochs_stage import other
from .quotas_stage import ShardRoom, is_divided, put, read_room
from .stage import Stage
from .threads_stage import (
    ADOPTING_ONE_OF_ALL,
    CHOOSING_A_SHARD,
    CHOOSING_EPOCHS,
    FINDING_HOME,
    FLUSHING,
    INSTALLING_A_LAYOUT,
    KICKING,
    NOTING_LIMITS,
    POSTING,
    READING_A_LAYOUT,
    READING_ALL_LAYOUTS,
    READING_PROGRESS,
    READING_ROOM,
    READING_THE_SERVED,
    SENDING_MANY,
    STORING_A_LAYOUT,
    VISITING_SHARDS,
    flush_of_another_thread,
)


@pytest.fixture
def new_broker(connection: Connection, prefix: str) -> Iterator[Callable[[], Broker]]:
    """Return a function that makes a broker without queues; the invariants of the last one are asserted before."""
    made: list[Broker] = []

    def make() -> Broker:
        check()
        made.append(Broker(connection, prefix=f"{prefix}-{len(made)}"))
        return made[-1]

    def check() -> None:
        for last in made[-1:]:
            assert_invariants(last)

    yield make
    check()


def stored_layout(broker: Broker) -> dict[str, Any]:
    """Return the layout of the queue "q" in Redis; the queue of this process adopts nothing."""
    layout = Broker(broker.connection, prefix=broker.prefix).read_layout("q")[1]
    assert layout is not None
    return layout


# -- layouts ---------------------------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[Broker], object]] = {
    "pauses": lambda broker: broker.pause("q"),
    "reshards": lambda broker: broker.reshard("q", 3),
    "deletes": lambda broker: broker.delete_queue("q"),
}
READS: dict[str, tuple[Callable[..., Any], Callable[[Broker], object]]] = {
    "one queue": (READING_A_LAYOUT, lambda broker: broker.known_queue("q")),
    "all queues": (READING_ALL_LAYOUTS, lambda broker: broker.queues()),
    "the queues served": (READING_THE_SERVED, lambda broker: broker.served(["q"])),
    "each of all queues": (ADOPTING_ONE_OF_ALL, lambda broker: broker.queues()),
    "a change": (
        STORING_A_LAYOUT,
        lambda broker: broker.registry.change_layout("q", lambda one: {**one, "limits": {}}),
    ),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_thread_that_was_overtaken_leaves_no_old_layout_behind(
    new_broker: Callable[[], Broker], read: str, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It would stay until the registry changes again: a worker would not look for jobs in the new shards."""
    function, act = READS[read]
    for line in each_line(function):
        broker = new_broker()
        queue = broker.queue("q", shards=2)
        with line.preempted(partial(CHANGES[change], broker)), suppress(InvalidJob):
            act(broker)
        assert queue.layout == stored_layout(broker)
        assert "lost epoch" not in caplog.text


def test_a_thread_that_reads_while_another_adopts_a_layout_sees_one_of_the_two(
    new_broker: Callable[[], Broker],
) -> None:
    def look(queue: Queue, seen: list[Any]) -> None:
        seen.append((queue.layout["epoch"], queue.epochs, queue.numbers, len(queue.present), queue.deleted))

    for line in each_line(INSTALLING_A_LAYOUT):
        broker = new_broker()
        queue = broker.queue("q", shards=2)
        seen: list[Any] = []
        look(queue, seen)
        other(broker).reshard("q", 3)
        with line.preempted(partial(look, queue, seen)):
            broker.known_queue("q")
        look(queue, seen)
        assert set(seen) == {seen[0], seen[-1]}


# -- shards of an id -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [CHOOSING_A_SHARD, SENDING_MANY, VISITING_SHARDS, FINDING_HOME])
def test_an_id_keeps_its_shard_although_another_thread_opens_the_next_epoch(
    new_broker: Callable[[], Broker], function: Callable[..., Any]
) -> None:
    """The fixture of the broker checks that no id lives in two epochs."""
    for line in each_line(function):
        broker = new_broker()
        queue = broker.queue("q", shards=2)
        assert queue.schedule_many([NewJob("a", "work"), NewJob("b", "work")]) == ["created"] * 2
        with line.preempted(partial(broker.reshard, "q", 3)):
            assert queue.schedule_many([NewJob("a", "work")]) == ["replaced"]
            assert queue.schedule(NewJob("b", "work")) == "replaced"
            assert queue.schedule(NewJob("c", "work", fresh=True)) == "created"


def test_a_kick_finds_its_record_although_another_thread_opens_the_next_epoch(new_broker: Callable[[], Broker]) -> None:
    for line in each_line(KICKING):
        broker = new_broker()
        stage = Stage(broker, shards=2, clock=False)
        stage.in_morgue("a")
        with line.preempted(partial(broker.reshard, "q", 3)):
            assert stage.queue.kick("a") == "kicked"


def test_a_producer_that_looks_for_room_survives_that_another_thread_opens_the_next_epoch(
    new_broker: Callable[[], Broker],
) -> None:
    for line in each_line(READING_ROOM):
        broker = new_broker()
        queue = broker.queue("q", shards=2)
        broker.limit("q", max_length=4)
        with line.preempted(partial(broker.reshard, "q", 3)):
            assert [room.number for room in read_room(queue)] in ([0, 1], list(queue.numbers))
        assert put(queue, "a")


def test_quotas_of_a_queue_that_another_thread_deletes_exceed_nothing(broker: Broker) -> None:
    queue = broker.queue("q")
    rooms = [ShardRoom(0, 0, quota=9, division=1, max_length=3, is_closed=False)]
    broker.delete_queue("q")
    assert is_divided(queue, rooms)


def test_the_progress_of_a_queue_that_another_thread_deletes_is_reported_or_empty(
    new_broker: Callable[[], Broker],
) -> None:
    for line in each_line(READING_PROGRESS):
        broker = new_broker()
        broker.queue("q", shards=2)
        with line.preempted(partial(broker.delete_queue, "q")):
            assert [(one.epoch, one.shards) for one in broker.epochs.progress("q")] in ([(0, 2)], [])


def test_a_bulk_load_is_never_opened_without_epochs() -> None:
    """Its record would be stored, and nobody could resume the load."""
    queue: Any = SimpleNamespace(reload=lambda: setattr(queue, "epochs", ((1, 3),)))
    broker: Any = SimpleNamespace(queue=lambda name: queue)
    for line in each_line(CHOOSING_EPOCHS):
        queue.epochs = ((0, 2),)
        with line.preempted(lambda: setattr(queue, "epochs", ())):
            assert CHOOSING_EPOCHS(broker, "q") == ((1, 3),)


# -- the connection --------------------------------------------------------------------------------------------------


def test_a_connection_is_closed_although_another_thread_opens_one_for_a_blocking_call(connection: Connection) -> None:
    def open_another(opened: list[Any]) -> None:
        opened.append(connection.blocking())

    for line in each_line(Connection.close, WeakKeyDictionary.__iter__):
        opened = [connection.blocking() for _ in range(3)]
        with line.preempted(partial(open_another, opened)):
            connection.close()


def test_connections_in_use_are_closed_although_another_thread_opens_one(
    redis_setting: object, opened: Callable[..., Connection]
) -> None:
    def open_another(opening: threading.Thread) -> None:
        opening.start()
        opening.join(0.05)  # it may have to wait until they are closed

    for line in each_line(WeakSet.__iter__):
        pool = opened(redis_setting).pool(b"q")
        links = [pool.take() for _ in range(3)]
        opening = threading.Thread(target=lambda pool=pool, links=links: links.append(pool.take()))
        with line.preempted(partial(open_another, opening)):
            pool.close()
        if line.reached:
            opening.join()
        assert in_use(pool) == len(links)
        for link in links:
            pool.release(link)
        assert in_use(pool) == 0


# -- counters --------------------------------------------------------------------------------------------------------


def test_counters_that_met_a_flush_of_another_thread_that_hangs_are_flushed_later() -> None:
    sent: list[Any] = []
    mine = Tally(lambda counters, request: sent.append(counters), patience=0.01)
    mine.count("redis_error", "transient")
    with flush_of_another_thread(mine):
        flush_now(mine)
    assert is_scheduled(mine), "the next flush is scheduled"
    mine.close()
    assert len(sent) == 1


@pytest.mark.parametrize("function", [FLUSHING, POSTING], ids=["flush", "post"])
def test_counters_that_are_being_sent_are_known_to_be_missing_in_redis(function: Any) -> None:
    def send(sent: list[Any], *call: Any) -> None:
        sent.append(call)

    def look(mine: Tally, sent: list[Any], known: list[bool]) -> None:
        known.append(bool(mine) or bool(sent))

    for line in each_line(function):
        known: list[bool] = []
        sent: list[Any] = []
        mine = Tally(partial(send, sent))
        mine.count("redis_error", "transient")
        with line.preempted(partial(look, mine, sent, known)):
            mine.flush()
        assert known == [True] * line.reached
        assert not mine


# -- tasks -----------------------------------------------------------------------------------------------------------


def test_limits_of_tasks_that_two_threads_register_at_once_are_all_kept() -> None:
    for line in each_line(NOTING_LIMITS):
        registry = Registry()
        first, second = (Task(lambda: None, name=name, options=TaskOptions(concurrency=3)) for name in ("one", "two"))
        with line.preempted(partial(registry.add, second)):
            registry.add(first)
        assert set(registry.limited) == set(registry.tasks)


# -- forks -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_reads_the_registry_although_a_thread_of_its_parent_held_the_lock_at_the_fork(broker: Broker) -> None:
    queue = broker.queue("q")
    other(broker).pause("q")

    def read() -> bool:
        broker.known_queue("q")
        return bool(queue.layout["paused"])

    assert holds_in_a_child(lock_of(broker.registry), read)
    assert "paused" not in queue.layout, "it is the parent's own"
