"""Event streams of an epoch that ends: it stays until all consumers have read them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_delayq.core import events, streams
from django_delayq.core.operations import fsck

from .epochs_stage import reshard, take_all
from .stage import Stage


@pytest.fixture
def drained(stage: Stage) -> Iterator[Stage]:
    """Provide an old epoch that holds only its events."""
    stage.put("a")
    stage.done(stage.take_one())
    reshard(stage, 2)
    stage.wait(200_000)
    yield stage
    fsck.assert_invariants(stage.broker)


def test_an_epoch_goes_although_nobody_read_its_events_when_nobody_wants_to(drained: Stage) -> None:
    assert drained.broker.epochs.retire("q") == [0]


def test_an_epoch_stays_until_all_who_follow_have_read_it(drained: Stage) -> None:
    broker = drained.broker
    events.follow(broker, "history")
    events.follow(broker, "elsewhere", ["other"])
    assert broker.epochs.retire("q") == [], "history was never here"
    end = events.last(broker, "q", 0)
    events.advance(broker, "q", 0, "late", end)
    assert broker.epochs.retire("q") == []
    events.advance(broker, "q", 0, "history", end)
    assert broker.epochs.retire("q") == [0]
    assert streams.streams(broker, [("q", 0)])["q", 0] == streams.Stream(last=end, ended=True)
    meta = broker.client.hgetall(broker.shard("q", 0).names["meta"])
    assert not [field for field in meta if field.startswith(b"cursor:")]
    assert events.advance(broker, "q", 0, "history", end) is None, "nothing is written to a tombstone"
    assert broker.client.hgetall(broker.shard("q", 0).names["meta"]) == meta


def test_an_epoch_does_not_wait_for_who_follows_its_queue_no_longer(drained: Stage) -> None:
    broker = drained.broker
    events.follow(broker, "old", ["q", "other"])
    drained.broker.client.hset(broker.shard("q", 0).names["meta"], "cursor:old", "5-0")
    assert broker.epochs.retire("q") == []
    events.follow(broker, "old", ["other"])
    assert broker.epochs.retire("q") == [0]


def test_an_epoch_without_events_waits_for_nobody(stage: Stage) -> None:
    events.follow(stage.broker, "history")
    stage.put("a")
    reshard(stage, 2)
    assert stage.queue.cancel("a") == "cancelled"
    shard = stage.queue.shard(0)
    stage.broker.client.delete(shard.names["event"])
    stage.broker.client.hdel(shard.names["meta"], "last_event")
    stage.wait(200_000)
    assert stage.broker.epochs.retire("q") == [0]


def test_an_epoch_that_comes_and_goes_between_two_reads_is_kept(drained: Stage) -> None:
    """The consumer never read the middle epoch, but it is registered, so the epoch is kept."""
    broker = drained.broker
    events.advance_all(broker, "history", {"q": {0: events.last(broker, "q", 0)}})
    drained.put("b")
    (job,) = take_all(drained.queue)
    drained.done(job)
    reshard(drained, 3)
    drained.wait(200_000)
    assert broker.epochs.retire("q") == [0]
    assert [epoch for epoch, _ in drained.queue.epochs] == [1, 2]
    assert [event.id for event in events.read(broker, "q", job.shard)] == ["b"]


def test_a_deletion_by_force_waits_for_nobody_and_says_where_the_events_ended(drained: Stage) -> None:
    broker = drained.broker
    events.follow(broker, "history")
    end = events.last(broker, "q", 0)
    assert broker.delete_queue("q", force=True)
    assert streams.streams(broker, [("q", 0)])["q", 0] == streams.Stream(last=end, ended=True)
