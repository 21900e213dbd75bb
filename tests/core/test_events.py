"""Streams of finished attempts: positions, cursors of consumers, and retention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from django_delayq.core import Broker, InvalidJob, QueueUnavailable, RedisConfig, connect, events
from tests.support.core_stored import assert_invariants, shard_key
from tests.support.event_entries import add, pack
from tests.support.redis_box import RedisBox

from .epochs_stage import reshard, take_all
from .events_stage import (
    Stream,
    entries,
    entries_behind,
    ids,
    latest_position,
    position_parts,
    read_entries,
    read_streams,
    run,
    run_singly,
)
from .stage import Stage

pytestmark = pytest.mark.usefixtures("impatient")

#: cursors trim up to themselves here; tests/core/test_events_kept.py has the newest events that stay
advance = partial(events.advance, keep=0)
advance_all = partial(events.advance_all, keep=0)


# -- positions


def test_positions_are_compared_as_numbers() -> None:
    assert latest_position("5-9", "5-10", "4-99") == "5-10"
    assert position_parts("1700000000000-18446744073709551615") == (1_700_000_000_000, 2**64 - 1)


@pytest.mark.parametrize("wrong", ["", "5", "5-", "-5", "5-x", "+", "$", "(5-0", "5-0 ", "9" * 40 + "-0", None, 5])
def test_what_is_no_position_is_refused(broker: Broker, wrong: str) -> None:
    with pytest.raises(InvalidJob, match="no position"):
        position_parts(wrong)
    with pytest.raises(InvalidJob, match="no position"):
        advance(broker, "q", 0, "c", wrong)


@pytest.mark.parametrize("wrong", ["", "a b", "a:b", "ä", "x" * 65, None, "a\n"])
def test_what_is_no_name_of_a_consumer_is_refused(broker: Broker, wrong: str) -> None:
    for act in (
        lambda: events.follow(broker, wrong),
        lambda: events.forget(broker, wrong),
        lambda: advance(broker, "q", 0, wrong, "1-0"),
        lambda: events.lag(broker, wrong),
    ):
        with pytest.raises(InvalidJob, match="consumer name"):
            act()


# -- cursors


def test_a_cursor_trims_up_to_itself_and_its_entry_stays(broker: Broker) -> None:
    run_singly(broker.queue("q"), 10)
    before = ids(broker)
    assert advance(broker, "q", 0, "history", before[6]) == before[6]
    assert ids(broker) == before[6:]
    assert events.cursors(broker, "q", 0) == {"history": before[6]}
    assert advance(broker, "q", 0, "history", before[-1]) == before[-1]
    assert ids(broker) == before[-1:]


def test_a_cursor_in_the_middle_of_an_entry_keeps_the_entry(broker: Broker) -> None:
    run(broker.queue("q"), 10)
    before = ids(broker)
    assert advance(broker, "q", 0, "history", before[4]) == before[4]
    assert ids(broker) == before[1:], "the bulk load is an entry of its own"
    assert events.lag(broker, "history")[0].events == 6


def test_a_cursor_never_goes_back(broker: Broker) -> None:
    run_singly(broker.queue("q"), 5)
    before = ids(broker)
    advance(broker, "q", 0, "history", before[3])
    assert advance(broker, "q", 0, "history", before[1]) == before[3]
    assert advance(broker, "q", 0, "history", "0-0") == before[3]
    assert ids(broker) == before[3:]


def test_the_slowest_of_all_who_follow_decides_what_is_trimmed(broker: Broker) -> None:
    queue = broker.queue("q")
    run_singly(queue, 10)
    before = ids(broker)
    events.follow(broker, "slow")
    events.follow(broker, "elsewhere", ["other"])
    assert advance(broker, "q", 0, "fast", before[8]) == before[8]
    assert ids(broker) == before, "slow was never here, and has read nothing"
    advance(broker, "q", 0, "slow", before[4])
    assert ids(broker) == before[4:]
    advance(broker, "q", 0, "slow", before[9])
    assert ids(broker) == before[8:]
    assert events.cursors(broker, "q", 0) == {"fast": before[8], "slow": before[9]}


def test_a_cursor_that_nobody_registered_counts_as_well(broker: Broker) -> None:
    run_singly(broker.queue("q"), 4)
    before = ids(broker)
    advance(broker, "q", 0, "quiet", before[0])
    advance(broker, "q", 0, "history", before[3], others=["history"])
    assert ids(broker) == before


def test_cursors_are_found_among_any_number_of_ticks(broker: Broker) -> None:
    queue = broker.queue("q")
    run_singly(queue, 5)
    before = ids(broker)
    meta = shard_key(queue, "meta", 0)
    broker.client.hset(meta, mapping={f"tick:{number} cursor:x": number for number in range(5000)})
    broker.client.hset(meta, mapping={f"cursor:other-{number}": before[3] for number in range(40)})
    broker.client.hset(meta, "cursor:unheard", before[1])
    assert advance(broker, "q", 0, "history", before[4]) == before[4]
    assert ids(broker) == before[1:]
    assert len(events.cursors(broker, "q", 0)) == 42


def test_positions_are_compared_as_numbers_and_not_as_texts(broker: Broker) -> None:
    shard = broker.queue("q").shard(0)
    at = ["9-0", "10-9", "10-10", "10-18446744073709551614", "10-18446744073709551615"]
    for position in at:
        broker.client.xadd(shard.names["event"], {"worker": "", "events": pack()}, id=position)
    broker.client.hset(shard.names["meta"], "last_event", at[-1])
    for place, position in enumerate(at):
        assert advance(broker, "q", 0, "history", position) == position
        assert ids(broker) == at[place:]
        assert advance(broker, "q", 0, "history", at[max(0, place - 1)]) == position


def test_a_position_of_a_stream_that_was_lost_trims_nothing(broker: Broker) -> None:
    run_singly(broker.queue("q"), 3)
    before = ids(broker)
    assert advance(broker, "q", 0, "history", "99999999999999-0") is None
    assert events.cursors(broker, "q", 0) == {}
    assert ids(broker) == before
    advance(broker, "q", 0, "history", before[1])
    assert advance(broker, "q", 0, "history", "99999999999999-0") == before[1]
    assert ids(broker) == before[1:]


def test_a_shard_that_is_not_there_is_not_made_by_a_cursor(broker: Broker) -> None:
    broker.queue("q")
    assert advance(broker, "q", 7, "history", "5-0") is None
    assert not broker.client.exists(broker.shard("q", 7).names["meta"])


def test_all_cursors_move_in_one_step_and_the_consumer_is_known_from_then_on(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    run(queue, 20)
    ends = {number: ids(broker, number)[-1] for number in (0, 1)}
    advance_all(broker, "history", {"q": {**ends, 2: "0-0"}}, queues=["q"])
    assert [len(entries(broker, number)) for number in (0, 1)] == [1, 1]
    (known,) = events.consumers(broker)
    assert (known.name, known.queues, known.follows("q"), known.follows("p")) == ("history", ("q",), True, False)
    assert abs(known.heard_ms - broker.now_ms()) < 60_000
    assert events.followers(broker, "q") == ["history"]
    assert events.followers(broker, "p") == []


def test_a_consumer_that_is_forgotten_holds_nothing_back(broker: Broker) -> None:
    queue = broker.queue("q")
    run_singly(queue, 5)
    before = ids(broker)
    events.follow(broker, "gone")
    advance(broker, "q", 0, "gone", before[0])
    advance(broker, "q", 0, "history", before[4])
    assert ids(broker) == before
    assert events.forget(broker, "gone")
    assert not events.forget(broker, "gone")
    advance(broker, "q", 0, "history", before[4])
    assert ids(broker) == before[4:]
    assert events.cursors(broker, "q", 0) == {"history": before[4]}
    assert advance(broker, "q", 0, "gone", before[4]) == before[4], "it may come again"


def test_an_unread_stream_grows_up_to_its_cap_and_no_further(broker: Broker) -> None:
    small = Broker(broker.connection, prefix=broker.prefix, event_cap=50)
    queue = small.queue("q")
    events.follow(small, "history")
    run(queue, 50)
    first = ids(small)[0]
    advance(small, "q", 0, "history", first)
    for _ in range(6):
        run(queue, 200)
        assert 50 <= len(ids(small)) <= 150
    following = entries_behind(small, {("q", 0): first})["q", 0]
    assert following is not None
    assert position_parts(following.before)[1] > position_parts(first)[1], "the reader sees what it missed"


def test_single_events_are_capped_like_those_of_large_calls(broker: Broker) -> None:
    small = Broker(broker.connection, prefix=broker.prefix, event_cap=40)
    queue = small.queue("q")
    for _ in range(3):
        run_singly(queue, 100)
        assert 40 <= len(ids(small)) <= 46


def test_a_cap_of_nothing_keeps_nothing(broker: Broker) -> None:
    none = Broker(broker.connection, prefix=broker.prefix, event_cap=0)
    run(none.queue("q"), 3)
    assert ids(none) == []
    assert events.last(none, "q", 0) == "0-0"


def test_how_far_a_consumer_is_behind(broker: Broker) -> None:
    broker.queue("q", shards=3)
    add(broker, "q", 1, [(ms * 1000, [pack()]) for ms in range(1, 11)])
    assert events.lag(broker, "history") == [events.Lag("q", 1, "0-0", "10000-10", 10, 0)]
    advance(broker, "q", 1, "history", "4000-4")
    assert events.lag(broker, "history") == [events.Lag("q", 1, "4000-4", "10000-10", 6, 6000)]
    advance_all(broker, "history", {"q": {1: "10000-10"}}, queues=["q"])
    assert events.lag(broker, "history") == [events.Lag("q", 1, "10000-10", "10000-10", 0, 0)]
    broker.queue("other")
    add(broker, "other", 0, [(1, [pack()])])
    assert {lag.queue for lag in events.lag(broker, "history")} == {"q"}
    assert {lag.queue for lag in events.lag(broker, "somebody")} == {"q", "other"}
    left = {lag.queue: lag.events for lag in events.lag(broker, "somebody")}
    assert left == {"q": 1, "other": 1}, "only what is left counts"


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


def test_an_epoch_goes_although_nobody_read_its_events_when_nobody_wants_to(drained: Stage) -> None:
    assert drained.broker.epochs.retire("q") == [0]


def test_an_epoch_stays_until_all_who_follow_have_read_it(drained: Stage) -> None:
    broker = drained.broker
    events.follow(broker, "history")
    events.follow(broker, "elsewhere", ["other"])
    assert broker.epochs.retire("q") == [], "history was never here"
    end = events.last(broker, "q", 0)
    advance(broker, "q", 0, "late", end)
    assert broker.epochs.retire("q") == []
    advance(broker, "q", 0, "history", end)
    assert broker.epochs.retire("q") == [0]
    assert read_streams(broker, [("q", 0)])["q", 0] == Stream(last=end, ended=True)
    meta = broker.client.hgetall(broker.shard("q", 0).names["meta"])
    assert not [field for field in meta if field.startswith(b"cursor:")]
    assert advance(broker, "q", 0, "history", end) is None, "nothing is written to a tombstone"
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
    advance_all(broker, "history", {"q": {0: events.last(broker, "q", 0)}})
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
    assert read_streams(broker, [("q", 0)])["q", 0] == Stream(last=end, ended=True)


# -- other servers


def test_cursors_work_on_a_cluster(cluster_broker: Broker) -> None:
    queue = cluster_broker.queue("q", shards=6)
    run(queue, 120)
    places = [("q", number) for number in range(6)]
    ends = {place: stream.last for place, stream in read_streams(cluster_broker, places).items()}
    assert set(entries_behind(cluster_broker, ends).values()) == {None}
    assert all(entries_behind(cluster_broker, dict.fromkeys(places, "0-0")).values())
    advance_all(cluster_broker, "history", {"q": {number: ends["q", number] for number in range(6)}})
    assert [len(entries(cluster_broker, number)) for number in range(6)] == [1] * 6
    assert {lag.events for lag in events.lag(cluster_broker, "history")} == {0}
    assert events.forget(cluster_broker, "history")
    manager = cluster_broker.client.nodes_manager
    primaries = cluster_broker.client.get_primaries()
    other = {node.name: primaries[place - 1] for place, node in enumerate(primaries)}
    manager.slots_cache = {slot: [other[nodes[0].name]] for slot, nodes in manager.slots_cache.items()}
    assert [len(entries(cluster_broker, number)) for number in range(6)] == [1] * 6, (
        "a client with a wrong map is sent on"
    )


def test_a_redis_that_is_gone_is_a_clear_error(redis_factory: Callable[..., RedisBox]) -> None:
    box = redis_factory(tcp=True)
    connection = connect(RedisConfig.parse({"URL": box.url, "RETRIES": 0}))
    broker = Broker(connection)
    run(broker.queue("q"), 1)
    box.close()
    for act in (
        lambda: read_entries(broker, "q", 0),
        lambda: events.last(broker, "q", 0),
        lambda: advance(broker, "q", 0, "c", "1-0"),
        lambda: events.consumers(broker),
    ):
        with pytest.raises(QueueUnavailable):
            act()
    connection.close()
