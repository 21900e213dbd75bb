"""The tables of a history: what Spark writes and reads, versions of other writers, compaction."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from django_delayq.pipeline import upkeep
from django_delayq.pipeline.day_hours import whole
from django_delayq.pipeline.history import read
from django_delayq.pipeline.store import Store
from django_delayq.pipeline.tables import FORMS, Step, Table, days_of, ignore

from .history_stage import DAY, Row, at, event, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEXT = DAY.replace(day=DAY.day + 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a name that must not be taken apart."""
    return tmp_path / "a lake"


@pytest.fixture
def table(root: Path) -> Table:
    return open_table(root)


def open_table(root: Path, step: Step = ignore) -> Table:
    return Table(Store(str(root)), "events", step)


def land(table: Table, spark: SparkSession, name: str, *rows: Row) -> None:
    """A batch of events."""
    table.append(table.write(frame(spark, rows)), name, 0)


def ids(table: Table, spark: SparkSession, *days: date) -> list[str]:
    return sorted(row.id for row in table.read(spark, whole(days)).collect())


def test_only_the_files_of_the_wanted_days_are_opened(table: Table, spark: SparkSession) -> None:
    land(table, spark, "q", event(id="a"), event(ts=at(NEXT), id="b"))
    land(table, spark, "r", event(id="c"))

    assert table.days() == [DAY, NEXT]
    assert ids(table, spark, DAY) == ["a", "c"]
    opened = table.read(spark, whole([DAY])).inputFiles()
    assert len(opened) == 2
    assert all(f"day={DAY}" in name for name in opened)
    assert ids(table, spark) == []


def test_others_read_the_same_rows(table: Table, root: Path, spark: SparkSession) -> None:
    land(table, spark, "q", event(id="a", extra={"odd": "é"}), event(ts=at(NEXT, 7), id="b"))
    table.write(frame(spark, [event(id="of no version")]))

    ours = {row.id: (row.day, row.hour, row.ts, row.extra) for row in read(spark, f"{root}/events").collect()}
    theirs = DeltaTable(root / "events").to_pyarrow_table().to_pylist()

    assert set(ours) == {"a", "b"}
    assert ours["a"][0::3] == (DAY, {"odd": "é"})
    assert ours["b"][:2] == (NEXT, 7)
    assert {row["id"]: (row["day"], row["hour"], row["ts"].replace(tzinfo=None)) for row in theirs} == {
        name: (day, hour, ts) for name, (day, hour, ts, _) in ours.items()
    }
    assert DeltaTable(root / "events").count() == 2


def test_a_reader_keeps_its_rows_while_they_are_replaced(table: Table, spark: SparkSession) -> None:
    land(table, spark, "q", event(id="a"))
    rows = table.read(spark)
    seen = table.replaced()
    table.replace(table.write(frame(spark, [event(id="b")])), whole([DAY]), seen)
    table.vacuum()
    assert [row.id for row in rows.collect()] == ["a"]
    assert ids(table, spark, DAY) == ["b"]


def test_events_without_a_time_lie_where_no_event_can_be(table: Table, spark: SparkSession) -> None:
    files = table.write(frame(spark, [event()]).withColumn("ts", F.lit(None).cast("timestamp")))
    assert {str(day): hours for day, hours in days_of(files).items()} == {"1970-01-01": {0}}
    table.append(files, "q", 0)
    assert [row.ts for row in table.read(spark).collect()] == [None]


def test_moments_are_written_so_that_a_reader_may_pass_over_files_by_them(
    table: Table, root: Path, spark: SparkSession
) -> None:
    land(table, spark, "a", event(ts=at(hour=1)))
    (file,) = root.glob("events/write=*/day=*/hour=1/*.parquet")
    columns = pq.ParquetFile(file).schema
    assert columns.column(columns.names.index("ts")).physical_type == "INT64"


def test_older_and_newer_writers_are_read_together_and_lose_nothing_when_compacted(
    table: Table, root: Path, spark: SparkSession
) -> None:
    form = FORMS["events"]
    newer = StructType([*form.schema.fields]).add("region", StringType())
    older = StructType([one for one in form.schema.fields if one.name not in ("worker", "extra", "created")])
    table.prepare(Schema.from_json(older.json()), form.by)
    old = table.write(frame(spark, [event(id="old")]).drop("worker", "extra", "created"))
    table.append(old, "v1", 0)
    land(table, spark, "v2", event(id="now", worker="w7"))
    table.prepare(Schema.from_json(newer.json()), form.by)
    table.append(table.write(frame(spark, [event(id="new")]).withColumn("region", F.lit("north"))), "v3", 0)

    for _ in ("as they are", "compacted"):
        rows = {row.id: row for row in table.read(spark).collect()}
        assert {name: row.region for name, row in rows.items()} == {"old": None, "now": None, "new": "north"}
        assert (rows["old"].worker, rows["now"].worker, rows["old"].lateness_ms) == (None, "w7", 100)
        upkeep.compact_day(spark, table, DAY)
    assert len(table.files()) == 1


def test_files_become_one_for_each_hour_with_each_event_once(table: Table, root: Path, spark: SparkSession) -> None:
    twice = event(ts=at(hour=10, minute=2), id="twice")
    land(table, spark, "q-0", twice, event(ts=at(hour=10, minute=3), id="a"), event(ts=at(hour=7), id="d"))
    land(table, spark, "r-0", twice, event(ts=at(hour=10, minute=1), id="b"))
    land(table, spark, "r-1", event(ts=at(NEXT), id="c"))

    assert upkeep.compact(spark, table, NEXT) == (DAY,)

    assert ids(table, spark, DAY) == ["a", "b", "d", "twice"]
    merged = next(file for file in table.files(whole([DAY])) if file.hour == 10)
    assert pq.read_table(root / "events" / merged.path, columns=["id"], partitioning=None).column("id").to_pylist() == [
        "b",
        "twice",
        "a",
    ]
    assert {file.hour for file in table.files(whole([DAY]))} == {7, 10}
    assert len(table.files(whole([DAY]))) == 2
    log = sorted((root / "events" / "_delta_log").glob("*.json"))[-1].read_text()
    actions = [json.loads(line) for line in log.splitlines()]
    assert [one["add"]["dataChange"] for one in actions if "add" in one] == [False, False]
    assert upkeep.compact(spark, table, NEXT) == ()


@pytest.mark.parametrize("dies_at", ["events: files written", "events: replaced"])
def test_a_compaction_that_dies_neither_loses_nor_doubles_an_event(
    spark: SparkSession, root: Path, dies_at: str
) -> None:
    def die(name: str) -> None:
        if name == dies_at:
            raise KeyboardInterrupt

    land(open_table(root), spark, "q-0", event(id="a"))
    land(open_table(root), spark, "q-1", event(id="b"))
    with pytest.raises(KeyboardInterrupt):
        upkeep.compact_day(spark, open_table(root, die), DAY)

    table = open_table(root)
    assert ids(table, spark, DAY) == ["a", "b"]
    upkeep.compact_day(spark, table, DAY)
    assert ids(table, spark, DAY) == ["a", "b"]
    assert DeltaTable(root / "events").count() == 2
