"""Bulk loads by columns: the chunks are the same as for single rows, and their jobs get keys."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_delayq.core import Broker, InvalidJob, NewJob, QueueFull

from .bulk_loads_stage import (
    ROOM,
    BulkLoad,
    BulkLoadWriter,
    Rows,
    Shape,
    WriterRoom,
    counted,
    entry_of,
    ledgers,
    merged_row,
    open_load,
    row,
    rows,
    with_keys,
    write,
)

EXAMPLES = os.environ.get("DELAYQ_MODEL_EXAMPLES")
_names = itertools.count()


def keys(broker: Broker, queue: str = "q") -> dict[str, bytes]:
    """Return the keys of all jobs by id."""
    shards = (broker.queue(queue).shard(number) for number in broker.queue(queue).numbers)
    stored = (broker.client.hgetall(shard.names["body"]) for shard in shards)
    return {ident.decode(): body[3:19] for some in stored for ident, body in some.items()}


def write_columns(broker: Broker, load: BulkLoad, news: list[NewJob], cuts: list[int], room: WriterRoom = ROOM) -> Any:
    """Write the rows in slices, one shape after the other."""
    writer = BulkLoadWriter(broker, load, room=room)
    places = sorted({0, len(news), *(cut % (len(news) + 1) for cut in cuts)})
    for start, stop in itertools.pairwise(places):
        made = [entry_of(with_keys(load.id, new)) for new in news[start:stop]]
        for shape, some in itertools.groupby(made, key=lambda pair: pair[0]):
            writer.add_many(shape, Rows.of([entry for _, entry in some]))
    return writer.finish()


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
    assert all(key[0] < 0x80 for found in seen for key in found.values())


def test_an_id_that_comes_again_has_another_key_even_if_all_else_is_the_same(broker: Broker) -> None:
    load = open_load(broker, "a", "q")
    first = row(1, on_conflict="replace")
    found = []
    writer = BulkLoadWriter(broker, load)
    for new in (first, first, replace(first, priority=7), replace(first, args=b"2"), replace(first, due_ms=1)):
        writer.add(*entry_of(new))
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
    assert write(broker, load, rows(50)).counts == {"created": 50}
    whole = keys(broker)
    assert len(set(whole.values())) == 50
    assert {ident: whole[ident] for ident in some} == some
    queue.reload()
    broker.client.flushdb()
    queue.reload()
    write(broker, open_load(broker, "a", "q"), rows(50))
    assert keys(broker) == whole


# -- columns ---------------------------------------------------------------------------------------------------------

SOME = st.builds(
    lambda number, size, kind: (
        merged_row(f"r{number}", b"x" * size) if kind == 3 else row(number, args=b"y" * size, priority=4 + (kind == 2))
    ),
    st.integers(0, 40),
    st.sampled_from([0, 1, 1, 1, 200, 900]),
    st.sampled_from([0, 0, 0, 0, 0, 0, 2, 3]),
)


@settings(
    max_examples=int(EXAMPLES or 60),
    deadline=None,
    derandomize=EXAMPLES is None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    news=st.lists(SOME, max_size=150),
    cuts=st.lists(st.integers(0, 1000), max_size=4),
    chunk=st.sampled_from([1, 3, 20, 250]),
    shards=st.sampled_from([1, 3]),
)
def test_columns_make_the_chunks_that_rows_make(
    broker: Broker, news: list[NewJob], cuts: list[int], chunk: int, shards: int
) -> None:
    room = WriterRoom(chunk_bytes=1000, waiting_bytes=4000)
    name = f"q{next(_names)}"
    broker.queue(name, shards=shards)
    load = open_load(broker, name, name, chunk=chunk)
    written = write(broker, load, news, room=room)
    known, had = ledgers(broker), keys(broker, name)
    assert write_columns(broker, load, news, cuts, room).counts == written.counts
    assert ledgers(broker) == known
    assert keys(broker, name) == had


def test_columns_that_were_never_sent_before_are_all_there(broker: Broker) -> None:
    broker.queue("q", shards=4)
    load = open_load(broker, "a", "q")
    assert write_columns(broker, load, rows(2_345), [100, 1100]).counts == {"created": 2_345}
    assert counted(broker, load) == {"created": 2_345}
    assert len(keys(broker)) == 2_345


@pytest.mark.parametrize("ident", [b"", b"a\0b", b"x" * 256])
def test_an_id_that_cannot_be_one_is_refused_in_columns_too(broker: Broker, ident: bytes) -> None:
    writer = BulkLoadWriter(broker, open_load(broker, "a", "q"))
    shape = Shape.of("work", flags=36, keyed=False)
    writer.add_many(shape, Rows([b"good", ident], [b"1", b"1"], [b"", b""]))
    with pytest.raises(InvalidJob, match="id"):
        writer.finish()


def test_no_rows_are_no_chunk(broker: Broker) -> None:
    writer = BulkLoadWriter(broker, open_load(broker, "a", "q"))
    writer.add_many(Shape.of("work", flags=36, keyed=False), Rows())
    assert writer.finish().counts == {}
