"""Sending rows of one task: the same chunks in every try, however Spark cuts the rows into batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from django_delayq.core.broker import Broker
from django_delayq.pipeline.write_options import WriteOptions
from django_delayq.pipeline.writer import Sender, Sent

QUEUES = {"none": [None] * 30, "all": ["x"] * 30, "some": [None, "x", "y"] * 10}
KINDS = [pa.string(), pa.large_string()]


def send(broker: Broker, table: pa.Table, size: int, **options: Any) -> Sent:
    wanted = WriteOptions(task="t", chunk=3, **options)
    return Sender(broker, wanted, {}, "a").send(iter(table.to_batches(max_chunksize=size)))


def stored(broker: Broker) -> dict[bytes, dict[bytes, bytes]]:
    """All ledgers and jobs."""
    keys = [key for key in broker.client.scan_iter(f"{broker.prefix}:*") if b"}:load:" in key or key.endswith(b":body")]
    return {key: broker.client.hgetall(key) for key in sorted(keys)}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", QUEUES)
def test_rows_that_name_their_queue_and_rows_that_do_not_make_the_same_chunks_in_any_batches(
    broker: Broker, name: str, kind: pa.DataType
) -> None:
    table = pa.table({"id": [f"i{n}" for n in range(30)], "queue": pa.array(QUEUES[name], kind)})
    send(broker, table, 1000, queue="x")
    once = stored(broker)
    for size in (1, 7, 30):
        send(broker, table, size, queue="x")
        assert stored(broker) == once


def test_rows_of_one_queue_keep_their_order_whether_they_name_it_or_not(broker: Broker) -> None:
    table = pa.table({"id": ["z", "a", "a"], "queue": [None, "x", None], "args": ["[0]", "[1]", "[2]"]})
    send(broker, table, 1000, queue="x", on_conflict="replace")
    (found,) = [fields for key, fields in stored(broker).items() if key.endswith(b":body")]
    assert found[b"a"].endswith(b"[2]")


def test_a_queue_that_is_no_text_is_put_aside_as_every_bad_value(broker: Broker, tmp_path: Path) -> None:
    names = pa.array([b"y", b"\xff"], pa.binary()).view(pa.string())
    sent = send(
        broker, pa.table({"id": ["a", "b"], "queue": names}), 100, on_error="quarantine", quarantine=str(tmp_path)
    )
    assert (sent.rows, sent.bad) == (2, 1)
    assert broker.known_queue("y") is not None


@pytest.mark.parametrize(("queue", "bad"), [("x", 0), (None, 3)])
def test_a_column_of_nothing_but_nulls_is_as_if_it_were_not_there(
    broker: Broker, tmp_path: Path, queue: str | None, bad: int
) -> None:
    table = pa.table({"id": ["a", "b", "c"], "queue": pa.nulls(3)})
    sent = send(broker, table, 100, queue=queue, on_error="quarantine", quarantine=str(tmp_path))
    assert (sent.rows, sent.bad) == (3, bad)
