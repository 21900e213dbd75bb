"""The data source of events in Spark: batches, streams with checkpoints, and losses that reach the caller."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import ack, bury, fail

from .test_events_plan import emit


@pytest.fixture
def options(redis_url: str, broker: Broker) -> dict[str, str]:
    """Of a source on the test's Redis."""
    return {"redis": redis_url, "prefix": broker.prefix}


@pytest.fixture
def read(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., list[list[str]]]]:
    """``read(fetch="5")``: one run of a stream with the test's checkpoint; the ids of its batches, then it ends."""

    def read(**more: str) -> list[list[str]]:
        batches: list[list[str]] = []

        def land(frame: DataFrame, _number: int) -> None:
            batches.append(frame.select("queue", "shard", "id").orderBy("ts").toArrow().column("id").to_pylist())

        stream = spark.readStream.format("delayq.events").options(**options, **more).load()
        query = (
            stream.writeStream.foreachBatch(land)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(60)
        finally:
            query.stop()
        return batches

    yield read


def named(*moments: int) -> list[str]:
    return [f"j{ms}" for ms in moments]


def test_what_workers_did_is_read_as_rows(spark: SparkSession, broker: Broker, options: dict[str, str]) -> None:
    queue = broker.queue("q", shards=2)
    queue.schedule_many(NewJob(ident, "shop.pay") for ident in ("a", "b", "c"))
    jobs = {job.id: job for number in queue.numbers for job in queue.reserve(number, 10, worker="w:1").jobs}
    started = int(broker.now_ms())
    assert (
        queue.settle(
            [
                ack(jobs["a"], started, 12),
                fail(jobs["b"], started, 5, delay_ms=60_000, error_class="ValueError"),
                bury(jobs["c"], started, 1, reason="why"),
            ]
        )
        == [True] * 3
    )
    frame = spark.read.format("delayq.events").options(**options).load()
    rows = {row["id"]: row for row in frame.toArrow().to_pylist() if row["outcome"] != "bulk"}
    assert {ident: row["outcome"] for ident, row in rows.items()} == {"a": "succeeded", "b": "failed", "c": "buried"}
    one = rows["b"]
    assert (one["task"], one["attempt"], one["worker"], one["error_class"], one["duration_ms"]) == (
        "shop.pay",
        1,
        "w:1",
        "ValueError",
        5,
    )
    assert one["started"] == datetime.fromtimestamp(started / 1000, UTC)
    assert one["key"] == jobs["b"].key.hex()
    assert abs((one["ts"] - one["started"]).total_seconds()) < 60
    assert one["lateness_ms"] == max(0, started - jobs["b"].due_ms)


def test_a_smaller_schema_reads_only_these_columns(
    spark: SparkSession, broker: Broker, options: dict[str, str]
) -> None:
    broker.queue("q")
    emit(broker, 1, 2)
    reader = spark.read.format("delayq.events").options(**options)
    assert [tuple(row) for row in reader.schema("id string, shard int").load().orderBy("id").collect()] == [
        ("j1", 0),
        ("j2", 0),
    ]
    with pytest.raises(PySparkException, match="no column 'colour'"):
        reader.schema("colour string").load().collect()


def test_a_restarted_stream_reads_each_event_once(broker: Broker, read: Callable[..., list[list[str]]]) -> None:
    broker.queue("q", shards=2)
    emit(broker, 1, 2, 3)
    emit(broker, 4, number=1)
    assert read() == [named(1, 2, 3, 4)]
    emit(broker, 5, 6)
    broker.reshard("q", 3)
    emit(broker, 7, number=1025)
    assert read() == [named(5, 6, 7)]
    assert read() == []


def test_batches_are_as_large_as_they_may_be(broker: Broker, read: Callable[..., list[list[str]]]) -> None:
    broker.queue("q", shards=2)
    emit(broker, *range(1, 6))
    emit(broker, *range(11, 14), number=1)
    batches = read(maxRowsPerTrigger="3")
    assert sorted(ident for batch in batches for ident in batch) == sorted(named(1, 2, 3, 4, 5, 11, 12, 13))
    assert {len(batch) for batch in batches} <= {1, 2, 3}


def test_a_batch_that_failed_is_read_again_with_the_same_rows(
    spark: SparkSession, broker: Broker, options: dict[str, str], tmp_path: Path
) -> None:
    broker.queue("q")
    emit(broker, 1, 2, 3)
    seen: list[tuple[int, list[str]]] = []

    def land(frame: DataFrame, number: int) -> None:
        seen.append((number, frame.toArrow().column("id").to_pylist()))
        if len(seen) == 1:
            emit(broker, 4)
            raise OSError("disk full")

    def run() -> Any:
        stream = spark.readStream.format("delayq.events").options(**options).load()
        query = (
            stream.writeStream.foreachBatch(land)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(60)
        finally:
            query.stop()
        return query

    with pytest.raises(StreamingQueryException, match="disk full"):
        run()
    query = run()
    assert seen == [(0, named(1, 2, 3)), (0, named(1, 2, 3)), (1, named(4))]
    end = json.loads(query.lastProgress["sources"][0]["endOffset"])
    assert end == {"q": {"0": "4-4"}}
    assert json.loads(query.lastProgress["sources"][0]["latestOffset"]) == end


def test_a_loss_ends_the_query_and_says_what_to_do(broker: Broker, read: Callable[..., list[list[str]]]) -> None:
    broker.queue("q")
    emit(broker, 1, 2)
    assert read() == [named(1, 2)]
    emit(broker, 3, 4)
    broker.client.xtrim(broker.shard("q", 0).names["event"], minid="4-0", approximate=False)
    with pytest.raises(StreamingQueryException, match="EventsLost: events were lost before they were read: queue 'q'"):
        read()
    assert read(failOnDataLoss="false") == [named(4)]
