"""Chunks of a bulk load: shapes, keys and frames, large jobs and many."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob, NewJob, Payload
from tests.support.core_values import new_key

from .bulk_loads_stage import (
    FAR,
    NO_CODE,
    BulkLoadWriter,
    Frame,
    Rows,
    Shape,
    WriterRoom,
    add_row,
    collected,
    entry_of,
    live,
    merged_row,
    open_load,
    row,
    rows,
    with_keys,
    write,
)
from .events_stage import read_events
from .world import unchanged

# -- shapes, keys and frames -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (NewJob("a", "work", due_ms=1, delay_ms=None, key=new_key(durable=True)), "durable"),
        (NewJob("a", "work", due_ms=1, delay_ms=None, payload=Payload(b"", "1", new_key(durable=True))), "durable"),
        (NewJob("a", "work", due_ms=1, delay_ms=None, payload=Payload(b"", "1", b"")), "needs the key"),
        (NewJob("a", "work", due_ms=1, delay_ms=None, key=b"short"), "needs the key"),
        (NewJob("a", "work", due_ms=1, delay_ms=None, key=bytes(16), payload=Payload(b"", "1", b"")), "needs the key"),
        (NewJob("a", "work", delay_ms=0, key=bytes(16)), "moment when"),
        (NewJob("a", "work", due_ms=1, delay_ms=None, key=bytes(16), on_conflict="merge"), "only jobs with a payload"),
    ],
)
def test_what_a_bulk_write_cannot_keep_is_refused(new: NewJob, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        entry_of(new)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_conflict": "merge"}, "only jobs with a payload"),
        ({"on_conflict": "ignor"}, "Did you mean 'ignore'"),
        ({"due_policy": "late"}, "due_policy"),
        ({"score_policy": ""}, "score_policy"),
        ({"flags": 256}, "flags"),
        ({"task": "x" * 256}, "task name"),
        ({"task": ""}, "task name"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        Shape.of(**{"task": "work", "flags": 36, **options})


def test_a_shape_is_that_of_the_jobs_that_it_describes() -> None:
    for merged, conflict, due, score, reset in itertools.product(
        (False, True), ("replace", "error"), ("earliest", "inherit"), ("min", "last"), (False, True)
    ):
        new = row(1, priority=3, on_conflict=conflict, due_policy=due, score_policy=score, reset_retries=reset)
        new.payload = Payload(b"x", "", b"") if merged else None
        shape, (ident, due_ms, body, _) = entry_of(with_keys("a", new))
        assert shape == Shape.of(
            "work",
            on_conflict=conflict,
            due_policy=due,
            score_policy=score,
            reset_retries=reset,
            flags=3 | 8 * merged | 32,
            merged=merged,
            score_is_now=merged,
            keyed=merged,
        )
        assert (ident, due_ms, body[16 * merged :]) == (b"r1", FAR, b"[1]")


def test_merged_rows_of_one_id_have_keys_of_their_own_and_the_same_in_every_try() -> None:
    news = [
        merged_row("r1", b"1"),
        merged_row("r1", b"2"),
        merged_row("r1", b"1", "2"),
        merged_row("r2", b"1"),
        merged_row("r1", b"1", priority=7),
        replace(merged_row("r1", b"1"), task="other"),
    ]
    keyed = [with_keys("a", new) for new in news]
    keys = {new.payload.key for new in keyed if new.payload} | {new.key for new in keyed}
    assert len(keys) == 2 * len(news)
    assert keyed == [with_keys("a", new) for new in news] == [with_keys("b", new) for new in keyed]


def test_a_frame_says_what_its_jobs_have_in_common_once_and_its_digest_does_not_know_its_shard() -> None:
    shape, entry = entry_of(with_keys("a", row(1)))
    two = Rows.of([entry, (b"r2", *entry[1:])])
    frame, keyed = Frame.of(shape, two), two.keyed("a", bytes(20)).bodies
    packed = frame.packed(keyed, b"\1\2")
    assert packed.count(b"work") == 1
    assert len(packed) == 2 + len(shape.head) + 2 + 2 * (1 + 13 + 1 + 2 + 4 + 3 + 16 + 3)
    assert frame.packed(keyed, NO_CODE) != packed
    one = Rows.of([entry])
    digests = frame.digest(two.bodies), frame.digest(two.bodies, b"1"), Frame.of(shape, one).digest(one.bodies)
    assert len(set(digests)) == 3
    assert frame.digest([entry[2] + b"x", entry[2][1:]]) != frame.digest([entry[2], b"x" + entry[2][1:]])


# -- large and many --------------------------------------------------------------------------------------------------


def test_large_jobs_make_smaller_chunks(broker: Broker) -> None:
    load = open_load(broker, "a", "q")
    news = [row(number, args=b"x" * 300_000) for number in range(20)] + [row("big", args=b"y" * 3_000_000)]
    assert write(broker, load, news).counts == {"created": 21}
    told = [int(event.fields["jobs"]) for event in read_events(broker, "q", 0)]
    assert (max(told), sum(told)) == (4, 21)


def test_what_waits_for_its_chunk_is_bounded(broker: Broker) -> None:
    broker.queue("q", shards=64)
    load = open_load(broker, "a", "q")
    room = WriterRoom(waiting_bytes=4_000)
    writer = BulkLoadWriter(broker, load, room=room)
    news = rows(2000)
    for new in news:
        add_row(writer, new)
        waiting = collected(writer)
        assert waiting.counted_bytes == waiting.bytes < 4_000
    assert writer.finish().counts == {"created": 2000}
    with unchanged(broker):
        assert write(broker, load, news, room=room).counts == {"created": 2000}


def test_the_shapes_side_by_side_are_bounded(broker: Broker) -> None:
    load = open_load(broker, "a", "q")
    news = [NewJob(f"r{number}", f"task{number % 17}", due_ms=FAR, delay_ms=None) for number in range(200)]
    room = WriterRoom(shapes=5)
    writer = BulkLoadWriter(broker, load, room=room)
    for new in news:
        add_row(writer, new)
        assert collected(writer).shapes <= 5
    assert writer.finish().counts == {"created": 200}
    with unchanged(broker):
        assert write(broker, load, news, room=room).counts == {"created": 200}


def test_what_the_caller_raises_leaves_the_lines_clean(broker: Broker) -> None:
    load = open_load(broker, "a", "q", chunk=10)

    def failing() -> Iterator[NewJob]:
        yield from rows(95)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(broker, load, failing())
    assert broker.queue("q").schedule(row("after")) == "created"
    assert write(broker, load, rows(100)).counts == {"created": 100}
    assert live(broker) == 101
