"""Repeated chunks of a bulk load: they change nothing, whoever sends them and when."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.core import Broker, NewJob, RedisConfig, connect
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from .bulk_loads_stage import (
    FAR,
    BulkLoadWriter,
    add_row,
    counted,
    ledgers,
    live,
    merged_row,
    open_load,
    open_on,
    row,
    rows,
    work_off,
    write,
)
from .epochs_stage import other
from .stage import Stage
from .world import raw, read_world


def test_a_chunk_that_was_written_before_is_skipped(broker: Broker) -> None:
    broker.queue("q", shards=3)
    load = open_load(broker, "a", "q")
    assert write(broker, load, rows(1000)) == {"created": 1000}
    everything = raw(broker)
    assert write(broker, load, rows(1000)) == {"created": 1000}
    assert raw(broker) == everything, "not even the counters of the ledgers"
    assert counted(broker, load) == {"created": 1000}
    assert live(broker) == 1000


def test_jobs_that_ran_and_are_gone_do_not_run_again(broker: Broker) -> None:
    queue = broker.queue("q", shards=3)
    load = open_load(broker, "a", "q")
    write(broker, load, rows(700, due=1))
    assert work_off(queue) == 700
    broker.client.script_flush()
    for number in queue.numbers:  # what the shards remember of calls is long forgotten
        names = queue.shard(number).names
        broker.client.delete(names["reply"], names["window"])
    assert write(broker, load, rows(700, due=1)) == {"created": 700}
    assert work_off(queue) == live(broker) == 0
    assert counted(broker, load) == {"created": 700}


def test_a_try_that_broke_off_is_gone_on_with_chunk_by_chunk(broker: Broker) -> None:
    queue = broker.queue("q", shards=3)
    load = open_load(broker, "a", "q", chunk=50)
    broken = BulkLoadWriter(broker, load)
    for new in rows(600, due=1)[:450]:
        add_row(broken, new)
    broken.abandon()
    ran = work_off(queue)
    assert 0 < ran < 450
    assert write(broker, load, rows(600, due=1)) == {"created": 600}
    assert work_off(queue) == 600 - ran
    assert counted(broker, load) == {"created": 600}


def test_the_same_rows_make_the_same_chunks_whoever_sends_them(broker: Broker) -> None:
    """Chunks depend only on the rows and the record, not on other chunks or the state of the queue."""
    broker.queue("q", shards=3)
    load = open_load(broker, "a", "q", chunk=40)
    news = list(mixed_rows(random.Random(1), 600))
    write(broker, load, news)
    before = {key: set(broker.client.hkeys(key)) for key in ledgers(broker)}
    everything = raw(broker)
    write(other(broker), load, news)
    assert raw(broker) == everything
    assert {key: set(broker.client.hkeys(key)) for key in ledgers(broker)} == before


def mixed_rows(chance: random.Random, n: int) -> Iterator[NewJob]:
    """Yield rows of several shapes with repeated ids."""
    for number in range(n):
        if chance.random() < 0.2:
            yield merged_row(f"m{chance.randrange(20)}", b"%d" % chance.randrange(99), str(chance.randrange(5)))
        else:
            yield row(
                chance.randrange(n // 2),
                due=FAR + number,
                priority=chance.choice((1, 4)),
                on_conflict=chance.choice(("ignore", "replace", "error")),
            )


@pytest.mark.one_server("scripts of one server")
def test_a_server_that_forgot_its_scripts_in_between_is_told_them_again(broker: Broker) -> None:
    broker.queue("q", shards=2)
    load = open_load(broker, "a", "q")
    writer = BulkLoadWriter(broker, load)
    for number, new in enumerate(rows(2000)):
        if number % 300 == 0:
            broker.client.script_flush()
        add_row(writer, new)
    broker.client.script_flush()
    assert writer.finish() == counted(broker, load) == {"created": 2000}


@pytest.mark.parametrize("cut", ["cut_after_request", "cut_before_request"])
def test_a_lost_reply_writes_nothing_twice(
    redis_box: RedisBox, redis_url: str, prefix: str, proxy_factory: Callable[[Any], TcpProxy], cut: str
) -> None:
    proxy = proxy_factory(str(redis_box.socket_path))
    connection = connect(RedisConfig.parse(proxy.url))
    broker = Broker(connection, prefix=prefix)
    queue = broker.queue("q", shards=2)
    load = open_load(broker, "a", "q", chunk=20)
    ledger = b"load:a"
    write(broker, load, rows(100, due=1)[:40])
    for nth in (1, 2, 4):
        getattr(proxy, cut)(nth, when=lambda chunk: ledger in chunk and b"EVALSHA" in chunk)
        write(broker, load, rows(100 * nth, due=1))
    assert proxy.cuts_done == 3
    assert counted(broker, load)["created"] == live(broker) == 400
    assert work_off(queue) == 400
    connection.close()


def test_rows_that_come_again_are_done_again_for_others_may_lie_between(stage: Stage) -> None:
    first, other_row = row(1, args=b"1", on_conflict="replace"), row(1, args=b"2", on_conflict="replace")
    news = [first, other_row, first, other_row, first]
    load = open_on(stage)
    for _ in range(2):
        assert write(stage.broker, load, news) == {"created": 1, "replaced": 4}
        assert counted(stage.broker, load) == {"created": 1, "replaced": 4}
        assert read_world(stage.queue, 0)["lives"]["r1"]["content"].args == b"1"
