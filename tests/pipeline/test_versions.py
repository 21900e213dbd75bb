"""Versions of a Delta table, without Spark: what is in, what is refused, what is deleted and when."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction

from django_delayq.pipeline.day_hours import whole
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.store import Store
from django_delayq.pipeline.versions import KEEP_HOURS, Versions, partition_values

DAY = date(2026, 10, 20)
NEXT = DAY + timedelta(days=1)
SCHEMA = Schema.from_arrow(pa.schema([("id", pa.string()), ("day", pa.date32()), ("hour", pa.int32())]))


@pytest.fixture
def table(tmp_path: Path) -> Versions:
    """A table in a folder with a name that must not be taken apart."""
    table = Versions(Store(str(tmp_path / "a lake")), "events")
    table.prepare(SCHEMA, ["day", "hour"])
    return table


def write(table: Versions, *ids: str, day: date = DAY, hour: int = 1) -> AddAction:
    """Write a file that no version has."""
    name = f"write={uuid.uuid4().hex}/day={day}/hour={hour}/part-0.parquet"
    path = Path(table.store.uri(table.name)) / name
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": list(ids)}), path)
    stats = json.dumps({"numRecords": len(ids)})
    return AddAction(name, path.stat().st_size, partition_values(name), int(time.time() * 1000), True, stats)


def ids(table: Versions) -> list[str]:
    """Return what any reader of Delta tables sees."""
    return sorted(DeltaTable(table.store.uri(table.name)).to_pyarrow_table().column("id").to_pylist())


def version(table: Versions) -> int:
    latest = table.latest()
    assert latest is not None
    return latest.version()


def on_disk(table: Versions) -> set[str]:
    return {path.stem for path in Path(table.store.uri(table.name)).rglob("write=*")}


def age(table: Versions, hours: float) -> None:
    """Make all files so much older."""
    for path in Path(table.store.uri(table.name)).rglob("*"):
        when = path.stat().st_mtime - hours * 3600
        os.utime(path, (when, when))


def test_a_number_of_a_source_is_in_once_and_an_empty_one_makes_no_version(table: Versions) -> None:
    assert not table.has("q", 0)
    table.append([write(table, "a"), write(table, "b", day=NEXT)], "q", 0)
    table.append([write(table, "a"), write(table, "b", day=NEXT)], "q", 0)
    table.append([], "q", 1)
    table.append([write(table, "c")], "q", 2)
    table.append([write(table, "lost")], "q", 1)
    table.append([write(table, "a")], "another query", 0)

    assert ids(table) == ["a", "a", "b", "c"]
    assert [table.has("q", number) for number in (0, 1, 2, 3)] == [True, True, True, False]
    assert version(table) == 3
    assert table.days() == [DAY, NEXT]


def test_days_and_hours_are_replaced_in_one_version(table: Versions) -> None:
    table.append([write(table, "a", hour=1), write(table, "b", hour=2), write(table, "c", day=NEXT)], "q", 0)

    table.replace([write(table, "A", hour=1)], {DAY: frozenset({1}), NEXT: None}, table.replaced())

    assert (ids(table), version(table), table.replaced()) == (["A", "b"], 2, 1)
    assert [file.hour for file in table.files({DAY: frozenset({2, 7})})] == [2]
    table.replace([], whole([NEXT]), table.replaced())
    assert (version(table), table.replaced()) == (2, 1), "there is nothing to replace"


def race(table: Versions, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Let something happen between the last look of the next commit and the commit."""
    latest = Versions.latest
    calls = iter([meanwhile])

    def slow(self: Versions) -> DeltaTable | None:
        found = latest(self)
        for call in calls:
            call()
        return found

    monkeypatch.setattr(Versions, "latest", slow)


