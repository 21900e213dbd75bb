"""The history in the Delta format."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_delayq.pipeline import delta
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.wanted import whole

from .history_stage import DAY, Database, Inbox, at, event, figures, history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

deltalake: Any = pytest.importorskip("deltalake", reason="the format delta needs the extra [delta]")
BEFORE = DAY - timedelta(days=1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a lake"


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path / "inbox")


def test_days_are_replaced_and_others_stay(spark: SparkSession, root: Path, inbox: Inbox) -> None:
    database = Database()
    inbox.add(event(ts=at(BEFORE), extra={"odd": "é"}), event(), event(id=None))
    kept = history(spark, root, inbox, format="delta")
    kept.run(database)
    inbox.add(event("failed"))
    kept.run(database)

    assert database.rows == figures([row for row in inbox.events if row["id"]])
    attempts = deltalake.DeltaTable(root / "attempts")
    rows = attempts.to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["day"]) for row in rows) == sorted(
        (row["id"], row["ts"].date()) for row in inbox.events if row["id"]
    )
    assert [row["extra"] for row in rows if row["day"] == BEFORE] == [[("odd", "é")]]
    assert attempts.version() == 2  # two days, then one of them again
    assert [day.day for day in kept.status().days if day.bytes["attempts"] and day.bytes["hours"]] == [BEFORE, DAY]
    assert not list(root.glob("*/_fresh-*"))


def test_a_day_passes_through_the_driver_in_portions_and_is_one_version(
    spark: SparkSession, root: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.pipeline.delta.ROWS_AT_ONCE", 2)
    inbox.add(*(event() for _ in range(7)))
    database = Database()
    history(spark, root, inbox, format="delta").run(database)

    table = deltalake.DeltaTable(root / "attempts")
    assert table.version() == 0
    found = table.to_pyarrow_table().to_pylist()
    assert sorted(row["stream_id"] for row in found) == sorted(row["stream_id"] for row in inbox.events)
    assert database.rows == figures(inbox.events)


def test_a_day_without_rows_leaves_the_table_and_so_does_a_purged_one(
    spark: SparkSession, root: Path, inbox: Inbox
) -> None:
    database = Database()
    inbox.add(event(ts=at(BEFORE)), event())
    kept = history(spark, root, inbox, format="delta", sla={})
    kept.run(database)
    table: Any = kept._tables["attempts"]

    table.replace(table.read(whole([BEFORE])).where("false"), whole([BEFORE]))

    assert table.days() == [DAY]
    assert table.read(whole([BEFORE])).collect() == []
    assert [path for path in table.read(whole([DAY])).inputFiles() if f"day={DAY}" not in path] == []
    gone = kept.purge(events_days=1, attempts_days=1, hours_days=1)
    assert (gone.attempts, gone.hours) == ((DAY,), (BEFORE, DAY))
    assert table.days() == []
    kept.compact()


@pytest.mark.slow
def test_a_run_that_dies_between_two_days_is_made_good(spark: SparkSession, root: Path, inbox: Inbox) -> None:
    database, seen = Database(), []

    def die(name: str) -> None:
        seen.append(name)
        if seen.count("hours: day put") == 1:
            raise KeyboardInterrupt

    inbox.add(event(ts=at(BEFORE)), event())
    with pytest.raises(KeyboardInterrupt):
        history(spark, root, inbox, die, format="delta").run(database)
    history(spark, root, inbox, format="delta").run(database)

    assert database.rows == figures(inbox.events)


def test_old_versions_are_deleted_with_the_compaction(
    spark: SparkSession, root: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.pipeline.delta.KEEP_HOURS", 0)
    inbox.add(event())
    kept = history(spark, root, inbox, format="delta")
    kept.run()
    inbox.add(event())
    kept.run()
    assert len(list(root.glob("hours/day=*/*.parquet"))) == 2

    kept.compact()

    assert len(list(root.glob("hours/day=*/*.parquet"))) == 1


def test_a_plain_table_is_not_taken_for_a_delta_table(spark: SparkSession, root: Path, inbox: Inbox) -> None:
    inbox.add(event())
    history(spark, root, inbox).run()

    with pytest.raises(PipelineError, match=r"holds plain Parquet.*backfill"):
        history(spark, root, inbox, format="delta")


def test_a_stop_is_heard_while_a_day_passes_through_the_driver(
    spark: SparkSession, root: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by what threads of deltalake have asked Spark for."""
    ours, stop, ended = threading.get_ident(), threading.Event(), threading.Event()
    plain = delta.DeltaFormTable._rows

    def slow(self: Any, path: str) -> Any:
        if threading.get_ident() != ours and not stop.is_set():
            stop.set()
            spark.sparkContext.parallelize([60], 1).map(time.sleep).count()
            ended.set()
        return plain(self, path)

    inbox.add(*(event(ts=at(hour=1)) for _ in range(20)))
    database = Database()
    with monkeypatch.context() as patched:
        patched.setattr(delta, "ROWS_AT_ONCE", 5)
        patched.setattr(delta.DeltaFormTable, "_rows", slow)
        summary = history(spark, root, inbox, format="delta").run(database, stop=stop.is_set)
    assert (summary.stopped, summary.days, ended.is_set()) == (True, (), False)
    history(spark, root, inbox, format="delta").run(database)
    assert database.rows == figures(inbox.events)
