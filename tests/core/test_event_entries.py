"""Reading of event entries: from a position, whatever they hold, and in any version."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker, Misconfigured, NewJob, events, fail
from tests.support.core_stored import shard_key
from tests.support.event_entries import add, add_column, pack

from .epochs_stage import take_all
from .events_stage import (
    FIELD,
    SINCE,
    VERSION,
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
    assert [entry.position for entry in events.begin(broker, "q", 0, "1-1", "2-2", 10)()] == ["2-2"]
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
    answer = events.begin(broker, "q", 0, "0-0", None, 10)
    broker.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert answer() == whole


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


# -- versions


#: two events of version 1, as they lie in Redis
OLD = b"succeeded\0a\0work\x000f\x005\x006\x007\x001\0\0\0\0\0" + b"cancelled\0b\0work\0\0\0\0\0\0\0\0\0by:me\0"


def test_versions_only_append_columns() -> None:
    """Readers of an older entry take its columns as the first ones of the present layout."""
    versions = list(SINCE.values())
    assert versions == sorted(versions)
    assert set(versions) == set(range(1, VERSION + 1))


def test_scripts_and_workers_write_the_present_version(broker: Broker) -> None:
    queue = broker.queue("q")
    run(queue, 2)
    stored = broker.client.xrange(shard_key(queue, "event", 0))
    assert [list(fields) for _, fields in stored] == [[b"worker", FIELD]] * 2
    assert [event.outcome for event in read_events(broker, "q", 0)] == ["bulk", "succeeded", "succeeded"]


def test_an_entry_of_an_older_version_is_read_beside_new_ones(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = shard_key(broker.queue("q"), "event", 0)
    broker.client.xadd(stream, {"worker": "w", "events-1": OLD}, id="2-5")
    field = add_column(monkeypatch, "host")
    broker.client.xadd(stream, {"worker": "w", field: pack(outcome="failed", id="c", host="h")}, id="3-9")
    first, second, third = read_events(broker, "q", 0)
    attempt = {"task": "work", "key": "0f", "due": "5", "started": "6", "ms": "7", "attempt": "1", "worker": "w"}
    assert first == Event("q", 0, "1-5", "succeeded", "a", attempt)
    assert second == Event("q", 0, "2-5", "cancelled", "b", {"task": "work", "worker": "w", "by": "me"})
    assert (third.id, third.fields) == ("c", {"host": "h", "worker": "w"})
    assert [event.id for event in read_events(broker, "q", 0, "2-5")] == ["c"]
    assert events.streams(broker, [("q", 0)])["q", 0].before == "0-5"


def test_an_entry_of_a_newer_version_is_refused(broker: Broker) -> None:
    broker.client.xadd(shard_key(broker.queue("q"), "event", 0), {"worker": "w", "events-999": b"\0" * 77}, id="2-5")
    for read in (
        lambda: read_events(broker, "q", 0),
        lambda: events.entries(broker, "q", 0),
        lambda: events.following(broker, {("q", 0): "0-0"}),
        lambda: events.lag(broker, {}),
    ):
        with pytest.raises(Misconfigured, match=r"wrote event entry 2-5 \(version 999; .* upgrade django_delayq"):
            read()