def test_a_second_writer_of_a_batch_is_refused_by_its_commit(table: Versions, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, others = write(table, "a"), write(table, "a")
    race(table, monkeypatch, lambda: table.append([others], "q", 0))
    with pytest.raises(PipelineError, match=r"Another process has changed .*events: wait"):
        table.append([mine], "q", 0)
    assert ids(table) == ["a"]


def test_a_second_writer_of_an_hour_is_refused_even_if_nothing_was_there(
    table: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = table.replaced()
    table.replace([write(table, "new")], whole([DAY]), seen)
    with pytest.raises(PipelineError, match="Another process"):
        table.replace([write(table, "stale")], whole([DAY]), seen)
    race(table, monkeypatch, lambda: table.replace([write(table, "newer")], whole([DAY]), seen + 1))
    with pytest.raises(PipelineError, match="Another process"):
        table.replace([write(table, "stale")], whole([NEXT]), seen + 1)
    assert ids(table) == ["newer"]


@pytest.mark.parametrize("first", ["stream", "compaction"])
def test_a_stream_and_a_compaction_do_not_hinder_each_other(
    table: Versions, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    table.append([write(table, "a"), write(table, "b")], "q", 0)
    merged, late = write(table, "a", "b"), write(table, "c")

    def compaction() -> None:
        table.replace([merged], whole([DAY]), 0, data_change=False)

    def stream() -> None:
        table.append([late], "q", 1)

    last, meanwhile = (compaction, stream) if first == "stream" else (stream, compaction)
    race(table, monkeypatch, meanwhile)
    last()

    assert ids(table) == ["a", "b", "c"]
    assert len(table.files()) == 2


def test_replaced_files_and_those_of_a_killed_writer_are_kept_a_day_and_then_deleted(table: Versions) -> None:
    table.append([write(table, "a")], "q", 0)
    reader = DeltaTable(table.store.uri("events")).to_pyarrow_dataset()
    table.replace([write(table, "b")], whole([DAY]), 0)
    write(table, "of a writer that was killed")
    age(table, KEEP_HOURS - 1)
    table.vacuum()
    assert len(on_disk(table)) == 3
    assert reader.to_table().column("id").to_pylist() == ["a"]

    age(table, 2)
    table.vacuum()

    # The first file was replaced a moment ago, however old it is.
    assert len(on_disk(table)) == 2
    assert reader.to_table().column("id").to_pylist() == ["a"]
    assert ids(table) == ["b"]


def test_nothing_is_left_of_replaced_files_not_even_folders(table: Versions, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append([write(table, "a")], "q", 0)
    table.replace([write(table, "b")], whole([DAY]), 0)
    monkeypatch.setattr("django_delayq.pipeline.versions.KEEP_HOURS", 0)
    table.vacuum()
    (file,) = table.files()
    assert on_disk(table) == {file.path.partition("/")[0]}


def test_a_purged_day_leaves_the_table_and_the_disk_at_once(table: Versions, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append([write(table, "old"), write(table, "other", day=NEXT)], "q", 0)
    table.replace([write(table, "a"), write(table, "b", day=NEXT)], whole([DAY, NEXT]), 0)
    for number in range(1, 60):  # past a checkpoint of the log
        table.append([write(table, "b", day=NEXT)], "q", number)

    def die(path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(table.store, "delete", die)
        with pytest.raises(KeyboardInterrupt):
            table.purge(DAY)
    assert set(ids(table)) == {"b"}, "no reader sees a part of the day"
    for day, left in ((DAY, 61), (NEXT, 0)):
        table.purge(day)
        assert len(list(Path(table.store.uri("events")).rglob("day=*/*/*.parquet"))) == left
    assert ids(table) == []


def test_the_log_of_a_busy_table_stays_short(table: Versions) -> None:
    log = Path(table.store.uri("events")) / "_delta_log"
    for number in range(60):
        table.append([write(table, str(number))], "q", number)
    assert list(log.glob("*.checkpoint.parquet"))
    age(table, KEEP_HOURS + 1)
    for number in range(60, 110):
        table.append([write(table, str(number))], "q", number)

    assert len(list(log.glob("*.json"))) < 70
    assert len(ids(table)) == 110
    assert table.has("q", 109)
    assert not table.has("q", 110)


def test_columns_of_a_newer_version_are_added_and_older_files_lack_them(table: Versions) -> None:
    table.append([write(table, "a")], "q", 0)
    more = pa.schema([("id", pa.string()), ("region", pa.string()), ("day", pa.date32()), ("hour", pa.int32())])
    table.prepare(Schema.from_arrow(more), ["day", "hour"])
    table.prepare(SCHEMA, ["day", "hour"])
    found = DeltaTable(table.store.uri("events")).to_pyarrow_table().to_pylist()
    assert found == [{"id": "a", "region": None, "day": DAY, "hour": 1}]


def test_a_table_that_is_not_there_is_empty(tmp_path: Path) -> None:
    table = Versions(Store(str(tmp_path / "nowhere")), "events")
    assert (table.files(), table.days(), table.has("q", 0), table.replaced()) == ([], [], False, 0)
    table.vacuum()
    table.purge(DAY)
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(PipelineError, match="is missing"):
        table.append([], "q", 0)
