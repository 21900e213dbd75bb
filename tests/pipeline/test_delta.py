"""The Delta table of events: what Spark writes and reads, what is refused, what is deleted and when."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from django_delayq.pipeline import delta
from django_delayq.pipeline.delta import BATCH, KEEP_HOURS, EventTable, number_of
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.history import read

from .history_stage import DAY, Row, at, event, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEXT = DAY + timedelta(days=1)
PLACE = ("orders", 3)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a name that must not be taken apart."""
    return tmp_path / "a lake"


@pytest.fixture
def table(root: Path) -> EventTable:
    return EventTable(str(root))


def land(table: EventTable, spark: SparkSession, *rows: Row) -> int:
    """Add a batch of events; return its number."""
    latest = table.open()
    batch = number_of(latest, BATCH) + 1
    table.commit(latest, table.write(frame(spark, rows), batch), batch, {PLACE: f"{batch + 1}-9"})
    return batch


def ids(table: EventTable) -> list[str]:
    """Return what any reader of Delta tables sees."""
    return sorted(DeltaTable(table.uri).to_pyarrow_table().column("id").to_pylist())


def on_disk(table: EventTable) -> list[Path]:
    return list(Path(table.uri).rglob("*.parquet"))


def age(table: EventTable, hours: float) -> None:
    """Make all files so much older."""
    for path in Path(table.uri).rglob("*"):
        when = path.stat().st_mtime - hours * 3600
        os.utime(path, (when, when))


@pytest.mark.parametrize("kind", ["path", "url"])
def test_a_path_and_its_url_are_the_same_root(root: Path, kind: str) -> None:
    table = EventTable(str(root) if kind == "path" else f"file://{root}")
    assert (table.url, table.uri, root.exists()) == (f"file://{root}/events", f"{root}/events", False)


def test_a_store_that_deltalake_does_not_open_is_refused_with_those_that_it_does() -> None:
    with pytest.raises(PipelineError, match=r"does not open dqstore://.* s3a://.*, gs://, .*mounted as a folder"):
        EventTable("dqstore://bucket/history")


def test_a_table_that_is_not_there_is_empty(table: EventTable, root: Path, spark: SparkSession) -> None:
    assert (table.latest(), table.files(), table.positions(None)) == (None, [], {})
    table.vacuum()
    table.compact(DAY)
    table.delete_before(DAY)
    assert table.read(spark).collect() == []
    assert not root.exists()
    with pytest.raises(PipelineError, match="has the table events, not 'attempts'"):
        read(spark, f"{root}/attempts")


def test_files_and_positions_are_one_version(table: EventTable, spark: SparkSession) -> None:
    assert land(table, spark, event(id="a"), event(ts=at(NEXT, 7), id="b")) == 0
    assert land(table, spark, event(id="c")) == 1

    latest = table.latest()
    assert latest is not None and latest.version() == 3
    assert table.positions(latest) == {PLACE: "2-9"}
    assert {(file.hour, file.rows, file.batch) for file in table.files()} == {
        (at(), 1, 0),
        (at(NEXT, 7), 1, 0),
        (at(), 1, 1),
    }
    assert all(file.bytes > 0 for file in table.files())
    found = table.read(spark, {at()})
    assert len(found.inputFiles()) == 2
    assert sorted(row.id for row in found.collect()) == ["a", "c"]
    assert table.read(spark, {at(hour=4)}).collect() == []


