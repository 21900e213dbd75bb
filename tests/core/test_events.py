"""Events of finished attempts: positions, retention, the end of an epoch, entries, and the newest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from django_delayq.core import (
    Broker,
    InvalidJob,
    Misconfigured,
    NewJob,
    Queue,
    QueueUnavailable,
    RedisConfig,
    ack,
    connect,
    events,
    fail,
)
from django_delayq.core.events import FIELD, Event, EventEntry, EventFilter, Stream, newest
from tests.support.core_stored import assert_invariants, shard_key
from tests.support.event_entries import add, last_position, pack, read_events
from tests.support.redis_box import RedisBox

from .epochs_stage import reshard, take_all
from .stage import Stage

pytestmark = pytest.mark.usefixtures("impatient")


def run(queue: Queue, number: int, *, singly: bool = False) -> None:
    """Schedule and complete ``number`` jobs, perhaps each by a call of its own."""
    queue.schedule_many(NewJob(f"j{n}", "work") for n in range(number))
    while jobs := take_all(queue):
        for some in [[job] for job in jobs] if singly else [jobs]:
            assert all(queue.settle([ack(job, 1, 2) for job in some]))


def ids(broker: Broker, number: int = 0) -> list[str]:
    """Return the positions of all events of a shard."""
    return [event.position for event in read_events(broker, "q", number, limit=10_000)]


def entries(broker: Broker, number: int = 0) -> list[EventEntry]:
    return events.entries(broker, "q", number, limit=1000)


# -- positions


def test_positions_are_compared_as_numbers() -> None:
    assert max("9-5", "10-5", "99-4", key=events.parts) == "99-4"
    assert events.parts("18446744073709551615-1700000000000") == (2**64 - 1, 1_700_000_000_000)


@pytest.mark.parametrize("wrong", ["", "5", "5-", "-5", "5-x", "+", "$", "(5-0", "5-0 ", "9" * 40 + "-0", None, 5])
def test_what_is_no_position_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidJob, match="no position"):
        events.parts(wrong)


# -- the cap


def test_an_unread_stream_grows_up_to_its_cap_and_no_further(broker: Broker) -> None:
    small = Broker(broker.connection, prefix=broker.prefix, event_cap=50)
    queue = small.queue("q")
    run(queue, 50)
    first = ids(small)[0]
    for _ in range(6):
        run(queue, 200)
        assert 50 <= len(ids(small)) <= 150
    following = events.following(small, {("q", 0): first})["q", 0]
    assert following is not None
    assert events.parts(following.before) > events.parts(first), "the reader sees what it missed"


def test_single_events_are_capped_like_those_of_large_calls(broker: Broker) -> None:
    none = Broker(broker.connection, prefix=broker.prefix, event_cap=0)
    run(none.queue("q"), 3)
    assert (ids(none), last_position(none, "q", 0)) == ([], "0-0")
    small = Broker(broker.connection, prefix=broker.prefix, event_cap=40)
    queue = small.queue("q")
    for _ in range(3):
        run(queue, 200, singly=True)
        assert 40 <= len(ids(small)) <= 40 + 100, "a node of Redis's radix tree has up to 100 entries"


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
    assert events.known_places(broker) == [("q", 0), *(("q", number) for number in drained.queue.numbers)]
    assert [(one.shard, one.events) for one in events.lag(broker, {("q", 0): before[0].position})] == [
        (0, len(before) - 1)
    ]
    broker.client.delete(stream)
    assert events.streams(broker, [("q", 0)])["q", 0] == Stream(last=end, ended=True)
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
    assert ("q", job.shard) in events.known_places(broker, ["q"])
    assert [event.id for event in read_events(broker, "q", job.shard)] == ["b"]
    assert events.known_places(broker, ["other"]) == []


def test_a_deletion_removes_the_events_of_all_epochs_and_says_where_they_ended(drained: Stage) -> None:
    broker = drained.broker
    broker.epochs.retire("q")
    end = last_position(broker, "q", 0)
    streams = [broker.shard("q", number).names["event"] for number in (0, *drained.queue.numbers)]
    assert broker.delete_queue("q", force=True)
    assert events.streams(broker, [("q", 0)])["q", 0] == Stream(last=end, ended=True)
    assert not any(map(broker.client.exists, streams))


# -- other servers


def test_events_are_read_on_a_cluster(cluster_broker: Broker) -> None:
    queue = cluster_broker.queue("q", shards=6)
    run(queue, 120)
    places = [("q", number) for number in range(6)]
    ends = {place: stream.last for place, stream in events.streams(cluster_broker, places).items()}
    assert set(events.following(cluster_broker, ends).values()) == {None}
    assert all(events.following(cluster_broker, dict.fromkeys(places, "0-0")).values())
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
    for act in (lambda: events.entries(broker, "q", 0), lambda: last_position(broker, "q", 0)):
        with pytest.raises(QueueUnavailable):
            act()
    connection.close()


# -- reading of event entries: from a position, and whatever they hold -------------------------------------------------


def test_words_are_read_whatever_they_hold(broker: Broker) -> None:
    broker.queue("q")
    add(broker, "q", 0, [(ms, [pack(outcome=b"\xff\r\n$3\r\n", extra="*2\r\n:x:y")]) for ms in (1, 2, 3)])
    assert [entry.position for entry in events.entries(broker, "q", 0, "1-1", limit=1)] == ["2-2"]
    assert [entry.position for entry in events.entries(broker, "q", 0, "1-1", until="2-2")] == ["2-2"]
    assert events.entries(broker, "q", 7) == []
    assert [event.position for event in read_events(broker, "q", 0, "1-1")] == ["2-2", "3-3"]
    first, *_ = read_events(broker, "q", 0)
    assert (first.outcome, first.fields) == ("�\r\n$3\r\n", {"*2\r\n": "x:y"})


@pytest.mark.parametrize(
    "fields",
    [
        {"outcome": "succeeded"},
        {"worker": "w", FIELD: ""},
        {"worker": "w", FIELD: b"a\0b\0"},
        {"worker": "w", FIELD: pack(outcome="a") + b"b"},
        {"worker": "w", "events": pack(outcome="a")},
        {"worker": "w", "events-0": pack(outcome="a")},
    ],
)
def test_an_entry_that_no_script_wrote_is_an_event_without_values(broker: Broker, fields: dict[str, bytes]) -> None:
    queue = broker.queue("q")
    run(queue, 1)
    position = broker.client.xadd(shard_key(queue, "event", 0), fields).decode()
    *_, last = read_events(broker, "q", 0)
    assert (last.position, last.outcome, last.id) == (position, "", "")
    run(queue, 1)
    assert [event.outcome for event in read_events(broker, "q", 0)] == ["bulk", "succeeded", "", "bulk", "succeeded"]


def test_a_stream_that_ends_in_the_future_takes_events_all_the_same(broker: Broker) -> None:
    queue = broker.queue("q")
    future = f"{int(broker.now_ms()) + 10**9}-7"
    broker.client.xadd(shard_key(queue, "event", 0), {"a": "b"}, id=future)
    run(queue, 2)
    assert [event.outcome for event in read_events(broker, "q", 0, after=future)] == ["bulk", "succeeded", "succeeded"]
    assert last_position(broker, "q", 0) == ids(broker)[-1]


def test_a_call_with_very_many_events_leaves_several_entries(broker: Broker) -> None:
    queue = broker.queue("q")
    run(queue, 7)
    assert [entry.size for entry in entries(broker)] == [1, 7], "the bulk load, and the acks"
    stored = broker.client.xrange(shard_key(queue, "event", 0))
    assert [list(fields) for _, fields in stored] == [[b"worker", FIELD]] * 2
    run(queue, 120)
    sizes = [entry.size for entry in entries(broker)]
    assert max(sizes) <= 50 and sum(sizes) == 8 + 121
    assert [events.parts(position)[0] for position in ids(broker)] == list(range(1, 8 + 122))
    assert ids(broker)[-1] == entries(broker)[-1].position == last_position(broker, "q", 0)


def test_reading_resumes_after_a_whole_entry(broker: Broker) -> None:
    queue = broker.queue("q")
    run(queue, 70)
    whole = read_events(broker, "q", 0)
    for limit in (1, 3, 50, 71):
        found: list[Event] = []
        while page := read_events(broker, "q", 0, found[-1].position if found else "0-0", limit):
            assert len(page) < limit + 50, "the last entry is whole"
            found += page
        assert found == whole


def test_an_attempt_is_packed_and_read_back(broker: Broker) -> None:
    queue = broker.queue("q")
    queue.schedule(NewJob("é\r\n", "work"))
    (job,) = take_all(queue)
    odd = fail(job, 1, 2, delay_ms=9, error_class="a\0b" + "c" * 400)
    assert queue.settle([odd]) == [True]
    (event,) = read_events(broker, "q", 0)
    assert (event.id, event.fields["error"]) == ("é\r\n", "a?b" + "c" * 252)


@pytest.mark.server
def test_an_entry_is_asked_for_again_when_the_line_breaks(broker: Broker) -> None:
    queue = broker.queue("q")
    run(queue, 3)
    whole = entries(broker)
    broker.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert events.entries(broker, "q", 0) == whole


@pytest.mark.one_server("the server is the test's own")
def test_how_a_stream_stands_is_told_of_many_shards_at_once(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    places = [("q", 0), ("q", 1), ("q", 99), ("nobody", 0)]
    assert events.streams(broker, places) == dict.fromkeys(places, Stream())
    assert last_position(broker, "q", 0) == "0-0"
    add(broker, "q", 1, [(5, [pack()]), (6, [pack(id="a"), pack(id="b")]), (7, [pack(id="c")])])
    broker.client.xtrim(shard_key(queue, "event", 1), minid="2-0", approximate=False)
    found = events.streams(broker, places)
    assert found["q", 1] == Stream("1-6", "4-7")
    assert found["q", 1].size == 3
    assert found["q", 0] == Stream()
    assert last_position(broker, "q", 1) == "4-7"
    after = events.following(broker, {("q", 1): "3-6", ("q", 0): "0-6", ("nobody", 0): "1-1"})
    assert after == {("q", 1): EventEntry(4, 7, b"", pack(id="c")), ("q", 0): None, ("nobody", 0): None}
    assert events.following(broker, {("q", 1): "1-5"})["q", 1] == EventEntry(3, 6, b"", pack(id="a") + pack(id="b"))


@pytest.mark.broken_on_purpose
def test_a_key_that_is_no_stream_is_an_error_and_not_an_empty_one(broker: Broker) -> None:
    broker.client.set(shard_key(broker.queue("q"), "event", 0), "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        last_position(broker, "q", 0)
    broker.client.delete(shard_key(broker.queue("q"), "event", 0))


# -- other columns


def test_an_entry_of_another_release_is_refused(broker: Broker) -> None:
    broker.client.xadd(shard_key(broker.queue("q"), "event", 0), {"worker": "w", "events-999": b"\0" * 77}, id="2-5")
    for read in (
        lambda: read_events(broker, "q", 0),
        lambda: events.entries(broker, "q", 0),
        lambda: events.following(broker, {("q", 0): "0-0"}),
        lambda: events.lag(broker, {}),
    ):
        with pytest.raises(Misconfigured, match="wrote event entry 2-5; upgrade django_delayq"):
            read()


# -- the newest events, read from the ends of the streams --------------------------------------------------------------


def run_in(broker: Broker, queue: str, ident: str, *, task: str = "work", error: str = "") -> None:
    """Schedule a job and end one attempt of it."""
    opened = broker.queue(queue, shards=3)
    opened.schedule(NewJob(ident, task))
    (job,) = opened.reserve_id(ident, worker="w1", ttr_ms=60_000).jobs
    opened.settle([fail(job, 1, 7, delay_ms=60_000, error_class=error)] if error else [ack(job, 1, 7)])


def newest_of(broker: Broker, *, limit: int = 200, **wanted: str) -> list[tuple[str, str, str]]:
    return [(one.queue, one.id, one.outcome) for one in newest(broker, EventFilter(**wanted), limit)]


@pytest.fixture
def past(broker: Broker) -> Broker:
    """Four attempts of two queues, one of them failed."""
    run_in(broker, "orders", "a")
    run_in(broker, "mail", "b", task="send")
    run_in(broker, "orders", "c", error="LookupError")
    run_in(broker, "orders", "a")
    return broker


def test_the_latest_event_comes_first_whatever_its_queue(past: Broker) -> None:
    assert newest_of(past) == [
        ("orders", "a", "succeeded"),
        ("orders", "c", "failed"),
        ("mail", "b", "succeeded"),
        ("orders", "a", "succeeded"),
    ]
    assert newest_of(past, limit=1) == [("orders", "a", "succeeded")]
    (event,) = newest(past, EventFilter(outcome="failed"))
    told = {"error": "LookupError", "ms": "7", "attempt": "1", "worker": "w1"}
    assert event.fields.items() >= told.items()


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({"queue": "orders"}, ["a", "c", "a"]),
        ({"task": "send"}, ["b"]),
        ({"outcome": "failed"}, ["c"]),
        ({"id": "a"}, ["a", "a"]),
        ({"queue": "orders", "id": "c"}, ["c"]),
        ({"queue": "mail", "id": "c"}, []),
        ({"queue": "nowhere"}, []),
    ],
)
def test_events_are_filtered(past: Broker, wanted: dict[str, str], ids: list[str]) -> None:
    assert [ident for _, ident, _ in newest_of(past, **wanted)] == ids


def test_attempts_of_an_id_are_found_after_a_change_of_the_shards(past: Broker) -> None:
    past.reshard("orders", 5)
    run_in(past, "orders", "a")
    assert len(newest_of(past, queue="orders", id="a")) == 3


def test_a_reading_is_bounded(past: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_ENTRIES", 1)
    monkeypatch.setattr(events, "FEWEST_ENTRIES", 1)
    run_in(past, "orders", "a")
    assert len(newest(past, EventFilter("orders", id="a"))) == 1


def test_a_deleted_queue_and_a_bulk_load_have_no_events(past: Broker) -> None:
    past.delete_queue("orders", force=True)
    assert newest_of(past) == [("mail", "b", "succeeded")]
