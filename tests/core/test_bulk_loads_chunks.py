"""Chunks of a bulk load: entries and keys, large jobs and many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from django_delayq.core import Broker, InvalidJob, NewJob, Payload, QueueFull
from tests.support.core_calls import watch_calls
from tests.support.core_values import created_ms, new_key

from .bulk_loads_stage import (
    FAR,
    BulkLoadWriter,
    add_row,
    collected,
    entry_of,
    live,
    merged_row,
    open_load,
    row,
    rows,
    write,
    writer_of,
)
from .events_stage import read_events
from .world import read_world, unchanged


def keys(broker: Broker, queue: str = "q") -> dict[str, bytes]:
    """Return the keys of all jobs by id."""
    shards = (broker.queue(queue).shard(number) for number in broker.queue(queue).numbers)
    stored = (broker.client.hgetall(shard.names["body"]) for shard in shards)
    return {ident.decode(): body[3:19] for some in stored for ident, body in some.items()}


# -- entries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (NewJob("a", "work", due_ms=1, delay_ms=None, key=new_key(durable=True)), "durable"),
        (NewJob("a", "work", due_ms=1, delay_ms=None, payload=Payload(b"", "1", new_key(durable=True))), "durable"),
        (NewJob("", "work", due_ms=1, delay_ms=None), "1 to 255 bytes"),
        (NewJob("x" * 256, "work", due_ms=1, delay_ms=None), "1 to 255 bytes"),
        (NewJob("é" * 128, "work", due_ms=1, delay_ms=None), "1 to 255 bytes"),
        (NewJob("a\0b", "work", due_ms=1, delay_ms=None), "zero character"),
        (NewJob("a", "x" * 256, due_ms=1, delay_ms=None), "name of a task"),
        (NewJob("a", "work", delay_ms=0, key=bytes(16)), "moment when"),
        (NewJob("a", "work", due_ms=1, delay_ms=None, key=bytes(16), on_conflict="merge"), "only jobs with a payload"),
    ],
)
def test_what_a_bulk_write_cannot_keep_is_refused(new: NewJob, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        entry_of(new)


def test_what_jobs_have_in_common_is_sent_once(broker: Broker) -> None:
    load = open_load(broker, "a", "q")
    news = [NewJob(f"r{number}", f"task{number % 3}", due_ms=FAR, delay_ms=None) for number in range(200)]
    with watch_calls(broker) as calls:
        assert write(broker, load, news) == {"created": 200}
    (call,) = [call for call in calls if call.name == "bulk"]
    assert [call.args[2].count(b"task%d" % number) for number in range(3)] == [1, 1, 1]


# -- keys ------------------------------------------------------------------------------------------------------------


def test_each_job_has_a_key_of_its_own_and_the_same_in_every_try(broker: Broker) -> None:
    seen = []
    for load_id in ("a", "a", "b"):
        broker.client.flushdb()
        broker.queue("q", shards=3).reload()
        write(broker, open_load(broker, load_id, "q", chunk=40), rows(300))
        seen.append(keys(broker))
    assert len(set(seen[0].values())) == 300
    assert seen[0] == seen[1]
    assert not set(seen[0].values()) & set(seen[2].values())
    assert all(key[0] < 0x80 and created_ms(key) is None for found in seen for key in found.values())


def test_merged_rows_of_one_id_have_keys_of_their_own_and_the_same_in_every_try(broker: Broker) -> None:
    news = [
        merged_row("r1", b"1"),
        merged_row("r1", b"2"),
        merged_row("r1", b"3", "2"),
        merged_row("r2", b"1"),
    ]
    seen = []
    for load_id in ("a", "a", "b"):
        broker.client.flushdb()
        queue = broker.queue("q")
        queue.reload()
        write(broker, open_load(broker, load_id, "q"), news)
        lives = read_world(queue, 0)["lives"].values()
        assert all(live["content"].key in {one.key for one in live["waiting"]} for live in lives)
        seen.append({one.key for live in lives for one in live["waiting"]})
        assert all(key[0] < 0x80 for key in seen[-1])
    assert len(seen[0]) == len(news)
    assert seen[0] == seen[1]
    assert not seen[0] & seen[2]


def test_an_id_that_comes_again_has_another_key_even_if_all_else_is_the_same(broker: Broker) -> None:
    load = open_load(broker, "a", "q")
    first = row(1, on_conflict="replace")
    found = []
    writer = BulkLoadWriter(broker, load)
    for new in (first, first, replace(first, priority=7), replace(first, args=b"2"), replace(first, due_ms=1)):
        add_row(writer, new)
        writer.finish()
        found.append(keys(broker)["r1"])
    assert len(set(found)) == len(found)


def test_what_a_chunk_had_left_over_keeps_its_keys(broker: Broker) -> None:
    """The queue accepted the first rows; the others are sent again when there is room, and in the next try."""
    queue = broker.queue("q")
    broker.limit("q", max_length=30)
    load = open_load(broker, "a", "q")
    with pytest.raises(QueueFull):
        write(broker, load, rows(50))
    some = keys(broker)
    assert 0 < len(some) < 50
    broker.limit("q", max_length=0)
    assert write(broker, load, rows(50)) == {"created": 50}
    whole = keys(broker)
    assert len(set(whole.values())) == 50
    assert {ident: whole[ident] for ident in some} == some
    queue.reload()
    broker.client.flushdb()
    queue.reload()
    write(broker, open_load(broker, "a", "q"), rows(50))
    assert keys(broker) == whole


# -- large and many --------------------------------------------------------------------------------------------------


def test_large_jobs_make_smaller_chunks(broker: Broker) -> None:
    load = open_load(broker, "a", "q")
    news = [row(number, args=b"x" * 300_000) for number in range(20)] + [row("big", args=b"y" * 3_000_000)]
    assert write(broker, load, news) == {"created": 21}
    told = [int(event.fields["jobs"]) for event in read_events(broker, "q", 0)]
    assert (max(told), sum(told)) == (4, 21)


def test_what_waits_for_its_chunk_is_bounded(broker: Broker) -> None:
    broker.queue("q", shards=64)
    load = open_load(broker, "a", "q")
    room = {"waiting_bytes": 4_000}
    writer = writer_of(broker, load, room=room)
    news = rows(2000)
    for new in news:
        add_row(writer, new)
        waiting = collected(writer)
        assert waiting.counted_bytes == waiting.bytes < 4_000
    assert writer.finish() == {"created": 2000}
    with unchanged(broker):
        assert write(broker, load, news, room=room) == {"created": 2000}


def test_what_the_caller_raises_leaves_the_lines_clean(broker: Broker) -> None:
    load = open_load(broker, "a", "q", chunk=10)

    def failing() -> Iterator[NewJob]:
        yield from rows(95)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(broker, load, failing())
    assert broker.queue("q").schedule(row("after")) == "created"
    assert write(broker, load, rows(100)) == {"created": 100}
    assert live(broker) == 101
