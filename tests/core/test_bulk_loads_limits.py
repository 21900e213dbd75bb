"""Limits of a bulk load: full and paused queues, the rate, the memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import pytest

from django_delayq.core import Broker, QueueFull, RedisConfig, ack, connect
from tests.support.core_values import QueuePaused
from tests.support.event_entries import read_events
from tests.support.redis_box import RedisBox

from .bulk_loads_stage import (
    BulkLoadLimits,
    BulkLoadWriter,
    counted,
    entry_of,
    live,
    merged_row,
    open_load,
    retire_now,
    rows,
    work_off,
    write,
)
from .epochs_stage import other, take_all
from .world import unchanged

PATIENT = BulkLoadLimits(patience=60)
Begin = Callable[..., Future[Counter[str]]]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Return a function that writes a bulk load in a separate thread."""
    with ThreadPoolExecutor() as pool:
        yield lambda broker, load, news, limits=PATIENT: pool.submit(write, broker, load, news, limits)


# -- full and paused -------------------------------------------------------------------------------------------------


def test_a_full_queue_is_waited_for_and_every_row_goes_in_once(broker: Broker, begin: Begin) -> None:
    queue = broker.queue("q", shards=2)
    broker.limit("q", max_length=60)
    load = open_load(broker, "a", "q", chunk=25)
    news = rows(500, due=1)
    sender = begin(broker, load, news)
    ran = 0
    while not sender.done() or live(broker):
        assert live(broker) <= 60
        jobs = [job for number in queue.numbers for job in queue.reserve(number, 4, worker="w").jobs]
        ran += sum(queue.settle([ack(job, 1, 2) for job in jobs]))
    assert sender.result(60) == {"created": 500}
    assert ran == 500
    assert counted(broker, load) == {"created": 500}
    with unchanged(broker):  # the way through every partial chunk again
        started = time.monotonic()
        assert write(other(broker), load, news) == {"created": 500}
        assert time.monotonic() - started < 10, "what was refused once is not waited for again"
    assert counted(broker, load) == {"created": 500}
    assert work_off(queue) == 0
    told = [
        event.fields
        for number in queue.numbers
        for event in read_events(broker, "q", number)
        if event.outcome == "bulk"
    ]
    assert sum(int(fields["jobs"]) for fields in told) == sum(int(fields["created"]) for fields in told) == 500


