"""Reading of event entries: from a position, and whatever they hold."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker, Misconfigured, NewJob, events, fail
from tests.support.core_stored import shard_key
from tests.support.event_entries import add, pack

from .epochs_stage import take_all
from .events_stage import (
    FIELD,
    Event,
    EventEntry,
    entries,
    ids,
    last_position,
    position_parts,
    read_events,
    run,
)


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


def test_a_call_leaves_one_entry_whose_events_have_numbers_of_their_own(broker: Broker) -> None:
    queue = broker.queue("q")
    run(queue, 7)
    assert [entry.size for entry in entries(broker)] == [1, 7], "the bulk load, and the acks"
    assert [position_parts(position)[0] for position in ids(broker)] == list(range(1, 9))
    assert ids(broker)[-1] == entries(broker)[-1].position == last_position(broker, "q", 0)


def test_a_call_with_very_many_events_leaves_several_entries(broker: Broker) -> None:
    queue = broker.queue("q")
    run(queue, 120)
    sizes = [entry.size for entry in entries(broker)]
    assert max(sizes) <= 50 and sum(sizes) == 121
    assert [position_parts(position)[0] for position in ids(broker)] == list(range(1, 122))


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
    assert events.streams(broker, places) == dict.fromkeys(places, events.Stream())
    assert last_position(broker, "q", 0) == "0-0"
    add(broker, "q", 1, [(5, [pack()]), (6, [pack(id="a"), pack(id="b")]), (7, [pack(id="c")])])
    broker.client.xtrim(shard_key(queue, "event", 1), minid="2-0", approximate=False)
    found = events.streams(broker, places)
    assert found["q", 1] == events.Stream("1-6", "4-7")
    assert found["q", 1].size == 3
    assert found["q", 0] == events.Stream()
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


def test_scripts_and_workers_write_the_present_columns(broker: Broker) -> None:
    queue = broker.queue("q")
    run(queue, 2)
    stored = broker.client.xrange(shard_key(queue, "event", 0))
    assert [list(fields) for _, fields in stored] == [[b"worker", FIELD]] * 2
    assert [event.outcome for event in read_events(broker, "q", 0)] == ["bulk", "succeeded", "succeeded"]


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
