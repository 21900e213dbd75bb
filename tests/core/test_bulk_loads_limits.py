"""Limits of a bulk load: full and paused queues, the rate, the memory, and senders that are stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob, QueueFull, RedisConfig, ack, connect
from tests.support.core_stored import pace_key
from tests.support.core_values import QueuePaused
from tests.support.redis_box import RedisBox

from .bulk_loads_stage import (
    BulkLoad,
    BulkLoadLimits,
    BulkLoadStopped,
    BulkLoadWait,
    counted,
    live,
    merged_row,
    open_load,
    rows,
    work_off,
    write,
)
from .epochs_stage import other, take_all
from .events_stage import read_events
from .world import unchanged

PATIENT = BulkLoadLimits(patience=60)


class Background:
    """Sender in a separate thread."""

    def __init__(
        self,
        broker: Broker,
        load: BulkLoad,
        news: list[Any],
        limits: BulkLoadLimits = PATIENT,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.counts: dict[str, int] = {}
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(broker, load, news, limits, stop))
        self._thread.start()

    def _run(self, *args: Any) -> None:
        try:
            self.counts = dict(write(*args).counts)
        except BaseException as error:
            self.error = error

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def done(self) -> dict[str, int]:
        self._thread.join(60)
        assert not self.alive
        if self.error is not None:
            raise self.error
        return self.counts


def until(true: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


# -- full and paused -------------------------------------------------------------------------------------------------


def test_a_full_queue_is_waited_for_and_every_row_goes_in_once(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    broker.limit("q", max_length=60)
    load = open_load(broker, "a", "q", chunk=25)
    news = rows(500, due=1)
    sender = Background(broker, load, news)
    ran = 0
    while sender.alive or live(broker):
        assert live(broker) <= 60
        jobs = [job for number in queue.numbers for job in queue.reserve(number, 4, worker="w").jobs]
        ran += sum(queue.settle([ack(job, 1, 2) for job in jobs]))
    assert sender.done() == {"created": 500}
    assert ran == 500
    assert counted(broker, load) == {"created": 500}
    with unchanged(broker):  # the way through every partial chunk again
        started = time.monotonic()
        assert write(other(broker), load, news).counts == {"created": 500}
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
    assert write(broker, load, rows(400, due=1)).counts == counted(broker, load) == {"created": 400}
    left = live(broker)
    assert work_off(queue) == left
    assert write(broker, load, rows(400, due=1)).counts == {"created": 400}
    assert live(broker) == 0


def test_a_paused_queue_is_waited_for(broker: Broker) -> None:
    broker.queue("q", shards=2)
    load = open_load(broker, "a", "q", chunk=20)
    broker.pause("q", "in")
    with pytest.raises(QueuePaused, match="resume the queue and then the bulk load"):
        write(broker, load, rows(100), BulkLoadLimits(patience=0))
    sender = Background(broker, load, rows(100))
    assert sender.alive
    assert live(broker) == 0
    broker.resume("q", "in")
    assert sender.done() == counted(broker, load) == {"created": 100}


def test_a_merged_job_that_has_all_its_payloads_is_waited_for(broker: Broker) -> None:
    queue = broker.queue("q")
    load = open_load(broker, "a", "q")
    news = [merged_row("m", b"%d" % number, str(number), due=1, max_payloads=3) for number in range(8)]
    with pytest.raises(QueueFull, match="a merged job its max_payloads"):
        write(broker, load, news, BulkLoadLimits(patience=0))
    sender = Background(broker, load, news)
    seen: list[bytes] = []
    while sender.alive or live(broker):
        for job in take_all(queue):
            seen += [payload.data for payload in job.payloads]
            assert queue.settle([ack(job, 1, 2)]) == [True]
    assert sum(sender.done().values()) == 8
    assert sorted(seen) == [b"%d" % number for number in range(8)]
    with unchanged(broker):
        assert sum(write(broker, load, news).counts.values()) == 8


def test_who_is_told_to_stop_while_it_waits_does(broker: Broker) -> None:
    broker.queue("q")
    broker.limit("q", max_length=10)
    load = open_load(broker, "a", "q", chunk=10)
    told = threading.Event()
    sender = Background(broker, load, rows(50), PATIENT, told.is_set)
    until(lambda: counted(broker, load)["created"] == 10)
    told.set()
    with pytest.raises(BulkLoadStopped, match="resume it to write the rest"):
        sender.done()
    broker.limit("q", max_length=0)
    assert write(broker, load, rows(50)).counts == counted(broker, load) == {"created": 50}


# -- the rate --------------------------------------------------------------------------------------------------------


def moment(stored: bytes | None) -> int:
    """Return the time in µs of the next job by the rate, as stored by ``pace.lua``."""
    return int((stored or b"0").partition(b":")[0])


def paces(broker: Broker) -> Iterator[tuple[int, int]]:
    """Yield pairs without end: the time now, and that of the next job by the rate, both in µs."""
    key = pace_key(broker.prefix, "a")
    while True:
        seconds, micros = broker.client.time()
        yield seconds * 1_000_000 + micros, moment(broker.client.get(key))


@pytest.mark.one_server("TIME of one server")
def test_several_senders_keep_to_one_rate(broker: Broker) -> None:
    """Progress is never ahead of the clock by more than a chunk of each sender, and the final mean is the rate."""
    rate, chunk, senders, jobs = 1500, 50, 4, 1500
    broker.queue("q", shards=4)
    load = open_load(broker, "a", "q", chunk=chunk)
    clock = paces(broker)
    limits, whole = BulkLoadLimits(per_second=rate), rows(jobs)
    began, _ = next(clock)
    team = [Background(other(broker), load, whole[place::senders], limits) for place in range(senders)]
    while any(sender.alive for sender in team):
        there = counted(broker, load)["created"]
        now, _ = next(clock)
        assert there <= rate * (now - began) / 1e6 * 1.1 + chunk * (senders + 1)
    assert sum(sender.done()["created"] for sender in team) == jobs
    now, due = next(clock)
    assert rate * (due - began) / 1e6 == pytest.approx(jobs, rel=0.1)
    assert jobs / ((now - began) / 1e6) <= rate * 1.1
    assert 0 < broker.client.pttl(pace_key(broker.prefix, "a")) <= 62_000


@pytest.mark.one_server("TIME of one server")
def test_what_is_in_already_takes_nothing_of_the_rate(broker: Broker) -> None:
    load = open_load(broker, "a", "q", chunk=50)
    write(broker, load, rows(1000))
    began = next(paces(broker))[0]
    assert write(broker, load, rows(1000), BulkLoadLimits(per_second=1)).counts == {"created": 1000}
    assert next(paces(broker))[1] == 0
    assert write(broker, load, rows(1050), BulkLoadLimits(per_second=1)).counts == {"created": 1050}
    assert next(paces(broker))[1] - began >= 50_000_000


def test_what_is_in_takes_nothing_of_the_rate_also_after_a_change_of_the_shards(broker: Broker) -> None:
    """A resumed load sent its first chunks to the new shards, because the old ones were closed."""
    broker.queue("q", shards=2)
    load = open_load(broker, "a", "q", chunk=10)
    broker.reshard("q", 3)
    write(broker, load, rows(100))
    slow = BulkLoadLimits(per_second=0.001, patience=0)
    assert write(other(broker), load, rows(100), slow, lambda: True).counts == {"created": 100}


@pytest.mark.one_server("TIME of one server")
@pytest.mark.parametrize("retired", [False, True])
def test_the_rate_is_kept_by_chunks_that_go_on_to_another_epoch(broker: Broker, retired: bool) -> None:
    queue = broker.queue("q", shards=1)
    load = open_load(broker, "a", "q", chunk=50)
    broker.reshard("q", 2)
    if retired:
        names = queue.shard(0).names
        broker.client.delete(names["window"], names["reply"])
        assert broker.epochs.retire("q") == [0]
    began = next(paces(broker))[0]
    assert write(broker, load, rows(200), BulkLoadLimits(per_second=1000)).counts == {"created": 200}
    assert next(paces(broker))[1] - began >= 200_000


def test_a_sender_that_waits_for_its_turn_can_be_stopped(broker: Broker) -> None:
    load = open_load(broker, "a", "q", chunk=10)
    told = threading.Event()
    sender = Background(broker, load, rows(50), BulkLoadLimits(per_second=1), told.is_set)
    until(lambda: counted(broker, load)["created"] == 10 or broker.client.exists(pace_key(broker.prefix, "a")))
    told.set()
    with pytest.raises(BulkLoadStopped):
        sender.done()
    assert write(broker, load, rows(50)).counts == counted(broker, load) == {"created": 50}


@pytest.mark.one_server("TIME of one server")
def test_a_clock_that_is_set_back_takes_the_turn_with_it(broker: Broker) -> None:
    key = pace_key(broker.prefix, "a").encode()
    broker.scripts.call("pace", (key,), 250, "1000")
    due, seen = map(int, broker.client.get(key).split(b":"))
    hour = 3_600_000_000
    broker.client.set(key, f"{due + hour}:{seen + hour}")
    assert 0 <= broker.scripts.call("pace", (key,), 250, "1000") <= 250


@pytest.mark.one_server("TIME of one server")
def test_turns_follow_each_other_at_the_rate_whatever_it_is(broker: Broker) -> None:
    key = pace_key(broker.prefix, "a").encode()
    for rate, jobs in ((0.5, 1), (3, 7), (123.456, 250), (1e6, 250)):
        broker.client.delete(key)
        first = broker.scripts.call("pace", (key,), jobs, f"{rate:.6f}")
        due = moment(broker.client.get(key))
        waits = [broker.scripts.call("pace", (key,), jobs, f"{rate:.6f}") for _ in range(20)]
        assert first == 0
        if rate < 1e6:  # else the clock is faster
            assert moment(broker.client.get(key)) - due == pytest.approx(20 * jobs / rate * 1e6, abs=20)
            assert waits == sorted(waits)
            assert broker.client.pttl(key) > waits[-1]


# -- the memory ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(redis_factory: Callable[..., RedisBox]) -> Iterator[tuple[RedisBox, Broker]]:
    box = redis_factory()
    connection = connect(RedisConfig.parse(box.url))
    yield box, Broker(connection)
    connection.close()


def test_a_redis_near_its_limit_is_waited_for(small: tuple[RedisBox, Broker]) -> None:
    box, broker = small
    load = open_load(broker, "a", "q", chunk=10)
    used = int(box.client().info("memory")["used_memory"])
    box.configure(maxmemory=used * 2)
    limits = BulkLoadLimits(most_memory=0.2, look_every=1, patience=60)
    with pytest.raises(QueueFull, match=r"Redis uses \d+% of its maxmemory, and bulk load 'a' stops at 20%"):
        write(broker, load, rows(100), BulkLoadLimits(most_memory=0.2, look_every=1, patience=0))
    assert counted(broker, load) == {}
    sender = Background(broker, load, rows(100), limits)
    box.configure(maxmemory=0)
    assert sender.done() == {"created": 100}
    assert write(broker, load, rows(200), BulkLoadLimits(most_memory=0)).counts == {"created": 200}


def test_a_redis_without_memory_is_waited_for_too(small: tuple[RedisBox, Broker]) -> None:
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
    sender = Background(broker, load, rows(100), BulkLoadLimits(most_memory=0, patience=60))
    box.configure(maxmemory=0)
    assert sender.done() == counted(broker, load) == {"created": 100}
    assert live(broker) == 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"per_second": 0},
        {"per_second": 0.0001},
        {"per_second": -1.0},
        {"per_second": float("nan")},
        {"per_second": float("inf")},
        {"patience": -1},
        {"patience": float("nan")},
        {"most_memory": 1.5},
        {"most_memory": -0.1},
        {"look_every": 0},
    ],
)
def test_a_limit_that_cannot_be_one_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=next(iter(wrong))):
        BulkLoadLimits(**wrong)


def test_a_wait_gets_longer_and_comes_to_an_end() -> None:
    pauses: list[float] = []
    now = [0.0]

    def rest(seconds: float, _stop: object) -> None:
        pauses.append(seconds)
        now[0] += seconds

    wait = BulkLoadWait(10, lambda: False, now=lambda: now[0], pause=rest)
    with pytest.raises(ZeroDivisionError):
        while True:
            wait.rest(ZeroDivisionError())
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(pauses) == 2.0
    assert 10 <= now[0] < 12


@pytest.mark.one_server("TIME of one server")
def test_a_sender_that_paused_makes_up_no_more_than_one_call(broker: Broker) -> None:
    key = pace_key(broker.prefix, "a").encode()
    broker.scripts.call("pace", (key,), 10, "20")
    due, seen = map(int, broker.client.get(key).split(b":"))
    broker.client.set(key, f"{due - 60_000_000}:{seen}")
    waits = [broker.scripts.call("pace", (key,), 10, "20") for _ in range(4)]
    assert waits[:2] == [0, pytest.approx(0, abs=50)]
    assert waits[3] == pytest.approx(1000, abs=100)
