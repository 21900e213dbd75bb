"""The readers of events without Spark around them: what a batch is, what a task reads, and what was lost on the way."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from django_delayq.core import events, streams
from django_delayq.core.broker import Broker
from django_delayq.core.errors import Misconfigured, QueueUnavailable
from django_delayq.pipeline import event_plan, redis_door
from django_delayq.pipeline.errors import EventsLost
from django_delayq.pipeline.event_reading import EventsOptions
from django_delayq.pipeline.events import EventsReader, EventsSource, EventsStreamReader, commit
from django_delayq.pipeline.schemas import EVENTS
from tests.support.redis_box import RedisBox

MINUTE = 60_000
Make = Callable[..., EventsStreamReader]


def emit(broker: Broker, *moments: int, queue: str = "q", number: int = 0, **fields: str) -> None:
    """Events with the positions ``<moment>-0``."""
    key = broker.shard(queue, number).names["event"]
    with broker.client.pipeline(transaction=False) as pipe:
        for ms in moments:
            pipe.xadd(key, {"outcome": "succeeded", "id": f"j{ms}", **fields}, id=f"{ms}-0")
        pipe.execute()


def options_of(redis_url: str, broker: Broker, **options: Any) -> CaseInsensitiveDict:
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return CaseInsensitiveDict({"redis": redis_url, "prefix": broker.prefix, **given})


@pytest.fixture
def make(redis_url: str, broker: Broker) -> Iterator[Make]:
    """``make(trim=True)``: a streaming reader on the test's Redis; each is a query that starts anew."""
    made = []

    def make(**options: Any) -> EventsStreamReader:
        made.append(EventsStreamReader(options_of(redis_url, broker, **options), EVENTS))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def offsets(reader: EventsStreamReader, start: dict[str, Any], limit: int | None = None) -> dict[str, Any]:
    """The next end, on the way that Spark takes it."""
    return json.loads(json.dumps(reader.latestOffset(start, ReadMaxRows(limit) if limit else ReadAllAvailable())))


