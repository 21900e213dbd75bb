"""The ``max_length`` of a queue with several shards: never more jobs, and no refusal while there is room anywhere."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from django_delayq.core import Broker, NewJob, Queue, QueueFull, RedisConfig, bury, connect, quotas
from tests.support.cluster_box import ClusterBox
from tests.support.core_calls import ScriptCall, watch_calls, watch_pipelines
from tests.support.core_stored import check_stored, limit_queue, shard_key
from tests.support.processes import wait_until
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from .epochs_stage import other
from .quotas_stage import calls_of, given, held, ids_of, in_threads, put, run_some
from .stage import Stage
from .world import unchanged


@pytest.fixture
def sound(broker: Broker) -> Broker:
    """Return a broker with which each refused call looks for room, however short ago there was none."""
    broker.full_seconds = 0.0
    return broker


# -- one after another -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(2))
def test_no_job_is_refused_while_the_queue_is_below_its_limit_and_none_is_stored_above_it(
    sound: Broker, shards: int, seed: int
) -> None:
    draw, queue = random.Random(seed), sound.queue("q", shards=shards)
    limit, live = draw.randint(1, 60), set[str]()
    sound.limit("q", max_length=limit)
    uneven = ids_of(queue, *draw.sample(range(shards), max(1, shards // 2)))
    even = map("e{}".format, count())
    for _ in range(150):
        act = draw.choice(("one", "one", "many", "end", "end", "limit"))
        source = draw.choice((uneven, even))
        if act == "one":
            ident = next(source)
            assert put(queue, ident) == (len(live) < limit)
            live |= {ident} if len(live) < limit else set()
        elif act == "many":
            idents = [next(source) for _ in range(draw.randint(1, 40))]
            outcomes = queue.schedule_many([NewJob(ident, "work") for ident in idents])
            created = {ident for ident, outcome in zip(idents, outcomes, strict=True) if outcome == "created"}
            assert len(created) == max(0, min(len(idents), limit - len(live)))
            live |= created
        elif act == "end":
            for ident in draw.sample(sorted(live), draw.randint(0, len(live))):
                assert queue.cancel(ident) == "cancelled"
                live.remove(ident)
        elif draw.random() < 0.3:
            limit = draw.randint(1, 60)
            sound.limit("q", max_length=limit)
        assert held(queue) == len(live)
        if draw.random() < 0.05:  # a sender dies between taking places from a shard and giving them to another one
            room = max(quotas.read_room(queue), key=lambda room: room.spare)
            queue.call("quota", room.number, room.max_length, room.division, b"take", draw.randint(1, 9))
        assert sum(quota or 0 for quota in given(queue)) <= limit


def test_while_there_is_room_a_call_costs_what_it_costs_without_a_limit(sound: Broker) -> None:
    queue = sound.queue("q", shards=4)
    sound.limit("q", max_length=1000)
    assert put(queue, "first")
    calls = calls_of(sound)
    assert [put(queue, f"j{number}") for number in range(100)] == [True] * 100
    assert calls == ["schedule"] * 100
    calls.clear()
    # Half of what another shard has to spare is moved at once, so that a single shard may take everything.
    idents = ids_of(queue, 0)
    while held(queue) < 1000:
        assert put(queue, next(idents))
    assert calls.count("schedule") <= 899 + 40
    assert calls.count("quota") <= 100


def test_a_full_queue_costs_a_refused_producer_one_reading_of_the_lengths(sound: Broker) -> None:
    queue = sound.queue("q", shards=4)
    sound.limit("q", max_length=10)
    assert queue.count_many(NewJob(f"j{number}", "work") for number in range(50)) == {"created": 10, "full": 40}
    calls = calls_of(sound)
    with unchanged(sound), watch_pipelines(sound) as reads:
        for number in range(20):
            assert not put(queue, f"new{number}")
        assert len(reads) <= 20
        assert calls == ["schedule"] * 20
        reads.clear()
        assert queue.count_many(NewJob(f"n{number}", "work") for number in range(500)) == {"full": 500}
        assert len(reads) <= 4, "one for each chunk"


def test_a_queue_without_a_limit_is_not_read_for_a_merged_job_that_is_full(stage: Stage) -> None:
    assert stage.add("m", b"p", max_payloads=1) == "created"
    for number in range(20):
        with pytest.raises(QueueFull, match="max_payloads"):
            stage.add("m", b"%d" % number, max_payloads=1)
    stage.broker.limit("q", max_length=5)
    stage.queue.full_until = 0.0
    with watch_pipelines(stage.broker) as reads, pytest.raises(QueueFull, match="max_payloads"):
        stage.add("m", b"q", max_payloads=1)
    assert reads == []
    assert stage.add("n", b"q", max_payloads=1) == "created"


# -- changes of the queue ----------------------------------------------------------------------------------------------


def test_a_limit_below_what_uneven_shards_hold_is_kept_until_the_queue_is_below_it(sound: Broker) -> None:
    queue = sound.queue("q", shards=3)
    mine, others = ids_of(queue, 0), ids_of(queue, 1, 2)
    assert all(put(queue, next(mine)) for _ in range(50))
    sound.limit("q", max_length=10)
    assert not put(queue, next(others))
    assert not put(queue, next(mine))
    assert sum(run_some(queue) for _ in range(40)) == 40
    assert not put(queue, next(others))
    assert not put(queue, next(mine))
    assert run_some(queue) == 1
    assert put(queue, next(others))
    assert not put(queue, next(mine))
    sound.limit("q", max_length=12)
    assert [put(queue, next(others)) for _ in range(3)] == [True, True, False]
    sound.limit("q", max_length=0)
    assert put(queue, next(mine))
    assert held(queue) == 13


def test_jobs_of_old_epochs_count_and_the_places_of_those_that_end_are_used(sound: Broker) -> None:
    queue = sound.queue("q", shards=2)
    sound.limit("q", max_length=20)
    assert queue.count_many(NewJob(f"old{number}", "work") for number in range(15)) == {"created": 15}
    sound.reshard("q", 5)
    news = map("new{}".format, count())
    assert [put(queue, next(news)) for _ in range(6)] == [True] * 5 + [False]
    for number in range(15):
        assert queue.cancel(f"old{number}") == "cancelled"
        assert [put(queue, next(news)) for _ in range(2)] == [True, False]
    assert [room.length for room in quotas.read_room(queue)[:2]] == [0, 0]
    assert held(queue) == 20


def test_places_of_a_shard_that_redis_lost_are_found_again(sound: Broker) -> None:
    queue = sound.queue("q", shards=3)
    sound.limit("q", max_length=30)
    assert queue.count_many(NewJob(f"j{number}", "work") for number in range(40))["created"] == 30
    lost = queue.shard(1)
    gone = quotas.read_room(queue)[1].length
    for key in lost.names.values():
        sound.client.delete(key)
    idents = ids_of(queue, 0, 2)
    assert [put(queue, next(idents)) for _ in range(gone + 1)] == [True] * gone + [False]
    assert not put(queue, next(ids_of(queue, 1))), "a shard without its rules gets them back"


# -- the other ways in -------------------------------------------------------------------------------------------------


def test_a_producer_that_waits_for_room_gets_that_of_another_shard(sound: Broker) -> None:
    queue = sound.queue("q", shards=4)
    sound.limit("q", max_length=8)
    mine, others = ids_of(queue, 0), ids_of(queue, 3)
    assert all(put(queue, next(mine)) for _ in range(8))
    timer = threading.Timer(0.3, run_some, (queue, 3))
    timer.start()
    news = [NewJob(next(others), "work", room_ms=20_000) for _ in range(3)]
    assert queue.schedule(news[0]) == "created"
    assert queue.schedule_many(news[1:]) == ["created"] * 2
    timer.join()
    assert held(queue) == 8


def test_a_call_that_its_caller_repeats_gets_the_answers_of_its_first_try(sound: Broker) -> None:
    queue = sound.queue("q", shards=3)
    sound.limit("q", max_length=9)

    def news() -> list[NewJob]:
        idents = ids_of(queue, 0)
        return [NewJob(next(idents), "work", key=b"key %12d" % n, repeatable=True) for n in range(12)]

    first = queue.schedule_many(news())
    assert first == ["created"] * 9 + ["full"] * 3
    assert run_some(queue, 20) == 9
    with unchanged(sound):
        assert queue.schedule_many(news()) == first


# -- at the same time --------------------------------------------------------------------------------------------------


def test_producers_workers_and_operators_at_the_same_time_never_exceed_the_limit(sound: Broker) -> None:
    queue = sound.queue("q", shards=4)
    sound.limit("q", max_length=40)
    until, most = time.monotonic() + 1.5, 40

    def produce(broker: Broker, place: int) -> None:
        mine = broker.queue("q")
        idents = ids_of(mine, place, (place + 1) % 4)
        while time.monotonic() < until:
            put(mine, f"{place}-{next(idents)}")
            mine.schedule_many([NewJob(f"{place}-{next(idents)}", "work") for _ in range(5)])

    def operate(broker: Broker) -> None:
        while time.monotonic() < until:
            for limit in (20, 40, 31):
                broker.limit("q", max_length=limit)
                quotas.divide(broker.queue("q"))

    def work(broker: Broker) -> None:
        while time.monotonic() < until:
            run_some(broker.queue("q"), 2)

    seen: list[int] = []

    def look(broker: Broker) -> None:
        bodies = [shard_key(queue, "body", number) for number in queue.numbers]
        while time.monotonic() < until and not broker.connection.cluster:  # where no moment of all shards can be seen
            with broker.client.pipeline(transaction=True) as pipe:
                for body in bodies:
                    pipe.hlen(body)
                seen.append(sum(pipe.execute()))

    acts: list[Callable[[], None]] = [lambda place=place: produce(other(sound), place) for place in range(3)]
    in_threads(*acts, lambda: operate(other(sound)), lambda: work(other(sound)), lambda: look(other(sound)))
    assert max(seen, default=0) <= most
    assert len(seen) > 50 or sound.connection.cluster
    assert held(queue) <= most
    # Nobody moves anything any more: what was lost on the way is found by the first who needs it.
    sound.limit("q", max_length=most)
    idents = map("last{}".format, count())
    missing = most - held(queue)
    assert [put(queue, next(idents)) for _ in range(missing + 1)] == [True] * missing + [False]


def test_of_two_divisions_at_the_same_time_one_counts(sound: Broker) -> None:
    queue, late = sound.queue("q", shards=2), other(sound).queue("q")
    sound.limit("q", max_length=10)
    stolen: list[bool] = []

    def steal(call: ScriptCall) -> None:
        if b"clear" in call.args and not stolen:
            stolen.append(quotas.divide(queue))  # under the same number, after both have read the last one
            put(queue, next(ids_of(queue, 0)))

    with watch_calls(late.deployment, before=steal):
        assert quotas.divide(late) is False
    assert stolen == [True]
    assert sum(quota or 0 for quota in given(queue)) == 10
    # Places that were taken before a division are refused after it.
    room = quotas.read_room(queue)[0]
    assert queue.call("quota", 0, 10, room.division, b"take", 3) == 3
    assert quotas.divide(queue)
    assert queue.call("quota", 1, 10, room.division, b"give", 3) == -1
    assert sum(quota or 0 for quota in given(queue)) == 10


# -- fsck --------------------------------------------------------------------------------------------------------------


@pytest.mark.broken_on_purpose
def test_quotas_above_the_limit_are_found_and_divided_anew(broker: Broker) -> None:
    queue = broker.queue("q", shards=3)
    broker.limit("q", max_length=9)
    assert put(queue, "a")
    assert check_stored(broker).violations == []
    broker.client.hincrby(shard_key(queue, "meta", 1), "quota", 5)
    report = check_stored(broker, repair=True)
    assert report.violations == ["q: the quotas of the shards are 14 together, above its max_length 9"]
    assert report.repaired == 1
    assert check_stored(broker).violations == []
    assert sum(quota or 0 for quota in given(queue)) == 9


@pytest.mark.parametrize(
    ("limit", "lengths", "takers", "expected"),
    [
        (10, {0: 0, 1: 0, 2: 0}, [1, 0, 2], {0: 3, 1: 4, 2: 3}),
        (10, {0: 9, 1: 0, 2: 0}, [2, 0, 1], {0: 9, 1: 0, 2: 1}),
        (10, {0: 50, 1: 0, 2: 1}, [0, 1, 2], {0: 0, 1: 0, 2: 0}),
        (14, {0: 7, 1: 7}, [0, 1], {0: 7, 1: 7}),
        (10, {0: 3, 1: 0, 1024: 0}, [1024], {0: 3, 1: 0, 1024: 7}),
    ],
)
def test_quotas_are_what_is_held_and_equal_parts_of_the_rest(
    limit: int, lengths: dict[int, int], takers: list[int], expected: dict[int, int]
) -> None:
    assert quotas.quotas_of(limit, lengths, takers) == expected


# -- quotas of shards under faults, races and repeated calls, and what a search for room costs -------------------------


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
        while time.monotonic() < until or len(reads) < 2:
            assert not put(queue, f"new{tries}")
            tries += 1
    assert len(reads) < tries / 10
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
