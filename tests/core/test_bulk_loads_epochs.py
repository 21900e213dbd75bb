"""Bulk loads and resharding: during a load, and between two tries."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker, NewJob, Payload, QueueFull, ack
from tests.support.core_calls import watch_begun
from tests.support.core_stored import MAX_SHARDS, assert_invariants, shard_key
from tests.support.core_values import new_key

from .bulk_loads_stage import (
    FAR,
    BulkLoadWriter,
    add_row,
    counted,
    live,
    merged_row,
    open_load,
    retire_now,
    rows,
    work_off,
    write,
    write_some,
)
from .epochs_stage import Killed, die_before_publishing, epoch_of, other, take_all


def test_a_change_in_the_middle_of_a_run_loses_and_doubles_nothing(broker: Broker) -> None:
    broker.queue("q", shards=3)
    load = open_load(broker, "a", "q", chunk=20)
    writer = BulkLoadWriter(broker, load)
    for number, new in enumerate(rows(900, due=1)):
        if number in (300, 600):
            other(broker).reshard("q", 4 + number // 300)
        add_row(writer, new)
    assert writer.finish() == counted(broker, load) == {"created": 900}
    assert live(broker) == 900
    assert_invariants(broker)
    assert write(broker, load, rows(900, due=1)) == {"created": 900}
    assert work_off(broker.queue("q")) == 900
    assert write(broker, load, rows(900, due=1)) == counted(broker, load) == {"created": 900}
    assert live(broker) == 0


def test_a_change_between_two_tries_doubles_nothing(broker: Broker) -> None:
    queue = broker.queue("q", shards=3)
    load = open_load(broker, "a", "q", chunk=20)
    write_some(broker, load, 410, 900, due=1)
    ran = work_off(queue)
    assert 300 < ran < 410
    broker.reshard("q", 5)
    assert write(broker, load, rows(900, due=1)) == {"created": 900}
    assert work_off(broker.queue("q")) == 900 - ran
    assert counted(broker, load) == {"created": 900}


@pytest.mark.parametrize("fresh_process", [False, True])
def test_what_ran_in_an_epoch_that_was_retired_in_between_is_not_written_again(
    broker: Broker, fresh_process: bool
) -> None:
    """This includes an epoch created after the load was opened and retired before it is resumed."""
    broker.queue("q", shards=3)
    load = open_load(broker, "a", "q", chunk=20)
    write_some(broker, load, 200, 900, due=1)
    done = work_off(broker.queue("q"))
    broker.reshard("q", 4)
    write_some(broker, load, 500, 900, due=1)
    done += work_off(broker.queue("q"))
    assert 350 < done < 500
    broker.reshard("q", 5)
    assert retire_now(broker) == [0, 1]
    here = other(broker) if fresh_process else broker
    assert write(here, load, rows(900, due=1)) == {"created": 900}
    assert work_off(here.queue("q")) == 900 - done
    assert write(here, load, rows(900, due=1)) == counted(here, load) == {"created": 900}
    assert live(here) == 0


def test_nothing_is_ever_written_to_a_retired_epoch_even_when_its_tombstone_is_lost(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    load = open_load(broker, "a", "q")
    old = queue.numbers
    broker.reshard("q", 3)
    assert retire_now(broker) == [0]
    for number in old:
        broker.client.delete(shard_key(queue, "meta", number))
    assert write(broker, load, rows(100)) == {"created": 100}
    assert live(broker) == 100
    assert not any(broker.client.exists(shard_key(queue, "body", number)) for number in old)


def test_jobs_that_live_in_an_older_epoch_are_met_there(broker: Broker) -> None:
    queue = broker.queue("q", shards=3)
    queue.schedule_many(rows(300, due=FAR - 7)[::3])
    broker.reshard("q", 4)
    load = open_load(broker, "a", "q")
    assert load.epochs == ((0, 3), (1, 4))
    assert write(broker, load, rows(300, on_conflict="replace")) == {"created": 200, "replaced": 100}
    assert epoch_of(queue, "r3") == 0
    assert epoch_of(queue, "r4") == 1
    before = counted(broker, load)
    assert write(other(broker), load, rows(300, on_conflict="replace")) == before == counted(broker, load)
    assert live(broker) == 300


@pytest.mark.parametrize("shards", [(2, 64), (64, 2), (4, 6), (64, 81, 97)])
def test_chunks_find_their_way_through_the_epochs(broker: Broker, shards: tuple[int, ...]) -> None:
    """They stay whole if the larger numbers of shards are multiples of the others."""
    for number in shards:
        broker.queue("q", shards=number) if number == shards[0] else broker.reshard("q", number)
    load = open_load(broker, "a", "q", chunk=10)
    with watch_begun(broker) as sent:
        assert write(broker, load, rows(1200)) == {"created": 1200}
    assert live(broker) == 1200
    assert len(sent) >= 1200 / 10
    if 64 in shards and 2 in shards:
        assert len(sent) <= 2 * (1200 / 10 + 64)
    assert write(broker, load, rows(1200)) == counted(broker, load) == {"created": 1200}


def test_a_queue_that_was_deleted_comes_back_with_what_was_not_in_yet(broker: Broker) -> None:
    broker.queue("q", shards=3)
    load = open_load(broker, "a", "q", chunk=20)
    write_some(broker, load, 410, 900)
    there = live(broker)
    assert 0 < there < 410
    broker.delete_queue("q", force=True)
    assert write(broker, load, rows(900)) == counted(broker, load) == {"created": 900}
    assert live(broker) == 900 - there
    assert write(other(broker), load, rows(900)) == counted(broker, load) == {"created": 900}


def test_a_queue_that_is_deleted_under_a_sender_comes_back(broker: Broker) -> None:
    broker.queue("q", shards=2)
    load = open_load(broker, "a", "q", chunk=10)
    writer = BulkLoadWriter(broker, load)
    for number, new in enumerate(rows(200)):
        if number == 100:
            other(broker).delete_queue("q", force=True)
        add_row(writer, new)
    assert writer.finish() == {"created": 200}
    assert 100 <= live(broker) < 200


def test_a_change_that_its_author_left_half_done_is_finished(broker: Broker, impatient: None) -> None:
    queue = broker.queue("q", shards=2)
    load = open_load(broker, "a", "q")
    broken = other(broker)
    with pytest.raises(Killed), die_before_publishing(broken):
        broken.reshard("q", 3)  # the old shards are closed, the new ones not yet published
    assert write(broker, load, rows(100)) == {"created": 100}
    assert queue.epochs == ((0, 2), (1, 3))


def test_jobs_held_during_a_change_are_met_by_the_second_try(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    load = open_load(broker, "a", "q", chunk=20)
    write_some(broker, load, 60, 100, due=1)
    held = take_all(queue)
    broker.reshard("q", 3)
    assert {job.shard // MAX_SHARDS for job in held} == {0}
    assert write(broker, load, rows(100, due=1)) == {"created": 100}
    assert live(broker) == 100
    assert queue.settle([ack(job, 1, 2) for job in held]) == [True] * len(held)
    assert work_off(broker.queue("q")) == 100 - len(held)


def test_what_is_sent_away_in_part_and_refused_in_part_is_divided_in_the_same_way_again(broker: Broker) -> None:
    queue = broker.queue("q", shards=1)
    payload = Payload(b"old", "1", new_key(durable=False))
    queue.schedule(NewJob("b", "sync", due_ms=1, delay_ms=None, payload=payload))
    load = open_load(broker, "a", "q", chunk=2)
    broker.reshard("q", 2)
    mine = [merged_row("a", b"pa", due=1, max_payloads=1), merged_row("b", b"pb", due=1, max_payloads=1)]
    with pytest.raises(QueueFull):
        write(broker, load, mine)
    assert work_off(broker.queue("q")) == 2
    write(broker, load, mine)
    assert work_off(broker.queue("q")) == 1, "a has run before"
