"""Streams of finished attempts: positions, retention, and the end of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from django_delayq.core import Broker, InvalidJob, QueueUnavailable, RedisConfig, connect, events
from tests.support.core_stored import assert_invariants, shard_key
from tests.support.event_entries import add, last_position, pack, read_events
from tests.support.redis_box import RedisBox

from .epochs_stage import reshard, take_all
from .events_stage import (
    Stream,
    entries,
    entries_behind,
    ids,
    known_places,
    position_parts,
    read_entries,
    read_streams,
    run,
    run_singly,
)
from .stage import Stage

pytestmark = pytest.mark.usefixtures("impatient")


# -- positions


def test_positions_are_compared_as_numbers() -> None:
    assert max("9-5", "10-5", "99-4", key=position_parts) == "99-4"
    assert position_parts("18446744073709551615-1700000000000") == (2**64 - 1, 1_700_000_000_000)


@pytest.mark.parametrize("wrong", ["", "5", "5-", "-5", "5-x", "+", "$", "(5-0", "5-0 ", "9" * 40 + "-0", None, 5])
def test_what_is_no_position_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidJob, match="no position"):
        position_parts(wrong)


# -- the cap


def test_an_unread_stream_grows_up_to_its_cap_and_no_further(broker: Broker) -> None:
    small = Broker(broker.connection, prefix=broker.prefix, event_cap=50)
    queue = small.queue("q")
    run(queue, 50)
    first = ids(small)[0]
    for _ in range(6):
        run(queue, 200)
        assert 50 <= len(ids(small)) <= 150
    following = entries_behind(small, {("q", 0): first})["q", 0]
    assert following is not None
    assert position_parts(following.before) > position_parts(first), "the reader sees what it missed"


def test_single_events_are_capped_like_those_of_large_calls(broker: Broker) -> None:
    small = Broker(broker.connection, prefix=broker.prefix, event_cap=40)
    queue = small.queue("q")
    for _ in range(3):
        run_singly(queue, 200)
        assert 40 <= len(ids(small)) <= 40 + 100, "a node of Redis's radix tree has up to 100 entries"


def test_a_cap_of_nothing_keeps_nothing(broker: Broker) -> None:
    none = Broker(broker.connection, prefix=broker.prefix, event_cap=0)
    run(none.queue("q"), 3)
    assert ids(none) == []
    assert last_position(none, "q", 0) == "0-0"


def test_how_far_a_reader_is_behind(broker: Broker) -> None:
    broker.queue("q", shards=3)
    add(broker, "q", 1, [(ms * 1000, [pack()]) for ms in range(1, 11)])
    assert events.lag(broker, {}) == [events.Lag("q", 1, "0-0", "10-10000", 10, 0)]
    assert events.lag(broker, {("q", 1): "4-4000"}) == [events.Lag("q", 1, "4-4000", "10-10000", 6, 6000)]
    assert events.lag(broker, {("q", 1): "10-10000"}) == [events.Lag("q", 1, "10-10000", "10-10000", 0, 0)]
    broker.client.xtrim(shard_key(broker.queue("q"), "event", 1), minid="9-0", approximate=False)
    assert events.lag(broker, {})[0].events == 2, "only what is left counts"
    broker.queue("other")
    add(broker, "other", 0, [(1, [pack()])])
    assert {lag.queue for lag in events.lag(broker, {})} == {"q", "other"}


# -- the end of an epoch


@pytest.fixture
def drained(stage: Stage) -> Iterator[Stage]:
    """Provide an old epoch that holds only its events."""
    stage.put("a")
    stage.done(stage.take_one())
    reshard(stage, 2)
    stage.wait(200_000)
    yield stage
    assert_invariants(stage.broker)


def test_the_events_of_a_retired_epoch_stay_for_a_day(drained: Stage) -> None:
    broker = drained.broker
    before, end = read_events(broker, "q", 0), last_position(broker, "q", 0)
    stream = broker.shard("q", 0).names["event"]
    assert broker.epochs.retire("q") == [0]
    assert 86_000 < broker.client.ttl(stream) <= 86_400
    assert read_events(broker, "q", 0) == before != []
    assert known_places(broker) == [("q", 0), *(("q", number) for number in drained.queue.numbers)]
    assert [(one.shard, one.events) for one in events.lag(broker, {("q", 0): before[0].position})] == [
        (0, len(before) - 1)
    ]
    broker.client.delete(stream)
    assert read_streams(broker, [("q", 0)])["q", 0] == Stream(last=end, ended=True)
    assert events.lag(broker, {}) == []


def test_an_epoch_that_comes_and_goes_between_two_reads_is_found(drained: Stage) -> None:
    broker = drained.broker
    drained.put("b")
    (job,) = take_all(drained.queue)
    drained.done(job)
    reshard(drained, 3)
    drained.wait(200_000)
    assert broker.epochs.retire("q") == [0, 1]
    assert [epoch for epoch, _ in drained.queue.epochs] == [2]
    assert ("q", job.shard) in known_places(broker, ["q"])
    assert [event.id for event in read_events(broker, "q", job.shard)] == ["b"]
    assert known_places(broker, ["other"]) == []


def test_a_deletion_removes_the_events_of_all_epochs_and_says_where_they_ended(drained: Stage) -> None:
    broker = drained.broker
    broker.epochs.retire("q")
    end = last_position(broker, "q", 0)
    streams = [broker.shard("q", number).names["event"] for number in (0, *drained.queue.numbers)]
    assert broker.delete_queue("q", force=True)
    assert read_streams(broker, [("q", 0)])["q", 0] == Stream(last=end, ended=True)
    assert not any(map(broker.client.exists, streams))


# -- other servers


def test_events_are_read_on_a_cluster(cluster_broker: Broker) -> None:
    queue = cluster_broker.queue("q", shards=6)
    run(queue, 120)
    places = [("q", number) for number in range(6)]
    ends = {place: stream.last for place, stream in read_streams(cluster_broker, places).items()}
    assert set(entries_behind(cluster_broker, ends).values()) == {None}
    assert all(entries_behind(cluster_broker, dict.fromkeys(places, "0-0")).values())
    assert {lag.events for lag in events.lag(cluster_broker, ends)} == {0}
    sizes = [len(entries(cluster_broker, number)) for number in range(6)]
    manager = cluster_broker.client.nodes_manager
    primaries = cluster_broker.client.get_primaries()
    other = {node.name: primaries[place - 1] for place, node in enumerate(primaries)}
    manager.slots_cache = {slot: [other[nodes[0].name]] for slot, nodes in manager.slots_cache.items()}
    assert [len(entries(cluster_broker, number)) for number in range(6)] == sizes, (
        "a client with a wrong map is sent on"
    )


def test_a_redis_that_is_gone_is_a_clear_error(redis_factory: Callable[..., RedisBox]) -> None:
    box = redis_factory(tcp=True)
    connection = connect(RedisConfig.parse({"URL": box.url, "RETRIES": 0}))
    broker = Broker(connection)
    run(broker.queue("q"), 1)
    box.close()
    for act in (lambda: read_entries(broker, "q", 0), lambda: last_position(broker, "q", 0)):
        with pytest.raises(QueueUnavailable):
            act()
    connection.close()
