"""Quotas of shards under faults, races and repeated calls, and what a search for room costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from django_delayq.core import Broker, NewJob, Queue, RedisConfig, bury, connect, quotas
from tests.support.cluster_box import ClusterBox
from tests.support.core_calls import watch_pipelines
from tests.support.core_stored import limit_queue, shard_key
from tests.support.processes import wait_until
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from .epochs_stage import other
from .quotas_stage import given, ids_of, in_threads, put, run_some


def test_the_counter_of_refusals_never_goes_down_and_counts_every_try(broker: Broker) -> None:
    queue = broker.queue("q", shards=4)
    broker.limit("q", max_length=20)
    counted, calls = [0], list[str]()

    def look(verb: str, seconds: float, failed: bool) -> None:
        calls.append(verb)
        shards = (shard_key(queue, "count", number) for number in queue.numbers)
        counted.append(sum(int(broker.client.hget(key, "refused") or 0) for key in shards))

    broker.observe(look)
    idents = ids_of(queue, 2)
    assert [put(queue, next(idents)) for _ in range(21)] == [True] * 20 + [False]
    assert counted == sorted(counted)
    assert counted[-1] == calls.count("schedule") - 20 > 1, "what was sent again with success counts, too"


def test_a_process_reads_a_full_queue_for_a_hundredth_of_its_time(broker: Broker) -> None:
    queue = broker.queue("q", shards=4)
    broker.limit("q", max_length=10)
    assert queue.count_many(NewJob(f"j{number}", "work") for number in range(50)) == {"created": 10, "full": 40}
    until, tries = time.monotonic() + 0.6, 0
    with watch_pipelines(broker) as reads:
        while time.monotonic() < until:
            assert not put(queue, f"new{tries}")
            tries += 1
    assert 2 <= len(reads) < tries / 10
    assert run_some(queue)
    wait_until(lambda: put(queue, "later"), what="the next reading, which finds the room")


# -- races -------------------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_producers_that_all_find_a_new_limit_undivided_store_their_jobs(broker: Broker) -> None:
    broker.queue("q", shards=64)
    for turn in range(3):
        limit_queue(broker, "q", max_length=10_000 + turn)  # it is left to producers to divide it
        stored: list[bool] = []
        begin = threading.Barrier(20)

        def produce(mine: Queue, ident: str, begin: threading.Barrier = begin, stored: list[bool] = stored) -> None:
            begin.wait()
            stored.append(put(mine, ident))

        in_threads(*(partial(produce, other(broker).queue("q"), f"{turn}-{number}") for number in range(20)))
        assert stored == [True] * 20


def test_a_division_whose_process_died_is_followed_by_another_one(broker: Broker) -> None:
    queue = broker.queue("q", shards=3)
    broker.limit("q", max_length=30)
    division = quotas.read_room(queue)[0].division + 1
    assert queue.call("quota", 0, 30, division, b"clear", 0, 0) == 0
    assert queue.call("quota", 0, 30, division + 1, b"clear", 60_000, 0) == -1, "another one is running"
    assert quotas.divide(queue) is False
    began = time.monotonic()
    assert [put(queue, f"j{number}") for number in range(31)] == [True] * 30 + [False]
    assert time.monotonic() - began < 2
    assert sum(quota or 0 for quota in given(queue)) == 30


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "by"), [("quota", 5), ("division", -1)])
def test_what_a_failover_has_undone_in_one_shard_is_mended_by_the_first_refused_producer(
    broker: Broker, field: str, by: int
) -> None:
    queue = broker.queue("q", shards=3)
    broker.limit("q", max_length=9)
    first = ids_of(queue, 0)
    assert all(put(queue, next(first)) for _ in range(3))
    broker.client.hincrby(shard_key(queue, "meta", 1), field, by)
    assert put(queue, next(first)), "refused by its shard, whose quota is used up"
    rooms = quotas.read_room(queue)
    assert sum(room.quota or 0 for room in rooms) == 9
    assert len({room.division for room in rooms}) == 1
    others = ids_of(queue, 1, 2)
    assert [put(queue, next(others)) for _ in range(6)] == [True] * 5 + [False]


def test_jobs_kicked_into_a_full_queue_make_the_first_refused_producer_divide_the_limit(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    broker.limit("q", max_length=10)
    idents = ids_of(queue, 0)
    for _ in range(4):
        assert put(queue, next(idents))
    jobs = queue.reserve(0, 4, worker="w").jobs
    assert sum(queue.settle([bury(job, 1, 2, reason="no") for job in jobs])) == 4
    assert all(put(queue, next(idents)) for _ in range(8))
    assert [queue.kick(job.id) for job in jobs] == ["kicked"] * 4
    assert not put(queue, next(idents))
    others = ids_of(queue, 1)
    assert [put(queue, next(others)) for _ in range(3)] == [False] * 3


@pytest.mark.one_server("a proxy in front of one server")
def test_a_first_try_whose_reply_was_lost_finds_room_for_the_rest_of_its_chunk(
    redis_box: RedisBox, broker: Broker, proxy_factory: Callable[[str], TcpProxy]
) -> None:
    queue = broker.queue("q", shards=3)
    broker.limit("q", max_length=9)
    proxy = proxy_factory(str(redis_box.socket_path))
    late = Broker(connect(RedisConfig.parse(proxy.url)), prefix=broker.prefix)
    mine = late.queue("q")
    idents = ids_of(queue, 0)
    news = [NewJob(next(idents), "work", key=b"key %12d" % n, repeatable=True) for n in range(8)]
    assert put(mine, next(ids_of(queue, 1))), "which loads the script"
    proxy.cut_after_request(when=lambda sent: sent.count(b"key            7"))
    assert mine.schedule_many(news) == ["created"] * 8
    assert proxy.cuts_done == 1
    late.connection.close()


@pytest.mark.one_server("a proxy in front of one server")
def test_a_search_takes_no_longer_than_its_limit_though_a_call_may(
    redis_box: RedisBox,
    broker: Broker,
    proxy_factory: Callable[[str], TcpProxy],
) -> None:
    queue = broker.queue("q", shards=3)
    broker.limit("q", max_length=9)
    first = ids_of(queue, 0)
    assert all(put(queue, next(first)) for _ in range(3))
    proxy = proxy_factory(str(redis_box.socket_path))
    late = Broker(connect(RedisConfig.parse(proxy.url)), prefix=broker.prefix)
    assert late.connection.patience > 10
    mine = late.queue("q")
    began = time.monotonic()
    with watch_pipelines(late, after=proxy.blackhole) as reads:
        assert not put(mine, next(first))
    assert len(reads) == 1
    assert time.monotonic() - began < 3
    late.connection.close()


def test_a_search_does_not_wait_for_ever_for_a_division(broker: Broker) -> None:
    queue = broker.queue("q", shards=3)
    limit_queue(broker, "q", max_length=9)
    assert queue.call("quota", 0, 9, 1, b"clear", 0, 0) == 0, "another process divides, and does not come to an end"
    for number in queue.numbers:
        broker.client.hset(shard_key(queue, "meta", number), "dividing", 4_000_000_000_000)
    began = time.monotonic()
    assert not put(queue, "a")
    assert time.monotonic() - began < 3
    began = time.monotonic()
    assert not put(queue, "b")
    assert time.monotonic() - began < 0.5


@pytest.mark.one_server("starts a cluster of its own, of which it kills a node")
def test_a_node_that_is_down_leaves_a_refusal_a_refusal_on_the_other_nodes(redis_box: RedisBox, prefix: str) -> None:
    with ClusterBox(binary=redis_box.binary) as cluster:
        config = RedisConfig.parse({**cluster.setting, "SOCKET_TIMEOUT": 0.5, "RETRIES": 1})
        broker = Broker(connect(config), prefix=prefix)
        queue = broker.queue("q", shards=9)
        broker.limit("q", max_length=90)
        nodes = [cluster.node_of(queue.shard(number).keys[0]) for number in queue.numbers]
        here = nodes[0]
        gone = next(node for node in nodes if node is not here)
        idents = ids_of(queue, 0)
        assert [put(queue, next(idents)) for _ in range(10)] == [True] * 10, "the part of this shard"
        gone.kill()
        began = time.monotonic()
        assert not put(queue, next(idents))
        assert time.monotonic() - began < 4
        began = time.monotonic()
        assert [put(queue, next(idents)) for _ in range(10)] == [False] * 10
        assert time.monotonic() - began < 0.5, "the other nodes are not queried each time"
        place = next(place for place, node in enumerate(nodes) if place and node is not gone)
        assert put(queue, next(ids_of(queue, place)))
        broker.connection.close()