def ids(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """What the tasks of a batch read, each in a process of its own."""
    return [ident for task in reader.partitions(start, end) for ident in ids_of(reader, task)]


def ids_of(reader: Any, task: Any) -> list[str]:
    reader, task = pickle.loads(pickle.dumps((reader, task)))
    return [ident for batch in reader.read(task) for ident in batch.column("id").to_pylist()]


def run_to_end(reader: EventsStreamReader, start: dict[str, Any], limit: int) -> list[list[str]]:
    """The ids of each batch until there is nothing more to read."""
    batches = []
    while (end := offsets(reader, start, limit)) != start:
        batches.append(ids(reader, start, end))
        start = end
        reader.commit(end)
    return batches


def named(*moments: int) -> list[str]:
    return [f"j{ms}" for ms in moments]


# -- reading on


def test_each_event_is_read_once_and_a_batch_can_be_read_again(broker: Broker, make: Make) -> None:
    broker.queue("q", shards=2)
    emit(broker, 1, 2, 3)
    reader = make()
    start = reader.initialOffset()
    first = offsets(reader, start)
    assert first == {"q": {"0": "3-0", "1": "0-0"}}
    emit(broker, 4)
    emit(broker, 5, number=1)
    assert ids(reader, start, first) == named(1, 2, 3)
    restarted = make()
    assert ids(restarted, start, first) == named(1, 2, 3)
    second = offsets(restarted, first)
    assert ids(restarted, first, second) == named(4, 5)
    assert offsets(restarted, second) == second
    assert restarted.partitions(second, second) == []
    assert restarted.reportLatestOffset() == second


def test_a_small_fetch_reads_the_same(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, *range(1, 48))
    for fetch in (1, 2, 46, 47, 48):
        reader = make(fetch=fetch)
        start = reader.initialOffset()
        assert ids(reader, start, offsets(reader, start)) == named(*range(1, 48))


def test_it_begins_where_it_is_told_to(broker: Broker, make: Make) -> None:
    broker.queue("q", shards=2)
    emit(broker, 10, 20)
    assert make(startingOffset="latest").initialOffset() == {"q": {"0": "20-0", "1": "0-0"}}
    assert make(startingOffset="EARLIEST").initialOffset() == {"q": {"0": f"9-{2**64 - 1}", "1": "0-0"}}
    reader = make(startingOffset='{"q": {"0": "10-0"}}')
    start = reader.initialOffset()
    assert start == {"q": {"0": "10-0", "1": "0-0"}}
    assert ids(reader, start, offsets(reader, start)) == named(20)


def test_queues_and_shards_join_when_they_appear(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1)
    reader, some = make(), make(queue="q, third")
    start = reader.initialOffset()
    end = offsets(reader, start)
    broker.reshard("q", 2)
    broker.queue("third")
    emit(broker, 5, number=1025)
    emit(broker, 6, queue="third")
    emit(broker, 7, queue=broker.queue("fourth").name)
    later = offsets(reader, end)
    assert later == {
        "fourth": {"0": "7-0"}, "q": {"0": "1-0", "1024": "0-0", "1025": "5-0"}, "third": {"0": "6-0"}
    }  # fmt: skip
    assert list(later) == sorted(later)
    assert sorted(ids(reader, end, later)) == named(5, 6, 7)
    assert sorted(ids(some, end, offsets(some, end))) == named(5, 6)


def test_small_shards_share_a_task_and_large_ones_do_not(
    broker: Broker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_plan, "SMALL", 5)
    broker.queue("q", shards=6)
    for number, size in enumerate((2, 9, 2, 4, 5, 1)):
        emit(broker, *range(1, size + 1), number=number)
    reader = make()
    start = reader.initialOffset()
    tasks = [[(one.number, one.until) for one in task.intervals] for task in
             reader.partitions(start, offsets(reader, start))]  # fmt: skip
    assert tasks == [[(0, "2-0"), (2, "2-0")], [(1, "9-0")], [(3, "4-0"), (5, "1-0")], [(4, "5-0")]]
    assert len(ids(reader, start, offsets(reader, start))) == 23


@pytest.mark.parametrize("limit", [1, 2, 7, 10, 19, 20, 1000])
def test_a_batch_has_no_more_rows_than_it_may(broker: Broker, make: Make, limit: int) -> None:
    broker.queue("q", shards=3)
    emit(broker, *range(100, 112))
    emit(broker, 50, 60, number=1)
    emit(broker, *range(200, 206), number=2)
    reader = make(maxRowsPerTrigger=limit, fetch=4)
    assert reader.getDefaultReadLimit() == ReadMaxRows(limit)
    batches = run_to_end(reader, reader.initialOffset(), limit)
    assert max(map(len, batches)) <= limit
    assert len(batches) <= 20 // limit + 3
    assert sorted(ident for batch in batches for ident in batch) == sorted(
        named(50, 60, *range(100, 112), *range(200, 206))
    )


def test_whoever_is_the_furthest_behind_comes_first_when_not_all_can(broker: Broker, make: Make) -> None:
    broker.queue("q", shards=2)
    emit(broker, 10, 11)
    emit(broker, 500, number=1)
    reader = make()
    start = {"q": {"0": "10-0", "1": f"499-{2**64 - 1}"}}
    assert offsets(reader, start, 1) == {"q": {"0": "11-0", "1": f"499-{2**64 - 1}"}}


def test_a_query_that_ends_by_itself_leaves_what_comes_later(broker: Broker, make: Make) -> None:
    broker.queue("q", shards=2)
    emit(broker, 1, 2, 3)
    reader = make()
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    emit(broker, 4)
    emit(broker, 1, number=1)
    emit(broker, 1, queue=broker.queue("new").name)
    assert [sorted(batch) for batch in run_to_end(reader, start, 2)] == [named(1, 2), named(3)]
    ahead = {"q": {"0": "4-0", "1": "1-0"}}
    assert offsets(reader, ahead) == ahead, "a checkpoint that is further is not drawn back"


def test_at_once_reads_what_is_there(broker: Broker, redis_url: str) -> None:
    broker.queue("q", shards=2)
    emit(broker, 1, 2)
    emit(broker, 3, number=1)

    def found(**options: Any) -> list[str]:
        reader = EventsReader(options_of(redis_url, broker, **options), EVENTS)
        return [ident for task in reader.partitions() for ident in ids_of(reader, task)]

    assert found() == named(1, 2, 3)
    assert found(startingOffset="latest") == []
    assert found(startingOffset='{"q": {"0": "1-0"}}') == named(2, 3)
    assert found(queue="other") == []
    with pytest.raises(EventsLost):
        found(startingOffset='{"q": {"0": "0-5"}}')


def test_queues_that_a_reader_is_not_asked_for_stay_where_they_are(broker: Broker, make: Make) -> None:
    for name in ("a", "b"):
        emit(broker, 1, 2, queue=broker.queue(name).name)
    start = {"a": {"0": "1-0"}, "b": {"0": "1-0"}, "gone": {"0": "7-0"}}
    some = make(queue="a")
    end = offsets(some, start)
    assert end == {**start, "a": {"0": "2-0"}}
    assert ids(some, start, end) == named(2)
    assert offsets(some, end) == end
    some.prepareForTriggerAvailableNow()
    assert offsets(some, start, 1) == end
    with pytest.raises(EventsLost, match="'gone'"):
        offsets(make(), end)


def test_a_loss_in_a_queue_that_was_not_asked_for_is_left_to_who_reads_it(broker: Broker, make: Make) -> None:
    for name in ("a", "b"):
        emit(broker, 1, 2, 3, queue=broker.queue(name).name)
    broker.client.xtrim(broker.shard("b", 0).names["event"], maxlen=1, approximate=False)
    start = {"a": {"0": "1-0"}, "b": {"0": "1-0"}}
    end = offsets(make(queue="a"), start)
    assert end == {"a": {"0": "3-0"}, "b": {"0": "1-0"}}
    with pytest.raises(EventsLost, match="queue 'b'"):
        offsets(make(), end)


def test_a_reader_may_follow_more_queues_than_it_reads_now(broker: Broker, make: Make) -> None:
    for name in ("a", "b"):
        emit(broker, 1, 2, queue=broker.queue(name).name)
    some = make(queue="a", follow="*", trim=True)
    start = some.initialOffset()
    assert set(start) == {"a", "b"}
    end = offsets(some, start)
    assert end == {"a": {"0": "2-0"}, "b": start["b"]}
    some.commit(end)
    assert events.consumers(broker)[0].queues == ()
    assert broker.client.xlen(broker.shard("b", 0).names["event"]) == 2
    assert ids(make(), end, offsets(make(), end)) == named(1, 2)


# -- trimming


def test_what_was_committed_is_taken_off_but_for_the_tombstone(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2, 3)
    reader = make(trim=True)
    start = reader.initialOffset()
    assert events.followers(broker, "q") == ["history"], "before the first position is fixed"
    end = offsets(reader, start)
    reader.commit(end)
    assert broker.client.xlen(broker.shard("q", 0).names["event"]) == 1
    assert events.cursors(broker, "q", 0) == {"history": "3-0"}
    emit(broker, 4)
    assert ids(reader, end, offsets(reader, end)) == named(4)


def test_without_trim_nothing_is_noted_and_nothing_taken_off(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2, 3)
    reader = make()
    reader.commit(offsets(reader, reader.initialOffset()))
    assert broker.client.xlen(broker.shard("q", 0).names["event"]) == 3
    assert (events.consumers(broker), events.cursors(broker, "q", 0)) == ([], {})


def test_two_consumers_read_everything_each_at_its_own_pace(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2, 3)
    quick, slow = make(trim=True), make(trim=True, consumer="audit")
    begun = {reader: reader.initialOffset() for reader in (quick, slow)}
    quick.commit(offsets(quick, begun[quick]))
    emit(broker, 4)
    assert ids(slow, begun[slow], offsets(slow, begun[slow])) == named(1, 2, 3, 4)
    slow.commit({"q": {"0": "4-0"}})
    assert broker.client.xlen(broker.shard("q", 0).names["event"]) == 2, "quick has read up to 3"


def test_a_new_queue_is_not_taken_off_before_all_have_seen_it(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1)
    quick, slow = make(trim=True), make(trim=True, consumer="audit")
    start, _ = slow.initialOffset(), quick.initialOffset()
    emit(broker, 1, 2, queue=broker.queue("new").name)
    quick.commit({"new": {"0": "2-0"}, "q": {"0": "1-0"}})
    assert sorted(ids(slow, start, offsets(slow, start))) == named(1, 1, 2)


def test_a_query_that_has_ended_can_be_committed_from_outside(broker: Broker, redis_url: str) -> None:
    broker.queue("q")
    emit(broker, 1, 2)
    commit(options_of(redis_url, broker, consumer="nightly", queue="q"), {"q": {"0": "2-0"}})
    assert events.cursors(broker, "q", 0) == {"nightly": "2-0"}
    assert events.consumers(broker)[0].queues == ("q",)


# -- losses


def test_events_that_were_taken_off_unread_are_a_loss_that_says_where(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2, 3, 4)
    reader = make()
    start = {"q": {"0": "2-0"}}
    assert ids(reader, start, offsets(reader, start)) == named(3, 4)
    broker.client.xtrim(broker.shard("q", 0).names["event"], minid="4-0", approximate=False)
    with pytest.raises(EventsLost, match=r"queue 'q', shard 0 \(epoch 0, place 0\), behind 2-0: .*failOnDataLoss"):
        offsets(reader, start)
    assert offsets(reader, {"q": {"0": "4-0"}}) == {"q": {"0": "4-0"}}, "who has read all has missed nothing"


def test_a_loss_before_the_very_first_read_is_seen_too(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2, 3)
    reader = make()
    start = reader.initialOffset()
    broker.client.xtrim(broker.shard("q", 0).names["event"], maxlen=1, approximate=False)
    with pytest.raises(EventsLost):
        offsets(reader, start)


def test_a_redis_that_lost_everything_is_a_loss(broker: Broker, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    broker.queue("q")
    emit(broker, 1, 2)
    reader = make()
    end = offsets(reader, reader.initialOffset())
    broker.client.flushall()
    with pytest.raises(EventsLost, match="Redis has lost the stream"):
        offsets(reader, end)
    lenient = make(failOnDataLoss=False)
    assert offsets(lenient, end) == {}
    assert "Redis has lost the stream" in caplog.text


def test_an_older_copy_of_the_stream_is_a_loss(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2)
    with pytest.raises(EventsLost, match="ends at 2-0"):
        offsets(make(), {"q": {"0": "5-0"}})
    emit(broker, 8)
    with pytest.raises(EventsLost, match="behind 5-0: the entry there was taken off"):
        offsets(make(), {"q": {"0": "5-0"}})


def test_who_accepts_losses_goes_on_with_what_is_there_and_hears_of_each_once(
    broker: Broker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.queue("q", shards=2)
    emit(broker, *range(1, 9))
    emit(broker, 1, number=1)
    broker.client.xtrim(broker.shard("q", 0).names["event"], minid="6-0", approximate=False)
    reader = make(failOnDataLoss=False, trim=True)
    start = {"q": {"0": "2-0", "1": "7-0"}}
    end = offsets(reader, start)
    assert end == {"q": {"0": "8-0", "1": "7-0"}}, "a position never goes back"
    assert len(caplog.records) == 2
    assert offsets(reader, start) == end
    assert len(caplog.records) == 2
    assert ids(reader, start, end) == named(6, 7, 8)
    reader.commit(end)
    assert events.cursors(broker, "q", 1) == {}, "a cursor behind the end of the stream would take off what comes"


def test_a_shard_that_overran_its_cap_before_its_first_read_is_a_loss(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2, 3)
    key = broker.shard("q", 0).names["event"]
    if streams.streams(broker, [("q", 0)])["q", 0].added is None:
        pytest.skip("Redis before 7 does not know")
    broker.client.xtrim(key, maxlen=2, approximate=False)
    with pytest.raises(EventsLost, match="1 events were taken off before anybody read them"):
        offsets(make(), {})


def test_what_is_taken_off_between_the_plan_and_the_task_is_a_loss(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, *range(1, 30))
    key = broker.shard("q", 0).names["event"]
    for start in ({"q": {"0": "3-0"}}, {}):
        reader = make(fetch=5)
        (task,) = reader.partitions(start, {"q": {"0": "29-0"}})
        broker.client.xtrim(key, minid="6-0", approximate=False)
        with pytest.raises(EventsLost, match="while it was read"):
            ids_of(reader, task)
        assert ids_of(make(failOnDataLoss=False), task) == named(*range(6, 30))
        broker.client.delete(key)
        with pytest.raises(EventsLost):
            ids_of(reader, task)
        assert ids_of(make(failOnDataLoss=False), task) == []
        emit(broker, *range(1, 30))


def test_a_shard_that_overran_its_cap_before_a_batch_is_read_again_is_a_loss(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2, 3)
    if streams.streams(broker, [("q", 0)])["q", 0].added is None:
        pytest.skip("Redis before 7 does not know")
    broker.client.xtrim(broker.shard("q", 0).names["event"], maxlen=2, approximate=False)
    with pytest.raises(EventsLost, match="1 events were taken off before anybody read them"):
        make().partitions({}, {"q": {"0": "3-0"}})
    assert ids(make(failOnDataLoss=False), {}, {"q": {"0": "3-0"}}) == named(2, 3)


def test_what_is_taken_off_while_a_task_reads_is_a_loss(
    broker: Broker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.pipeline.event_reading.BATCH", 5)
    monkeypatch.setattr("django_delayq.pipeline.event_reading.PIECE", 5)
    broker.queue("q")
    emit(broker, *range(1, 100))
    reader = make(fetch=5)
    (task,) = reader.partitions({}, {"q": {"0": "99-0"}})
    batches = reader.read(task)
    assert next(batches).num_rows < 10
    broker.client.xtrim(broker.shard("q", 0).names["event"], minid="50-0", approximate=False)
    with pytest.raises(EventsLost):
        list(batches)


def test_a_reader_that_is_given_up_leaves_no_half_answer(
    broker: Broker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.pipeline.event_reading.BATCH", 5)
    monkeypatch.setattr("django_delayq.pipeline.event_reading.PIECE", 5)
    broker.queue("q")
    emit(broker, *range(1, 100))
    reader = make(fetch=5)
    (task,) = reader.partitions({}, {"q": {"0": "99-0"}})
    batches = reader.read(task)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert ids_of(reader, task) == named(*range(1, 100))


# -- the end of shards


def test_a_deleted_queue_leaves_without_a_word_when_all_was_read(broker: Broker, make: Make) -> None:
    broker.queue("q")
    broker.queue("stays")
    emit(broker, 1, 2)
    reader = make()
    end = offsets(reader, reader.initialOffset())
    assert broker.delete_queue("q")
    assert offsets(reader, end) == {"stays": {"0": "0-0"}}
    assert reader.partitions(end, {"stays": {"0": "0-0"}}) == []


def test_a_deleted_queue_that_was_not_read_is_a_loss(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2)
    reader = make()
    start = reader.initialOffset()
    broker.delete_queue("q", force=True)
    with pytest.raises(EventsLost, match="the shard is gone, with events up to 2-0"):
        offsets(reader, start)
    assert offsets(make(failOnDataLoss=False), start) == {}


def test_a_queue_that_comes_back_is_read_from_its_new_beginning(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1)
    reader = make()
    end = offsets(reader, reader.initialOffset())
    broker.delete_queue("q")
    broker.queue("q")
    emit(broker, 9, number=1024)
    assert offsets(reader, end) == {"q": {"1024": "9-0"}}


# -- options and errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quue": "q"}, "'quue' is no option here. Did you mean 'queue'?"),
        ({"startingoffsets": "latest"}, "Did you mean 'startingOffset'"),
        ({"redis": ""}, "where is Redis"),
        ({"redis": '{"URL": '}, "begins like JSON"),
        ({"redis": "localhost"}, "no scheme"),
        ({"redisEnv": "DELAYQ_NO_SUCH"}, "keep one of them"),
        ({"redis": "", "redisEnv": "DELAYQ_NO_SUCH"}, "'DELAYQ_NO_SUCH', which is not set"),
        ({"queue": ","}, "option queue"),
        ({"queue": "a b"}, "queue name 'a b'"),
        ({"queue": "a,b", "follow": "b,c"}, "option follow must name all of them"),
        ({"follow": ","}, "option follow"),
        ({"startingOffset": "now"}, "earliest, latest or JSON"),
        ({"startingOffset": '{"q": {"0": "x"}}'}, "no position"),
        ({"startingOffset": '{"q": {"first": "1-0"}}'}, "no number of a shard"),
        ({"startingOffset": '{"q": "1-0"}'}, "offsets look like"),
        ({"startingOffset": "[]"}, "no object"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger is a whole number from 1"),
        ({"fetch": "many"}, "fetch is a whole number from 1 to 10000, not 'many'"),
        ({"trim": "maybe"}, "trim is true or false"),
        ({"failOnDataLoss": "0"}, "failOnDataLoss is true or false"),
        ({"consumer": "a b"}, "consumer name 'a b'"),
    ],
)
def test_what_is_wrong_with_an_option_is_said_at_once(options: dict[str, str], said: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        EventsSource(CaseInsensitiveDict({"redis": "redis://localhost", **options})).schema()
    assert said in str(caught.value)


def test_a_password_is_in_no_message() -> None:
    for wrong in ('{"URL": "redis://:hunter2@h"', "redis//:hunter2@host"):
        with pytest.raises(Misconfigured) as caught:
            redis_door.config_of({"redis": wrong})
        assert "hunter2" not in f"{caught.value!r} {caught.value.__context__!r}" or caught.value.__suppress_context__
        assert "hunter2" not in str(caught.value)


def test_where_redis_is_may_be_json_or_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert redis_door.config_of({"redis": '{"CLUSTER": ["a:1", "b:2"]}'}).cluster_nodes == (("a", 1), ("b", 2))
    monkeypatch.setenv("QUEUE_REDIS", "redis://:geheim@host:7/3")
    found = redis_door.config_of(CaseInsensitiveDict({"redisENV": "QUEUE_REDIS"}))
    assert (found.host, found.port, found.db, found.password) == ("host", 7, 3, "geheim")


def test_names_of_options_are_read_whatever_their_case(redis_url: str) -> None:
    given = CaseInsensitiveDict(
        {"REDIS": redis_url, "MAXROWSPERTRIGGER": "5", "Trim": "TRUE", "consumer": "x", "QUEUE": "b, a"}
    )
    assert EventsOptions.parse(given) == EventsOptions(
        queues=("a", "b"), follows=("a", "b"), max_rows=5, trim=True, consumer="x"
    )


def test_a_redis_that_is_gone_is_a_clear_error_within_seconds(redis_factory: Callable[..., RedisBox]) -> None:
    box = redis_factory(tcp=True)
    options = CaseInsensitiveDict({"redis": box.url})
    reader = EventsStreamReader(options, EVENTS)
    with redis_door.open_broker(options) as broker:
        broker.queue("q")
        emit(broker, 1)
    start = reader.initialOffset()
    (task,) = reader.partitions(start, offsets(reader, start))
    box.close()
    began_at = time.monotonic()
    for act in (lambda: offsets(reader, start), lambda: ids_of(reader, task), lambda: make_batch(options)):
        with pytest.raises(QueueUnavailable, match="cannot be used now"):
            act()
    assert time.monotonic() - began_at < 15
    reader.stop()


def make_batch(options: CaseInsensitiveDict) -> Any:
    return EventsReader(options, EVENTS).partitions()


def test_a_commit_that_does_not_get_through_is_left_to_the_next_one(
    redis_factory: Callable[..., RedisBox], caplog: pytest.LogCaptureFixture
) -> None:
    box = redis_factory(tcp=True, aof="always")
    options = CaseInsensitiveDict({"redis": box.url, "trim": "true"})
    reader = EventsStreamReader(options, EVENTS)
    with redis_door.open_broker(options) as broker:
        broker.queue("q")
        emit(broker, 1, 2)
        end = offsets(reader, reader.initialOffset())
        box.kill()
        with caplog.at_level(logging.WARNING):
            reader.commit(end)
        assert "the next commit will do it" in caplog.text
        box.start()
        reader.commit(end)
        assert events.cursors(broker, "q", 0) == {"history": "2-0"}
    reader.stop()


def test_executors_need_no_django() -> None:
    program = "import sys, django_delayq.core.events, django_delayq.pipeline.events; print('django' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")
