"""Bulk loads and what happens beside them: resharding, and a Redis that dies, restarts or is a cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from django_delayq.core import Broker, NewJob, Payload, QueueFull, QueueUnavailable, RedisConfig, connect
from tests.support.core_calls import watch_begun
from tests.support.core_stored import assert_invariants, shard_key
from tests.support.core_values import new_key
from tests.support.older_copy import OlderCopy
from tests.support.redis_box import RedisBox

from .bulk_loads_stage import (
    FAR,
    BulkLoadWriter,
    ChunksLost,
    add_row,
    counted,
    ledgers,
    live,
    merged_row,
    open_load,
    retire_now,
    rows,
    work_off,
    write,
    write_some,
)
from .epochs_stage import Killed, die_before_publishing, epoch_of, other


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


@pytest.mark.parametrize("shards", [(2, 64), (64, 2), (4, 6, 9)])
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


def test_a_change_that_its_author_left_half_done_is_finished(broker: Broker, impatient: None) -> None:
    queue = broker.queue("q", shards=2)
    load = open_load(broker, "a", "q")
    broken = other(broker)
    with pytest.raises(Killed), die_before_publishing(broken):
        broken.reshard("q", 3)  # the old shards are closed, the new ones not yet published
    assert write(broker, load, rows(100)) == {"created": 100}
    assert queue.epochs == ((0, 2), (1, 3))


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


# -- bulk loads with a Redis that dies, restarts or is a cluster -------------------------------------------------------


def test_a_redis_that_is_killed_in_mid_write_loses_what_it_loses_whole(redis_factory: Callable[..., RedisBox]) -> None:
    """With every write synced to disk no confirmed chunk is lost, and no chunk is stored in part."""
    box = redis_factory(tcp=True, aof="always")
    connection = connect(RedisConfig.parse(box.url))
    broker = Broker(connection)
    queue = broker.queue("q", shards=3)
    load = open_load(broker, "a", "q", chunk=50)
    news = rows(3000, due=1)
    writer = BulkLoadWriter(broker, load)
    killed = threading.Event()

    def kill() -> None:
        box.kill()
        killed.set()

    started = 0.0
    with pytest.raises(QueueUnavailable):
        for number, new in enumerate(news):
            if number == 1500:
                started = time.monotonic()
                threading.Thread(target=kill).start()
            elif number == 2500:
                assert killed.wait(10)
            add_row(writer, new)
        writer.finish()
    assert time.monotonic() - started < 30, "a clear failure, and soon"
    box.start()
    there = live(broker)
    assert (
        there
        == counted(broker, load)["created"]
        == sum(int(broker.client.hget(key, "\0c") or 0) for key in ledgers(broker))
    )
    assert sum(writer.counts.values()) <= there < 3000
    assert_invariants(broker)
    ran = work_off(queue)
    assert ran == there
    assert write(broker, load, news) == counted(broker, load) == {"created": 3000}
    assert work_off(queue) == 3000 - ran
    assert_invariants(broker)
    connection.close()


def test_chunks_that_redis_lost_while_others_were_written_are_an_error_and_the_same_load_completes_them(
    broker: Broker,
) -> None:
    broker.queue("q", shards=3)
    load = open_load(broker, "a", "q", chunk=20)
    news = rows(1000)
    copy = OlderCopy(broker.client)
    writer = BulkLoadWriter(broker, load)
    for new in news[:600]:
        add_row(writer, new)
    copy.put_back()
    for new in news[600:]:
        add_row(writer, new)
    with pytest.raises(ChunksLost, match=r"lost \d+ chunks of bulk load 'a'"):
        writer.finish()
    assert live(broker) < 1000
    assert not open_load(broker, "a", "q", chunk=20).closed
    assert write(broker, load, news) == counted(broker, load) == {"created": 1000}
    assert live(broker) == 1000
