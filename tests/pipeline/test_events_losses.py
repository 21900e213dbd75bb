"""The readers of events without Spark around them: what was lost on the way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_delayq.core.broker import Broker
from django_delayq.pipeline.errors import EventsLost

from .events_stage import Make, emit, ids, ids_of, named, offsets, readers


@pytest.fixture
def make(redis_url: str, broker: Broker) -> Iterator[Make]:
    with readers(redis_url, broker) as made:
        yield made


# -- losses


def test_events_that_were_taken_off_unread_are_a_loss_that_says_where(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2, 3, 4)
    reader = make()
    start = {"q": {"0": "2-2"}}
    assert ids(reader, start, offsets(reader, start)) == named(3, 4)
    broker.client.xtrim(broker.shard("q", 0).names["event"], minid="4-0", approximate=False)
    with pytest.raises(EventsLost, match=r"queue 'q', shard 0, behind 2-2: .*failOnDataLoss"):
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
    (task,) = make().partitions(start, {"q": {"0": "10-20"}})
    with pytest.raises(EventsLost, match="smaller numbers"):
        ids_of(make(), task)
    lenient = make(failOnDataLoss=False)
    end = offsets(lenient, start)
    assert (end, ids(lenient, start, end)) == ({}, []), "the shard joins the next batch"
    assert ids(lenient, end, offsets(lenient, end)) == named(*range(11, 21))


def test_an_older_copy_of_the_stream_is_a_loss(broker: Broker, make: Make) -> None:
    broker.queue("q")
    emit(broker, 1, 2)
    with pytest.raises(EventsLost, match="ends at 2-2"):
        offsets(make(), {"q": {"0": "5-5"}})
    emit(broker, 8, 9, 10)
    with pytest.raises(EventsLost, match="behind 5-5: the next events have smaller numbers"):
        offsets(make(), {"q": {"0": "5-5"}})


def test_who_accepts_losses_goes_on_with_what_is_there_and_hears_of_each_once(
    broker: Broker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.queue("q", shards=2)
    emit(broker, *range(1, 9))
    emit(broker, 1, number=1)
    broker.client.xtrim(broker.shard("q", 0).names["event"], minid="6-0", approximate=False)
    reader = make(failOnDataLoss=False)
    start = {"q": {"0": "2-2", "1": "7-7"}}
    end = offsets(reader, start)
    assert end == {"q": {"0": "8-8"}}, "the other shard joins the next batch, which reads it from its beginning"
    assert len(caplog.records) == 2
    assert offsets(reader, start) == end
    assert len(caplog.records) == 2
    assert ids(reader, start, end) == named(6, 7, 8)
    assert offsets(reader, end) == {"q": {"0": "8-8", "1": "1-1"}}


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
    monkeypatch.setattr("django_delayq.pipeline.events.BATCH", 5)
    monkeypatch.setattr("django_delayq.pipeline.events.PIECE", 5)
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
    monkeypatch.setattr("django_delayq.pipeline.events.BATCH", 5)
    monkeypatch.setattr("django_delayq.pipeline.events.PIECE", 5)
    broker.queue("q")
    emit(broker, *range(1, 100))
    reader = make(fetch=5)
    (task,) = reader.partitions({}, {"q": {"0": "99-99"}})
    batches = reader.read(task)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert ids_of(reader, task) == named(*range(1, 100))
