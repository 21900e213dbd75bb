"""The ``max_length`` of a queue with several shards: never more jobs, and no refusal while there is room anywhere."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from django_delayq.core import Broker, NewJob, QueueFull, quotas
from tests.support.core_calls import ScriptCall, watch_calls, watch_pipelines
from tests.support.core_stored import assert_invariants, check_stored, shard_key

from .bulk_loads_stage import BulkLoadLimits, open_load, write
from .epochs_stage import other
from .quotas_stage import calls_of, given, held, ids_of, in_threads, put, run_some
from .stage import Stage
from .world import unchanged


@pytest.fixture
def sound(broker: Broker) -> Iterator[Broker]:
    """Return a broker; assert the invariants afterwards."""
    yield broker
    assert_invariants(broker)


@pytest.fixture(autouse=True)
def _at_once(request: pytest.FixtureRequest) -> None:
    """Let each refused call look for room, however short ago there was none."""
    for name in {"broker", "clocked", "cluster_broker"} & set(request.fixturenames):
        request.getfixturevalue(name).full_seconds = 0.0


# -- one after another -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(4))
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


def test_a_shard_that_is_full_takes_places_of_the_others(sound: Broker) -> None:
    queue = sound.queue("q", shards=4)
    sound.limit("q", max_length=100)
    idents = ids_of(queue, 2)
    assert [put(queue, next(idents)) for _ in range(101)] == [True] * 100 + [False]
    assert given(queue) == [0, 0, 100, 0]
    assert put(queue, next(ids_of(queue, 1))) is False
    assert run_some(queue) == 1
    assert put(queue, next(ids_of(queue, 1))) is True
    assert given(queue) == [0, 1, 99, 0]
    assert sound.inspector.counts("q").counters["created"] == 101


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


def test_a_paused_queue_and_the_way_of_a_tick_know_the_limit(sound: Broker) -> None:
    queue = sound.queue("q", shards=3)
    sound.limit("q", max_length=2)
    idents = ids_of(queue, 1)
    sound.pause("q", "out")
    assert queue.schedule_tick(NewJob(next(idents), "work"), 1) == "created"
    assert queue.schedule_tick(NewJob(next(idents), "work"), 1) == "created"
    assert queue.schedule_tick(NewJob(next(idents), "work"), 1) == "full"


# -- the other ways in -------------------------------------------------------------------------------------------------


def test_a_bulk_load_fills_the_queue_to_its_limit(sound: Broker) -> None:
    queue = sound.queue("q", shards=4)
    sound.limit("q", max_length=50)
    idents = ids_of(queue, 3)
    load = open_load(sound, "a", "q", chunk=15)
    skewed = [NewJob(next(idents), "work", due_ms=1, delay_ms=None, on_conflict="ignore") for _ in range(90)]
    sent: list[Any] = []
    sender = threading.Thread(target=lambda: sent.append(write(sound, load, skewed, BulkLoadLimits())))
    sender.start()
    while sender.is_alive() or held(queue):
        assert held(queue) <= 50
        run_some(queue, 3)
    assert sent == [{"created": 90}]


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


def test_producers_at_the_same_time_fill_the_queue_exactly(sound: Broker) -> None:
    queue = sound.queue("q", shards=5)
    sound.limit("q", max_length=120)

    def produce(broker: Broker, name: str) -> None:
        mine, draw = broker.queue("q"), random.Random(name)
        for number in range(60):
            idents = [f"{name}-{number}-{place}" for place in range(draw.randint(1, 3))]
            if len(idents) == 1:
                put(mine, idents[0])
            else:
                mine.schedule_many([NewJob(ident, "work") for ident in idents])

    in_threads(*(lambda name=name: produce(other(sound), name) for name in "abcd"))
    assert held(queue) == 120


def test_producers_workers_and_operators_at_the_same_time_never_exceed_the_limit(sound: Broker) -> None:
    queue = sound.queue("q", shards=4)
    sound.limit("q", max_length=40)
    until, most = time.monotonic() + 3, 40

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
