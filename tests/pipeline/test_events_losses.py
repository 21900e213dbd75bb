"""The readers of events without Spark around them: what is taken off, and what was lost on the way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_delayq.core import events
from django_delayq.core.broker import Broker
from django_delayq.pipeline.errors import EventsLost
from django_delayq.pipeline.events import commit

from .events_stage import Make, emit, ids, ids_of, named, offsets, options_of, readers


@pytest.fixture
def make(redis_url: str, broker: Broker) -> Iterator[Make]:
    with readers(redis_url, broker) as made:
        yield made


# -- trimming


def test_what_was_committed_is_taken_off_but_for_the_entry_at_the_cursor(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2, 3)
    reader = make(trim=True, keep=0)
    start = reader.initialOffset()
    assert events.followers(broker, "q") == ["history"], "before the first position is fixed"
    end = offsets(reader, start)
    reader.commit(end)
    assert broker.client.xlen(broker.shard("q", 0).names["event"]) == 1
    assert events.cursors(broker, "q", 0) == {"history": "3-3"}
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
    quick, slow = make(trim=True, keep=0), make(trim=True, keep=0, consumer="audit")
    begun = {reader: reader.initialOffset() for reader in (quick, slow)}
    quick.commit(offsets(quick, begun[quick]))
    emit(broker, 4)
    assert ids(slow, begun[slow], offsets(slow, begun[slow])) == named(1, 2, 3, 4)
    slow.commit({"q": {"0": "4-4"}})
    assert broker.client.xlen(broker.shard("q", 0).names["event"]) == 2, "quick has read up to 3"


def test_a_new_queue_is_not_taken_off_before_all_have_seen_it(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1)
    quick, slow = make(trim=True), make(trim=True, consumer="audit")
    start, _ = slow.initialOffset(), quick.initialOffset()
    emit(broker, 1, 2, queue=broker.queue("new").name)
    quick.commit({"new": {"0": "2-2"}, "q": {"0": "1-1"}})
    assert sorted(ids(slow, start, offsets(slow, start))) == named(1, 1, 2)


def test_a_query_that_has_ended_can_be_committed_from_outside(broker: Broker, redis_url: str) -> None:
    broker.queue("q")
    emit(broker, 1, 2)
    commit(options_of(redis_url, broker, consumer="nightly", queue="q"), {"q": {"0": "2-2"}})
    assert events.cursors(broker, "q", 0) == {"nightly": "2-2"}
    assert events.consumers(broker)[0].queues == ("q",)


# -- losses


def test_events_that_were_taken_off_unread_are_a_loss_that_says_where(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2, 3, 4)
    reader = make()
    start = {"q": {"0": "2-2"}}
    assert ids(reader, start, offsets(reader, start)) == named(3, 4)
    broker.client.xtrim(broker.shard("q", 0).names["event"], minid="4-0", approximate=False)
    with pytest.raises(EventsLost, match=r"queue 'q', shard 0 \(epoch 0, place 0\), behind 2-2: .*failOnDataLoss"):
        offsets(reader, start)
    assert offsets(reader, {"q": {"0": "4-4"}}) == {"q": {"0": "4-4"}}, "who has read all has missed nothing"


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


def test_another_redis_with_more_events_is_a_loss(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, *range(11, 21))
    start = {"q": {"0": "5-5"}}
    with pytest.raises(EventsLost, match="behind 5-5: the next events have smaller numbers"):
        offsets(make(), start)
    (task,) = make().partitions(start, {"q": {"0": "20-10"}})
    with pytest.raises(EventsLost, match="smaller numbers"):
        ids_of(make(), task)
    lenient = make(failOnDataLoss=False)
    assert ids(lenient, start, offsets(lenient, start)) == named(*range(11, 21))


def test_an_older_copy_of_the_stream_is_a_loss(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2)
    with pytest.raises(EventsLost, match="ends at 2-2"):
        offsets(make(), {"q": {"0": "5-5"}})
    emit(broker, 8)
    with pytest.raises(EventsLost, match="behind 5-5: the next events have smaller numbers"):
        offsets(make(), {"q": {"0": "5-5"}})


def test_who_accepts_losses_goes_on_with_what_is_there_and_hears_of_each_once(
    broker: Broker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.queue("q", shards=2)
    emit(broker, *range(1, 9))
    emit(broker, 1, number=1)
    broker.client.xtrim(broker.shard("q", 0).names["event"], minid="6-0", approximate=False)
    reader = make(failOnDataLoss=False, trim=True)
    start = {"q": {"0": "2-2", "1": "7-7"}}
    end = offsets(reader, start)
    assert end == {"q": {"0": "8-8", "1": "7-7"}}, "a position never goes back"
    assert len(caplog.records) == 2
    assert offsets(reader, start) == end
    assert len(caplog.records) == 2
    assert ids(reader, start, end) == named(6, 7, 8)
    reader.commit(end)
    assert events.cursors(broker, "q", 1) == {}, "a cursor behind the end of the stream would take off what comes"


def test_a_shard_that_overran_its_cap_before_its_first_read_is_a_loss(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2, 3)
    broker.client.xtrim(broker.shard("q", 0).names["event"], maxlen=2, approximate=False)
    with pytest.raises(EventsLost, match="behind 0-0: 1 events were removed before they were read"):
        offsets(make(), {})


def test_what_is_taken_off_between_the_plan_and_the_task_is_a_loss(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, *range(1, 30))
    key = broker.shard("q", 0).names["event"]
    for start, missing in (({"q": {"0": "3-3"}}, "behind 3-3: 2 events were removed"), ({}, "behind 0-0: 5 events")):
        reader = make(fetch=5)
        (task,) = reader.partitions(start, {"q": {"0": "29-29"}})
        broker.client.xtrim(key, minid="6-0", approximate=False)
        with pytest.raises(EventsLost, match=missing):
            ids_of(reader, task)
        assert ids_of(make(failOnDataLoss=False), task) == named(*range(6, 30))
        broker.client.delete(key)
        with pytest.raises(EventsLost, match="the stream ends here, but went up to 29-29"):
            ids_of(reader, task)
        assert ids_of(make(failOnDataLoss=False), task) == []
        broker.client.hdel(broker.shard("q", 0).names["meta"], "last_event")
        emit(broker, *range(1, 30))


def test_a_shard_that_overran_its_cap_before_a_batch_is_read_again_is_a_loss(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2, 3)
    broker.client.xtrim(broker.shard("q", 0).names["event"], maxlen=2, approximate=False)
    with pytest.raises(EventsLost, match="behind 0-0: 1 events were removed before they were read"):
        ids(make(), {}, {"q": {"0": "3-3"}})
    assert ids(make(failOnDataLoss=False), {}, {"q": {"0": "3-3"}}) == named(2, 3)


def test_what_is_taken_off_while_a_task_reads_is_a_loss(
    broker: Broker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.pipeline.event_reading.BATCH", 5)
    monkeypatch.setattr("django_delayq.pipeline.event_reading.PIECE", 5)
    broker.queue("q")
    emit(broker, *range(1, 100))
    reader = make(fetch=5)
    (task,) = reader.partitions({}, {"q": {"0": "99-99"}})
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
    (task,) = reader.partitions({}, {"q": {"0": "99-99"}})
    batches = reader.read(task)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert ids_of(reader, task) == named(*range(1, 100))