def test_a_shard_that_was_named_and_got_no_position_has_none(
    table: EventTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", die)
        with pytest.raises(KeyboardInterrupt):
            land(table, spark, event(id="a"))
    assert (table.positions(table.latest()), table.files()) == ({}, [])
    assert land(table, spark, event(id="a")) == 0
    assert table.positions(table.latest()) == {PLACE: "1-9"}


def test_a_batch_on_a_version_that_another_has_continued_is_refused(table: EventTable, spark: SparkSession) -> None:
    land(table, spark, event(id="a"))
    latest = table.open()
    mine = table.write(frame(spark, [event(id="b")]), 1)
    land(table, spark, event(id="b"))
    with pytest.raises(PipelineError, match="Another process has changed"):
        table.commit(latest, mine, 1, {PLACE: "2-9"})
    assert ids(table) == ["a", "b"]


@pytest.mark.parametrize("first", ["batch", "compaction"])
def test_a_batch_and_a_compaction_do_not_hinder_each_other(
    table: EventTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    for name in "ab":
        land(table, spark, event(id=name))
    if first == "compaction":
        latest, late = table.open(), table.write(frame(spark, [event(id="c")]), 2)
        table.compact(DAY)
        table.commit(latest, late, 2, {PLACE: "3-9"})
    else:
        before = table.latest()
        land(table, spark, event(id="c"))
        with monkeypatch.context() as patched:
            patched.setattr(table, "latest", lambda: before)
            table.compact(DAY)
    assert ids(table) == ["a", "b", "c"]
    assert [file.rows for file in sorted(table.files(), key=lambda file: file.rows)] == [1, 2]


def test_others_read_the_same_rows(table: EventTable, root: Path, spark: SparkSession) -> None:
    land(table, spark, event(id="a", extra={"odd": "é"}), event(ts=at(NEXT, 7), id="b"))
    table.write(frame(spark, [event(id="of no version")]), 1)

    def check() -> None:
        ours = {row.id: (row.day, row.hour, row.ts, row.extra) for row in read(spark, f"{root}/events").collect()}
        theirs = DeltaTable(root / "events").to_pyarrow_table().to_pylist()
        assert set(ours) == {"a", "b"}
        assert ours["a"][0::3] == (DAY, {"odd": "é"})
        assert ours["b"][:2] == (NEXT, 7)
        assert {row["id"]: (row["day"], row["hour"], row["ts"].replace(tzinfo=None)) for row in theirs} == {
            name: (day, hour, ts) for name, (day, hour, ts, _) in ours.items()
        }

    check()
    land(table, spark, *[])
    table.compact(DAY)
    check()
    assert DeltaTable(root / "events").count() == 2


def test_a_reader_keeps_its_rows_while_they_are_replaced(table: EventTable, spark: SparkSession) -> None:
    for name in "ab":
        land(table, spark, event(id=name, extra={"k": name}))
    rows = table.read(spark)
    table.compact(DAY)
    table.vacuum()
    assert sorted(row.id for row in rows.collect()) == ["a", "b"]
    (file,) = table.files()
    assert (file.rows, file.batch, file.hour) == (2, -1, at())
    assert sorted((row.id, row.extra["k"]) for row in table.read(spark).collect()) == [("a", "a"), ("b", "b")]


def test_moments_are_written_so_that_a_reader_may_pass_over_files_by_them(
    table: EventTable, root: Path, spark: SparkSession
) -> None:
    land(table, spark, event(ts=at(hour=1)))
    (file,) = root.glob("events/write=*/day=*/hour=1/*.parquet")
    columns = pq.ParquetFile(file).schema
    assert columns.column(columns.names.index("ts")).physical_type == "INT64"


def test_older_and_newer_writers_are_read_together_and_lose_nothing_when_compacted(
    table: EventTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = delta._SCHEMA
    newer = StructType([*ours.fields]).add("region", StringType())
    older = StructType([one for one in ours.fields if one.name not in ("worker", "extra", "created")])

    def add(name: str, schema: StructType, change: Callable[..., object]) -> None:
        monkeypatch.setattr(delta, "_SCHEMA", schema)
        latest = table.open()
        batch = number_of(latest, BATCH) + 1
        table.commit(latest, table.write(change(frame(spark, [event(id=name, worker="w7")])), batch), batch, {})
        monkeypatch.setattr(delta, "_SCHEMA", ours)

    add("old", older, lambda rows: rows.drop("worker", "extra", "created"))
    add("now", ours, lambda rows: rows)
    add("new", newer, lambda rows: rows.withColumn("region", F.lit("north")))
    assert [field.name for field in Schema.from_json(newer.json()).fields][-1] == "region"

    for _ in ("as they are", "compacted"):
        rows = {row.id: row for row in table.read(spark).collect()}
        assert {name: row.region for name, row in rows.items()} == {"old": None, "now": None, "new": "north"}
        assert (rows["old"].worker, rows["now"].worker, rows["old"].lateness_ms) == (None, "w7", 100)
        table.compact(DAY)
    assert len(table.files()) == 1


def test_a_compaction_leaves_a_file_for_each_hour_and_changes_no_data(table: EventTable, spark: SparkSession) -> None:
    land(table, spark, event(id="a"), event(ts=at(hour=7), id="b"), event(ts=at(NEXT), id="c"))
    land(table, spark, event(id="d"), event(ts=at(NEXT), id="e"))

    table.compact(DAY)

    assert sorted((file.hour, file.rows) for file in table.files()) == [
        (at(hour=7), 1),
        (at(), 2),
        (at(NEXT), 1),
        (at(NEXT), 1),
    ]
    log = sorted(Path(table.uri, "_delta_log").glob("*.json"))[-1].read_text()
    actions = [json.loads(line) for line in log.splitlines()]
    assert [one["add"]["dataChange"] for one in actions if "add" in one] == [False]
    assert number_of(table.latest(), BATCH) == 1
    assert ids(table) == ["a", "b", "c", "d", "e"]


def test_replaced_files_and_those_of_a_killed_writer_are_kept_a_day_and_then_deleted(
    table: EventTable, spark: SparkSession
) -> None:
    for name in "ab":
        land(table, spark, event(id=name))
    reader = DeltaTable(table.uri).to_pyarrow_dataset()
    table.compact(DAY)
    table.write(frame(spark, [event(id="of a writer that was killed")]), 2)
    age(table, KEEP_HOURS - 1)
    table.vacuum()
    assert len(on_disk(table)) == 4

    age(table, 2)
    table.vacuum()

    # The others were replaced a moment ago, however old they are.
    assert len(on_disk(table)) == 3
    assert sorted(reader.to_table().column("id").to_pylist()) == ["a", "b"]
    assert ids(table) == ["a", "b"]


def test_nothing_is_left_of_deleted_days_not_even_folders(
    table: EventTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(table, spark, event(id="old"), event(ts=at(NEXT), id="new"))
    table.delete_before(NEXT)
    assert (ids(table), table.closed_before()) == (["new"], NEXT)
    table.delete_before(DAY)  # a closed day is never opened again
    assert table.closed_before() == NEXT
    monkeypatch.setattr("django_delayq.pipeline.delta.KEEP_HOURS", 0)
    table.vacuum()
    (file,) = table.files()
    assert on_disk(table) == [Path(table.uri, file.path)]
    assert not list(Path(table.uri).rglob(f"day={DAY}"))


def test_the_log_of_a_busy_table_stays_short(table: EventTable) -> None:
    log = Path(table.uri) / "_delta_log"

    def append(number: int) -> None:
        path = f"write={number}-x/day={DAY}/hour=1/{number}.parquet"
        values: dict[str, str | None] = {"day": str(DAY), "hour": "1"}
        added = AddAction(path, 1, values, 0, True, json.dumps({"numRecords": 1}))
        table.commit(table.open(), [added], number, {PLACE: f"{number}-9"})

    for number in range(60):
        append(number)
    assert list(log.glob("*.checkpoint.parquet"))
    age(table, KEEP_HOURS + 1)
    for number in range(60, 110):
        append(number)

    assert len(list(log.glob("*.json"))) < 70
    assert len(table.files()) == 110
    assert table.positions(table.latest()) == {PLACE: "109-9"}
