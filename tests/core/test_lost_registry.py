"""Processes that know more of a queue than the registry, because Redis lost it or went back to an older copy of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from django_delayq.core import Broker, NewJob, Queue, QueueUnavailable, layouts
from tests.support.core_calls import watch_commands
from tests.support.core_stored import shard_key
from tests.support.older_copy import OlderCopy

from .epochs_stage import adopt_layout, clocks, epoch_of, other, reshard, take_all
from .stage import Stage

READS: dict[str, Callable[[Broker], object]] = {
    "known_queue": lambda broker: broker.known_queue("q"),
    "queues": lambda broker: broker.queues(),
    "served": lambda broker: broker.served(["q"]),
    "served, every": lambda broker: broker.served([], every=True),
}
read_by = pytest.mark.parametrize("read", READS.values(), ids=READS)


def put(queue: Queue, *idents: str) -> None:
    for ident in idents:
        assert queue.schedule(NewJob(ident, "work")) == "created"


def ids(queue: Queue) -> set[str]:
    return {job.id for job in take_all(queue)}


def with_retired_epoch(broker: Broker) -> Queue:
    """Return a queue whose epoch 0 is retired."""
    queue = broker.queue("q", shards=2)
    broker.reshard("q", 3)
    broker.registry.change_layout("q", lambda layout: layouts.without_epoch(layout, 0))
    assert queue.epochs == ((1, 3),)
    return queue


MANY = [str(number) for number in range(20)]


@read_by
def test_jobs_of_a_queue_that_was_made_anew_are_served_beside_its_later_epoch(
    broker: Broker, read: Callable[[Broker], object]
) -> None:
    """A process that was started after the loss makes the queue, before one that knows it looks."""
    queue = with_retired_epoch(broker)
    broker.client.flushdb()
    fresh = other(broker).queue("q", shards=4)
    put(fresh, *MANY)
    read(broker)
    assert queue.epochs == ((0, 4), (1, 3))
    put(fresh, "later")
    assert epoch_of(queue, "later") == 1, "the shards that were made anew are closed"
    assert ids(queue) == {*MANY, "later"}


def test_jobs_in_shards_that_a_queue_made_anew_lacks_are_served_when_it_is_made_with_all(
    broker: Broker,
) -> None:
    """Only the registry was lost, as a node of a cluster may lose it, and all processes were started anew."""
    put(broker.queue("q", shards=4), *MANY)
    broker.client.hdel(broker.queues_key, "q")
    fewer = other(broker).queue("q", shards=2)
    put(fewer, "since")
    served = ids(fewer)
    assert "since" in served
    assert len(served) < len(MANY)
    broker.client.hdel(broker.queues_key, "q")
    assert ids(other(broker).queue("q", shards=4)) == {*MANY, "since"} - served


def test_an_old_shard_that_went_back_to_before_it_was_closed_is_closed_by_the_next_look(broker: Broker) -> None:
    """Until then an id may become live there and in the new epoch, by a process that knows the old layout alone."""
    stale = other(broker).queue("q")
    broker.reshard("q", 2)
    queue = broker.queue("q")
    number = queue.numbers[0]
    broker.client.hdel(shard_key(queue, "meta", number), "rules")  # the node of this shard alone lost it
    put(stale, "x")
    queue.tick(number)
    assert stale.schedule(NewJob("y", "work")) == "created"
    assert epoch_of(queue, "y") == 1


@read_by
def test_jobs_that_an_older_copy_brings_back_are_served_beside_a_later_epoch(
    broker: Broker, read: Callable[[Broker], object]
) -> None:
    stale = other(broker)
    put(stale.queue("q", shards=2), *MANY)
    copy = OlderCopy(broker.client)
    assert ids(broker.queue("q")) == set(MANY)
    queue = with_retired_epoch(broker)
    copy.put_back()
    put(stale.queue("q"), "since")
    read(broker)
    assert queue.epochs == ((0, 2), (1, 3))
    put(stale.queue("q"), "later")
    assert epoch_of(queue, "later") == 1
    assert ids(queue) == {*MANY, "since", "later"}


@read_by
def test_a_deleted_queue_that_was_made_anew_goes_on_in_a_later_epoch(
    broker: Broker, read: Callable[[Broker], object]
) -> None:
    queue = broker.queue("q", shards=2)
    broker.reshard("q", 3)
    broker.delete_queue("q", force=True)
    assert queue.deleted
    broker.client.flushdb()
    put(other(broker).queue("q", shards=4), *MANY)
    other(broker).limit("q", morgue_max=7)
    read(broker)
    assert not queue.deleted
    assert queue.epochs == ((0, 4), (1, 3), (2, 4))
    assert queue.layout["limits"] == {"morgue_max": 7}
    assert ids(queue) == set(MANY)


def test_of_two_tombstones_the_later_one_stays(broker: Broker) -> None:
    queue = broker.queue("q")
    broker.delete_queue("q")
    copy = OlderCopy(broker.client)
    put(queue, "a")
    assert queue.epochs == ((1, 1),)
    broker.delete_queue("q", force=True)
    copy.put_back()
    assert broker.known_queue("q") is None
    put(other(broker).queue("q"), "b")
    assert broker.queue("q").epochs == ((2, 1),)


def test_two_processes_that_put_an_epoch_back_at_once_agree(broker: Broker) -> None:
    queue = with_retired_epoch(broker)
    second = other(broker)
    second.queue("q")
    broker.client.flushdb()
    put(other(broker).queue("q", shards=2), *MANY)
    barrier = threading.Barrier(2)

    def read(of: Broker) -> None:
        barrier.wait(10)
        of.queues()

    threads = [threading.Thread(target=read, args=(of,)) for of in (broker, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert second.queue("q").epochs == queue.epochs == ((0, 2), (1, 3))
    assert ids(queue) == set(MANY)


def test_a_change_that_an_older_copy_brings_back_is_completed_below_a_later_epoch(broker: Broker) -> None:
    """A dispatcher completes it, which knows that the queue is two epochs further."""
    queue = broker.queue("q", shards=2)
    broker.registry.change_layout("q", lambda layout: layouts.with_next(layout, 4))
    put(other(broker).queue("q"), *MANY)
    copy = OlderCopy(broker.client)
    broker.epochs.finish("q")
    broker.reshard("q", 3)
    assert queue.epochs == ((0, 2), (1, 4), (2, 3))
    copy.put_back()
    broker.epochs.finish("q")
    assert queue.layout["epoch"] == 2
    assert broker.known_queue("q") is queue
    assert queue.epochs == ((0, 2), (1, 4), (2, 3))
    assert other(broker).queue("q").epochs == queue.epochs
    assert ids(queue) == set(MANY)


def test_a_thread_that_has_read_an_earlier_epoch_does_not_take_the_queue_back_to_it(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    _, old = broker.read_layout("q")
    assert old is not None
    broker.reshard("q", 3)
    assert not adopt_layout(broker, "q", old)
    assert queue.epochs == ((0, 2), (1, 3))


def test_epochs_that_were_put_back_are_retired_when_they_are_empty(clocked: Broker) -> None:
    stage = Stage(clocked, shards=2)
    reshard(stage, 3)
    clocked.registry.change_layout("q", lambda layout: layouts.without_epoch(layout, 0))
    clocked.client.flushdb()
    clocks(stage, 0, 2)
    clocks(stage, 1, 3)
    put(other(clocked).queue("q", shards=2), "a", "b")
    assert clocked.known_queue("q") is stage.queue
    assert clocked.epochs.retire("q") == []
    for number in (0, 1):
        stage.done(*stage.take(number=number))
    stage.wait(130_000)
    assert clocked.epochs.retire("q") == [0]
    assert other(clocked).queue("q").epochs == ((1, 3),)


# -- processes that only schedule ------------------------------------------------------------------------------------


def test_who_only_schedules_finds_out_that_the_registry_lost_a_queue(broker: Broker) -> None:
    put(broker.queue("q"), "before")
    broker.client.flushdb()
    broker.layout_seconds = 0.0
    put(broker.queue("q"), "after")
    (queue,) = other(broker).queues()
    assert ids(queue) == {"after"}


def test_who_only_schedules_finds_out_that_a_queue_was_made_anew(broker: Broker) -> None:
    with_retired_epoch(broker)
    broker.client.flushdb()
    worker = other(broker)
    put(worker.queue("q"), "a")
    put(broker.queue("q"), "b")  # into epoch 1, which the worker does not know
    broker.layout_seconds = 0.0
    put(broker.queue("q"), "c")
    (queue,) = worker.queues()
    assert queue.epochs == ((0, 1), (1, 3))
    assert ids(queue) == {"a", "b", "c"}


def test_a_layout_is_believed_for_a_while(broker: Broker) -> None:
    queue = broker.queue("q")
    with watch_commands(broker) as reads:
        assert [broker.queue("q") for _ in range(3)] == [queue] * 3
        assert reads == []
        queue.read_at -= broker.layout_seconds
        assert [broker.queue("q") for _ in range(3)] == [queue] * 3
        assert reads == ["HGET"]


@pytest.mark.one_server("on a cluster a layout is believed for longer if the registry is away")
def test_a_layout_that_could_not_be_read_is_read_by_the_next_call(broker: Broker) -> None:
    queue = broker.queue("q")
    queue.read_at -= broker.layout_seconds

    def fail() -> None:
        raise QueueUnavailable("away")

    with watch_commands(broker, before=fail):
        for _ in range(2):
            with pytest.raises(QueueUnavailable):
                broker.queue("q")
    assert broker.queue("q") is queue


def test_a_queue_that_was_deleted_by_another_process_is_made_again(broker: Broker) -> None:
    broker.queue("q")
    other(broker).delete_queue("q")
    broker.layout_seconds = 0.0
    assert broker.queue("q").epochs == ((1, 1),)


def test_a_queue_that_is_served_is_created_but_an_awaited_one_is_left_to_its_owner(broker: Broker) -> None:
    assert [queue.name for queue in broker.served(["mine", "theirs"], awaited={"theirs"})] == ["mine"]
    assert other(broker).queue_names() == ["mine"]
    other(broker).queue("theirs")
    assert [queue.name for queue in broker.served(["mine", "theirs"], awaited={"theirs"})] == ["mine", "theirs"]


def test_a_deleted_queue_that_was_lost_from_the_registry_is_created_when_it_is_served(broker: Broker) -> None:
    broker.queue("q")
    broker.delete_queue("q")
    assert broker.served(["q"]) == []
    broker.client.flushdb()
    assert [queue.name for queue in broker.served(["q"])] == ["q"]
