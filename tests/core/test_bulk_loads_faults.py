"""Bulk loads with a Redis that dies, restarts or is a cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from django_delayq.core import Broker, QueueUnavailable, RedisConfig, connect
from tests.support.cluster_box import ClusterBox
from tests.support.core_stored import assert_invariants, shard_key
from tests.support.older_copy import OlderCopy
from tests.support.redis_box import RedisBox

from .bulk_loads_stage import (
    BulkLoadLimits,
    BulkLoadWriter,
    ChunksLost,
    add_row,
    close_load,
    counted,
    ledgers,
    live,
    open_load,
    read_load,
    rows,
    work_off,
    write,
    write_some,
)
from .epochs_stage import other


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


def test_a_redis_that_lost_everything_is_written_to_by_a_new_load(broker: Broker) -> None:
    broker.queue("q", shards=2)
    load = open_load(broker, "a", "q")
    write(broker, load, rows(100))
    for key in broker.client.scan_iter(f"*{broker.prefix}*"):
        broker.client.delete(key)
    assert read_load(broker, "a") is None
    load = open_load(other(broker), "a", "q")
    assert write(other(broker), load, rows(100)) == {"created": 100}
    broker.queue("q").reload()
    assert live(broker) == 100


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


def test_a_bulk_write_fills_every_node_of_a_cluster(cluster_broker: Broker, cluster_box: ClusterBox) -> None:
    queue = cluster_broker.queue("q", shards=12)
    load = open_load(cluster_broker, "a", "q", chunk=20)
    homes = {cluster_box.node_of(shard_key(queue, "body", number)).port for number in queue.numbers}
    assert len(homes) == 3
    limits = BulkLoadLimits(per_second=1e5, most_memory=0.9)
    write_some(cluster_broker, load, 500, 1000, due=1)
    ran = work_off(queue)
    assert 200 < ran <= 500
    cluster_broker.reshard("q", 7)
    for node in cluster_box.nodes:
        node.client().script_flush()
    assert write(other(cluster_broker), load, rows(1000, due=1), limits) == {"created": 1000}
    assert counted(cluster_broker, load) == {"created": 1000}
    assert live(cluster_broker) == 1000 - ran
    assert close_load(cluster_broker, load) == open_load(other(cluster_broker), "a", "q", chunk=20)
    keys = [key for node in cluster_box.nodes for key in node.client().scan_iter("*:load:a*")]
    assert len(keys) > 3
    assert all(cluster_broker.client.pttl(key) > 0 for key in keys)
