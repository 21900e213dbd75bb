"""The readers of events without Spark around them: what a batch is, and what a task reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from django_delayq.core.broker import Broker
from django_delayq.pipeline import event_plan
from django_delayq.pipeline.errors import EventsLost
from django_delayq.pipeline.events import EventsReader
from django_delayq.pipeline.schemas import EVENTS

from .events_stage import Make, emit, emit_together, ids, ids_of, named, offsets, options_of, readers, run_to_end


@pytest.fixture
def make(redis_url: str, broker: Broker) -> Iterator[Make]:
    with readers(redis_url, broker) as made:
        yield made


# -- reading on


def test_each_event_is_read_once_and_a_batch_can_be_read_again(broker: Broker, make: Make) -> None:
    broker.queue("q", shards=2)
    emit(broker, 1, 2, 3)
    reader = make()
    start = reader.initialOffset()
    first = offsets(reader, start)
    assert first == {"q": {"0": "3-3", "1": "0-0"}}
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
    assert make(startingOffset="latest").initialOffset() == {"q": {"0": "2-20", "1": "0-0"}}
    assert make(startingOffset="EARLIEST").initialOffset() == {"q": {"0": "0-10", "1": "0-0"}}
    reader = make(startingOffset='{"q": {"0": "1-10"}}')
    start = reader.initialOffset()
    assert start == {"q": {"0": "1-10", "1": "0-0"}}
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
    assert later == {"fourth": {"0": "1-7"}, "q": {"0": "1-1", "1024": "0-0", "1025": "1-5"}, "third": {"0": "1-6"}}
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
    tasks = [
        [(one.number, one.until) for one in task.intervals] for task in reader.partitions(start, offsets(reader, start))
    ]
    assert tasks == [[(0, "2-2"), (2, "2-2")], [(1, "9-9")], [(3, "4-4"), (5, "1-1")], [(4, "5-5")]]
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
    assert max(map(len, batches)) <= max(limit, 3), "an entry of each shard"
    # Each batch takes an equal share of every shard that has unread events.
    assert len(batches) <= 3 * 20 // limit + 3
    assert sorted(ident for batch in batches for ident in batch) == sorted(
        named(50, 60, *range(100, 112), *range(200, 206))
    )


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 20, 1000])
@pytest.mark.parametrize("fetch", [1, 2, 100])
def test_a_batch_has_whole_entries(broker: Broker, make: Make, limit: int, fetch: int) -> None:
    broker.queue("q", shards=2)
    emit_together(broker, *range(100, 111))
    emit(broker, 111)
    emit_together(broker, *range(112, 117))
    emit_together(broker, *range(112, 114), number=1)
    reader = make(maxRowsPerTrigger=limit, fetch=fetch)
    batches = run_to_end(reader, reader.initialOffset(), limit)
    assert max(map(len, batches)) <= limit + 12, "the last entry of each shard is whole"
    assert len(batches) <= 2 * 19 // limit + 3
    assert sorted(ident for batch in batches for ident in batch) == sorted(named(*range(100, 117), 112, 113))


def test_entries_of_one_millisecond_are_told_apart(broker: Broker, make: Make) -> None:
    broker.queue("q")
    for some in ((7, 8, 9), (7, 10), (7,)):
        emit_together(broker, *some)
    reader = make(fetch=1)
    start = {"q": {"0": "0-7"}}
    for end, expected in (("3-7", (7, 8, 9)), ("5-7", (7, 8, 9, 7, 10)), ("6-7", (7, 8, 9, 7, 10, 7))):
        assert ids(reader, start, {"q": {"0": end}}) == named(*expected)
    assert ids(reader, {"q": {"0": "3-7"}}, {"q": {"0": "6-7"}}) == named(7, 10, 7)


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
    ahead = {"q": {"0": "4-4", "1": "1-1"}}
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
    assert found(startingOffset='{"q": {"0": "1-1"}}') == named(2, 3)
    assert found(queue="other") == []
    with pytest.raises(EventsLost):
        found(startingOffset='{"q": {"0": "5-0"}}')


def test_queues_that_a_reader_is_not_asked_for_stay_where_they_are(broker: Broker, make: Make) -> None:
    for name in ("a", "b"):
        emit(broker, 1, 2, queue=broker.queue(name).name)
    start = {"a": {"0": "1-1"}, "b": {"0": "1-1"}, "gone": {"0": "0-7"}}
    some = make(queue="a")
    end = offsets(some, start)
    assert end == {**start, "a": {"0": "2-2"}}
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
    start = {"a": {"0": "1-1"}, "b": {"0": "1-1"}}
    end = offsets(make(queue="a"), start)
    assert end == {"a": {"0": "3-3"}, "b": {"0": "1-1"}}
    with pytest.raises(EventsLost, match="queue 'b'"):
        offsets(make(), end)


def test_queues_that_are_read_another_time_have_positions_from_the_beginning_on(broker: Broker, make: Make) -> None:
    for name in ("a", "b"):
        emit(broker, 1, 2, queue=broker.queue(name).name)
    some = make(queue="a")
    start = some.initialOffset()
    assert set(start) == {"a", "b"}
    end = offsets(some, start)
    assert end == {"a": {"0": "2-2"}, "b": start["b"]}
    assert ids(make(), end, offsets(make(), end)) == named(1, 2)


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
    with pytest.raises(EventsLost, match="the shard is gone, with events up to 2-2"):
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
    assert offsets(reader, end) == {"q": {"1024": "1-9"}}


def move_to(broker: Broker, shards: int) -> None:
    """Open the next epoch, with so many shards, and retire the present one, which holds nothing but events."""
    broker.reshard("q", shards)
    for epoch, place in broker.queue("q").epochs[:-1]:
        for number in range(place):
            broker.client.delete(broker.shard("q", 1024 * epoch + number).names["window"])  # no call is repeated
    assert broker.epochs.retire("q")


def test_no_event_is_missed_through_changes_of_the_shards(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2)
    reader = make()
    end = offsets(reader, reader.initialOffset())
    emit(broker, 3)
    move_to(broker, 2)
    emit(broker, 4, 5, number=1025)
    move_to(broker, 1)
    emit(broker, 6, number=2048)
    later = offsets(reader, end)
    assert later == {"q": {"0": "3-3", "1025": "2-5", "2048": "1-6"}}
    assert sorted(ids(reader, end, later)) == named(3, 4, 5, 6)
    assert offsets(reader, later) == later
    assert sorted(ids(reader, {}, offsets(reader, {}))) == named(1, 2, 3, 4, 5, 6)


def test_a_day_after_its_end_a_shard_that_was_read_leaves_without_a_word(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2)
    reader = make()
    end = offsets(reader, reader.initialOffset())
    move_to(broker, 2)
    broker.client.delete(broker.shard("q", 0).names["event"])
    left = {"q": {"1024": "0-0", "1025": "0-0"}}
    assert offsets(reader, end) == left
    assert offsets(reader, left) == left
    assert make().initialOffset() == left


def test_a_reader_that_was_away_for_longer_than_a_day_sees_what_it_missed(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1)
    reader = make()
    end = offsets(reader, reader.initialOffset())
    move_to(broker, 2)
    emit(broker, 2, 3, number=1025)
    move_to(broker, 1)
    for number in (0, 1024, 1025):
        broker.client.delete(broker.shard("q", number).names["event"])
    with pytest.raises(EventsLost, match=r"shard 1025, .* the shard is gone, with events up to 2-3"):
        offsets(reader, end)
    assert offsets(make(failOnDataLoss=False), end) == {"q": {"2048": "0-0"}}
