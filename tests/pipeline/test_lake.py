"""The folders of the history: reading days, putting new ones in the place of old ones, compaction, locks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from django_delayq.pipeline import compacting
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.files import Files, HadoopFiles, LocalFiles, files_at
from django_delayq.pipeline.lake import Lake
from django_delayq.pipeline.wanted import whole

from .history_stage import ARROW, DAY, Row, at, event, frame

if TYPE_CHECKING:
    from datetime import date

    from pyspark.sql import SparkSession

NEXT = DAY.replace(day=DAY.day + 1)
LOCKED = """
import sys
from pathlib import Path
from django_delayq.pipeline.files import LocalFiles
with LocalFiles(Path(sys.argv[1])).alone(0, lambda: False):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a name that must not be taken apart."""
    return tmp_path / "a lake"


@pytest.fixture
def lake(spark: SparkSession, root: Path) -> Lake:
    return Lake(str(root), spark)


def land(lake: Lake, name: str, *rows: Row) -> None:
    """A batch of events."""
    fresh = lake.write("events", frame(lake.spark, rows))
    lake.put("events", fresh, fresh.days, lambda day: f"batch={name}")


def write(root: Path, day: date, batch: str, table: pa.Table) -> None:
    """A batch of a writer of another version."""
    folder = root / "events" / f"day={day}" / f"batch={batch}"
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "part.parquet")


def ids(lake: Lake, *days: date) -> list[str]:
    return sorted(row.id for row in lake.events(whole(days)).collect())


@pytest.mark.parametrize("kind", ["path", "url"])
def test_paths_and_urls_are_the_same_to_the_lake(spark: SparkSession, root: Path, kind: str) -> None:
    files: Files = files_at(str(root) if kind == "path" else f"file://{root}", spark)
    assert isinstance(files, LocalFiles if kind == "path" else HadoopFiles)

    assert (files.names("a"), files.size("a"), files.read("a/b")) == ([], (0, 0), None)
    files.delete("a/b")
    files.write("a/b", "one")
    files.write("a/b", "two\nlines é")
    files.write("a/_note", "")
    files.write("a/below/c", "x")
    assert files.read("a/b") == "two\nlines é"
    assert [name for name in files.names("a") if not name.startswith(".")] == ["_note", "b", "below"]
    assert files.size("a") == (len("two\nlines é".encode()) + 1, 2)
    files.move("a/below", "z/new/below")
    assert (files.read("a/below/c"), files.read("z/new/below/c")) == (None, "x")
    files.delete("a")
    assert [name for name in files.names("") if not name.startswith(".")] == ["z"]
    with files.alone(0, lambda: False):
        pass


def test_a_url_cannot_be_opened_without_spark() -> None:
    with pytest.raises(PipelineError, match="give a session"):
        files_at("s3a://bucket/history", None)
    with pytest.raises(PipelineError, match="session of Spark"):
        _ = Lake("/nowhere").spark


def test_a_lock_holds_as_long_as_its_process_lives(root: Path) -> None:
    files = LocalFiles(root)
    with subprocess.Popen(
        [sys.executable, "-c", LOCKED, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        for wait_s, give_up in ((0, False), (60, True)):
            with (
                pytest.raises(PipelineError, match="Another process is at work"),
                files.alone(wait_s, lambda give_up=give_up: give_up),
            ):
                pytest.fail("two at once")
        other.kill()
    with files.alone(10, lambda: False):
        pass


def test_only_the_folders_of_the_wanted_days_are_looked_at(lake: Lake) -> None:
    land(lake, "q-0", event(id="a"), event(ts=at(NEXT), id="b"))
    land(lake, "q-1", event(id="c"))
    (Path(lake.files.url("events").removeprefix("file://")) / f"day={NEXT}" / "batch=q-2").mkdir()

    assert lake.days("events") == [DAY, NEXT]
    assert ids(lake, DAY) == ["a", "c"]
    opened = lake.events(whole([DAY])).inputFiles()
    assert len(opened) == 2
    assert all(f"day={DAY}" in name for name in opened)
    assert ids(lake) == []


def test_what_is_put_replaces_all_that_was_there_and_nothing_else(lake: Lake) -> None:
    land(lake, "q-0", event(id="a"), event(ts=at(NEXT), id="b"))
    land(lake, "q-1", event(id="c"))
    land(lake, "q-1", event(id="d"))
    assert ids(lake, DAY, NEXT) == ["a", "b", "d"]

    lake.put("events", lake.write("events", frame(lake.spark, [])), [NEXT])

    assert ids(lake, DAY, NEXT) == ["a", "d"]
    assert [name for name in lake.files.names("events") if name.startswith("_")] == []


def test_what_was_left_half_written_is_not_read_and_is_swept_away(lake: Lake) -> None:
    land(lake, "q-0", event(id="a"))
    lake.write("events", frame(lake.spark, [event(id="half")]))
    assert ids(lake, DAY) == ["a"]
    assert len(lake.files.names("events")) == 2

    lake.sweep()

    assert lake.files.names("events") == [f"day={DAY}"]


def test_events_without_a_time_lie_where_no_event_can_be(lake: Lake) -> None:
    fresh = lake.write("events", frame(lake.spark, [event()]).withColumn("ts", F.lit(None).cast("timestamp")))
    lake.put("events", fresh, fresh.days, lambda day: "batch=q-0")

    assert [str(day) for day in lake.days("events")] == ["1970-01-01"]


def test_older_and_newer_writers_are_read_together_and_lose_nothing_when_compacted(lake: Lake, root: Path) -> None:
    old_schema = pa.schema([field for field in ARROW if field.name not in ("worker", "extra", "created")])
    old, now, new = event(id="old"), event(id="now", worker="w7"), event(id="new")
    newer = pa.Table.from_pylist([new], ARROW).append_column("region", pa.array(["north"]))
    write(root, DAY, "v1-0", pa.Table.from_pylist([old], old_schema))
    land(lake, "v2-0", now)
    write(root, DAY, "v3-0", newer)

    for _ in ("as they are", "compacted"):
        rows = {row.id: row for row in lake.events(whole([DAY])).collect()}
        assert set(rows) == {"old", "now", "new"}
        assert (rows["old"].worker, rows["now"].worker, rows["old"].lateness_ms) == (None, "w7", 100)
        plain = lake.spark.read.option("mergeSchema", "true").parquet(lake.files.url("events"))
        assert {row.id: row.region for row in plain.collect()} == {"old": None, "now": None, "new": "north"}
        compacting.compact(lake, DAY)
    assert len(lake.batches(DAY)) == 1


def test_batches_become_one_file_with_each_event_once(lake: Lake) -> None:
    twice = event(id="twice")
    land(lake, "q-0", twice, event(id="a"))
    land(lake, "r-0", twice, event(id="b"))
    land(lake, "r-1", event(ts=at(NEXT), id="c"))

    assert compacting.compact(lake, DAY)

    assert ids(lake, DAY) == ["a", "b", "twice"]
    assert lake.files.size(f"events/day={DAY}")[1] == 1
    assert not compacting.compact(lake, DAY)
    assert not compacting.compact(lake, NEXT)
    assert lake.files.names("_compacting") == []


@pytest.mark.parametrize(
    "dies_at",
    [
        "compact: began",
        "compact: written",
        "compact: done",
        "compact: old batch deleted",
        "compact: note of the beginning deleted",
    ],
)
def test_a_compaction_that_dies_neither_loses_nor_doubles_an_event(
    spark: SparkSession, root: Path, dies_at: str
) -> None:
    def die(name: str) -> None:
        if name == dies_at:
            raise KeyboardInterrupt

    land(Lake(str(root), spark), "q-0", event(id="a"))
    land(Lake(str(root), spark), "q-1", event(id="b"))
    with pytest.raises(KeyboardInterrupt):
        compacting.compact(Lake(str(root), spark, die), DAY)

    lake = Lake(str(root), spark)
    assert ids(lake, DAY) == ["a", "b"]
    compacting.recover(lake)
    assert ids(lake, DAY) == ["a", "b"]
    assert lake.files.names("_compacting") == []
    compacting.compact(lake, DAY)
    assert ids(lake, DAY) == ["a", "b"]
    assert spark.read.parquet(lake.files.url("events")).where(F.col("id") == "a").count() == 1


def test_notes_of_others_are_passed_over(lake: Lake) -> None:
    lake.note_pending([NEXT, DAY, DAY])
    lake.files.write("_pending_days/README", "")
    lake.files.write("_compacting/README.txt", "")
    compacting.recover(lake)
    assert lake.pending() == [DAY, NEXT]
    lake.settle([NEXT])
    assert lake.pending() == [DAY]


def test_a_closed_day_is_never_opened_again(lake: Lake) -> None:
    assert lake.closed_before() < DAY
    lake.close_before(NEXT)
    lake.close_before(DAY)
    assert lake.closed_before() == NEXT


def test_moments_are_written_so_that_a_reader_may_pass_over_files_by_them(lake: Lake, root: Path) -> None:
    land(lake, "a", event(ts=at(hour=1)))
    (file,) = root.glob("events/day=*/batch=*/*.parquet")
    columns = pq.ParquetFile(file).schema
    assert columns.column(columns.names.index("ts")).physical_type == "INT64"


def test_a_day_that_is_deleted_is_gone_at_once_or_there_as_before(
    lake: Lake, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies while the files are deleted leaves no part of the day."""
    fresh = lake.write("hours", frame(lake.spark, [event(ts=at(hour=1))]))
    lake.put("hours", fresh, fresh.days)

    def die(folder: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(lake.files, "delete", die)
        with pytest.raises(KeyboardInterrupt):
            lake.drop("hours", whole([DAY]))
    assert lake.days("hours") == []
    lake.sweep()
    assert list((root / "hours").iterdir()) == []
