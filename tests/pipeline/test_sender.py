"""Sending rows of one task: the same chunks in every try, however Spark cuts the rows into batches."""

from __future__ import annotations

import pyarrow as pa

from django_delayq.core.broker import Broker
from django_delayq.pipeline.write_options import WriteOptions
from django_delayq.pipeline.writer import Sender, Sent, open_run


def send(broker: Broker, table: pa.Table, size: int) -> Sent:
    wanted = WriteOptions(queue="x", task="t", chunk=3)
    return Sender(broker, wanted, open_run(broker, "a", wanted, {})).send(table.to_batches(max_chunksize=size))


def stored(broker: Broker) -> dict[bytes, dict[bytes, bytes]]:
    """All ledgers and jobs."""
    keys = [key for key in broker.client.scan_iter(f"{broker.prefix}:*") if b"}:load:" in key or key.endswith(b":body")]
    return {key: broker.client.hgetall(key) for key in sorted(keys)}


def test_the_same_rows_make_the_same_chunks_in_any_batches(broker: Broker) -> None:
    table = pa.table({"id": [f"i{n}" for n in range(3_000)]})
    assert send(broker, table, 3_000) == Sent(rows=3_000)
    once = stored(broker)
    for size in (7, 30, 1_700):
        send(broker, table, size)
        assert stored(broker) == once