def test_a_run_that_broke_off_at_a_full_queue_is_gone_on_with(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    broker.limit("q", max_length=100)
    load = open_load(broker, "a", "q", chunk=30)
    with pytest.raises(QueueFull, match=r"waited 0\.01 s for room.*resume the bulk load"):
        write(broker, load, rows(400, due=1), BulkLoadLimits(patience=0.01))
    for there in (100, 200):
        assert live(broker) + there - 100 == counted(broker, load)["created"]
        assert counted(broker, load)["created"] <= there
        assert work_off(queue) > 0
        with pytest.raises(QueueFull):
            write(broker, load, rows(400, due=1), BulkLoadLimits(patience=0))
    broker.limit("q", max_length=0)
    assert write(broker, load, rows(400, due=1)) == counted(broker, load) == {"created": 400}
    left = live(broker)
    assert work_off(queue) == left
    assert write(broker, load, rows(400, due=1)) == {"created": 400}
    assert live(broker) == 0


def test_a_paused_queue_is_waited_for(broker: Broker, begin: Begin) -> None:
    broker.queue("q", shards=2)
    load = open_load(broker, "a", "q", chunk=20)
    broker.pause("q", "in")
    with pytest.raises(QueuePaused, match="resume the queue and then the bulk load"):
        write(broker, load, rows(100), BulkLoadLimits(patience=0))
    sender = begin(broker, load, rows(100))
    assert not sender.done()
    assert live(broker) == 0
    broker.resume("q", "in")
    assert sender.result(60) == counted(broker, load) == {"created": 100}


def test_a_merged_job_that_has_all_its_payloads_is_waited_for(broker: Broker, begin: Begin) -> None:
    queue = broker.queue("q")
    load = open_load(broker, "a", "q")
    news = [merged_row("m", b"%d" % number, str(number), due=1, max_payloads=3) for number in range(8)]
    with pytest.raises(QueueFull, match="a merged job its max_payloads"):
        write(broker, load, news, BulkLoadLimits(patience=0))
    sender = begin(broker, load, news)
    seen: list[bytes] = []
    while not sender.done() or live(broker):
        for job in take_all(queue):
            seen += [payload.data for payload in job.payloads]
            assert queue.settle([ack(job, 1, 2)]) == [True]
    assert sum(sender.result(60).values()) == 8
    assert sorted(seen) == [b"%d" % number for number in range(8)]
    with unchanged(broker):
        assert sum(write(broker, load, news).values()) == 8


# -- the rate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [(18, 1, 1), (1,)])
def test_several_senders_keep_to_one_rate(broker: Broker, shares: tuple[int, ...], begin: Begin) -> None:
    """Progress is never ahead of the clock by more than a chunk of each sender; the mean is the rate to the end."""
    rate, chunk, jobs = 500, 50, 1000
    broker.queue("q", shards=4)
    load = open_load(broker, "a", "q", chunk=chunk)
    limits, whole, parts = BulkLoadLimits(per_second=rate), iter(rows(jobs)), []
    for share in shares:
        parts.append(list(islice(whole, jobs * share // sum(shares))))
    parts[0] += whole
    began = time.monotonic()
    team = [begin(other(broker), load, part, limits) for part in parts]
    while any(not sender.done() for sender in team):
        there = counted(broker, load)["created"]
        assert there <= rate * (time.monotonic() - began) * 1.1 + chunk * (len(team) + 1)
        time.sleep(0.01)
    took = time.monotonic() - began
    assert sum(sender.result(60)["created"] for sender in team) == jobs
    assert took <= 2 * jobs / rate, "who sends less leaves its share to the others"


def test_what_is_in_takes_nothing_of_the_rate_also_after_a_change_of_the_shards(broker: Broker) -> None:
    """A resumed load sent its first chunks to the new shards, because the old ones were closed."""
    broker.queue("q", shards=2)
    load = open_load(broker, "a", "q", chunk=10)
    broker.reshard("q", 3)
    write(broker, load, rows(100))
    began = time.monotonic()
    assert write(other(broker), load, rows(100), BulkLoadLimits(per_second=0.001)) == {"created": 100}
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("retired", [False, True])
def test_the_rate_is_kept_by_chunks_that_go_on_to_another_epoch(broker: Broker, retired: bool) -> None:
    broker.queue("q", shards=1)
    load = open_load(broker, "a", "q", chunk=50)
    broker.reshard("q", 2)
    if retired:
        assert retire_now(broker) == [0]
    began = time.monotonic()
    assert write(broker, load, rows(200), BulkLoadLimits(per_second=500)) == {"created": 200}
    assert time.monotonic() - began >= 150 / 500


def test_a_sender_that_could_not_send_for_a_while_does_not_make_up_for_it(broker: Broker) -> None:
    broker.queue("q")
    load = open_load(broker, "a", "q", chunk=50)
    writer = BulkLoadWriter(broker, load, BulkLoadLimits(per_second=500))
    writer.add(map(entry_of, rows(50)))
    time.sleep(1)
    began = time.monotonic()
    writer.add(map(entry_of, rows(250)[50:]))
    assert writer.finish() == {"created": 250}
    assert time.monotonic() - began >= 150 / 500


# -- the memory ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(redis_factory: Callable[..., RedisBox]) -> Iterator[tuple[RedisBox, Broker]]:
    box = redis_factory()
    connection = connect(RedisConfig.parse(box.url))
    yield box, Broker(connection)
    connection.close()


def test_a_redis_near_its_limit_is_waited_for(small: tuple[RedisBox, Broker], begin: Begin) -> None:
    box, broker = small
    load = open_load(broker, "a", "q", chunk=10)
    used = int(box.client().info("memory")["used_memory"])
    box.configure(maxmemory=used * 2)
    limits = BulkLoadLimits(most_memory=0.2, patience=60)
    with pytest.raises(QueueFull, match=r"Redis uses \d+% of its maxmemory, and bulk load 'a' stops at 20%"):
        write(broker, load, rows(100), BulkLoadLimits(most_memory=0.2, patience=0))
    assert counted(broker, load) == {}
    sender = begin(broker, load, rows(100), limits)
    box.configure(maxmemory=0)
    assert sender.result(60) == {"created": 100}
    assert write(broker, load, rows(200), BulkLoadLimits(most_memory=0)) == {"created": 200}


def test_a_redis_without_memory_is_waited_for_too(small: tuple[RedisBox, Broker], begin: Begin) -> None:
    box, broker = small
    load = open_load(broker, "a", "q", chunk=10)
    write(broker, load, rows(100)[:50])
    box.configure(maxmemory="1mb")
    box.client().config_set("maxmemory", 1000)
    blind = BulkLoadLimits(most_memory=0, patience=0)
    with pytest.raises(QueueFull, match="no memory left"):
        write(broker, load, rows(100), blind)
    with pytest.raises(QueueFull, match="no memory left"):
        write(broker, load, rows(100), BulkLoadLimits(most_memory=0, patience=0, per_second=1e6))
    sender = begin(broker, load, rows(100), BulkLoadLimits(most_memory=0, patience=60))
    box.configure(maxmemory=0)
    assert sender.result(60) == counted(broker, load) == {"created": 100}
    assert live(broker) == 100
