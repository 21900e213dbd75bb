"""Bulk writes that are gone on with, and what the command looks at before it begins one."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError, call_command

from django_delayq import task as make_task
from django_delayq.core import loads
from django_delayq.core.broker import Broker
from django_delayq.core.errors import Misconfigured
from django_delayq.models.history import PipelineRun
from django_delayq.pipeline.bulk import BulkOptions, bulk, rehearse
from django_delayq.pipeline.errors import PipelineError, without_user
from django_delayq.pipeline.inputs import Files, format_of

from .test_writer import take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Stored = Callable[[Any], Files]


@pytest.fixture
def how(redis_url: str, prefix: str) -> dict[str, Any]:
    """Options that the bulk loads of these tests share."""
    return {"redis": redis_url, "prefix": prefix, "queue": "q", "task": "bulk.send", "id": "sms:{pk}", "args": ("pk",)}


def run(*arguments: str) -> dict[str, Any]:
    out, err = StringIO(), StringIO()
    call_command("delayq_pipeline", *arguments, stdout=out, stderr=err, no_color=True)
    told: dict[str, Any] = json.loads(out.getvalue())
    return told


# -- gone on with ------------------------------------------------------------------------------------------------------


def test_a_run_that_failed_for_a_bad_row_goes_on_with_a_quarantine(
    spark: SparkSession, broker: Broker, how: dict[str, Any], stored: Stored, tmp_path: Path
) -> None:
    rows = stored(spark.sql("SELECT IF(id % 10 = 0, NULL, id) AS pk FROM range(100)"))
    with pytest.raises(PipelineError, match="id is null"):
        bulk(spark, rows, BulkOptions(**how, run_id="r"))
    result = bulk(spark, rows, BulkOptions(**how, run_id="r", quarantine=str(tmp_path / "aside")))
    assert (result.created, result.bad) == (90, 10)
    assert len(take(broker, 200)) == 90


def test_a_dry_run_counts_rows_of_many_minutes_by_minute(
    spark: SparkSession, broker: Broker, how: dict[str, Any], stored: Stored
) -> None:
    rows = stored(
        spark.sql(
            "SELECT IF(id = 7, NULL, id) AS pk, IF(id = 9, NULL, timestamp_seconds(2000000000 + 60 * id)) "
            "AS at FROM range(2000)"
        )
    )
    found = rehearse(spark, rows, BulkOptions(**how, due="at", more={"shards": "4"}))
    assert (found.rows, found.without_id, found.without_due, found.due_now) == (2_000, 1, 1, 0)
    assert (sum(count for _, count in found.dues), found.busiest[1]) == (1_999, 1)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (("a.csv", "/x/b.CSV"), "csv"),
        (("s3a://b/rows.json.gz",), "json"),
        (("rows.jsonl", "x.ndjson.zst"), "json"),
        (("rows.orc",), "orc"),
        (("rows.parquet",), "parquet"),
        (("folder", "/data/day=1/*"), "parquet"),
        (("part.snappy.parquet",), "parquet"),
        (("f.csv/",), "csv"),
    ],
)
def test_the_format_of_files_is_guessed_by_their_ending(paths: tuple[str, ...], found: str) -> None:
    assert format_of(paths) == found


def test_files_of_several_formats_are_not_guessed() -> None:
    with pytest.raises(Misconfigured, match=r"a\.csv, b\.json.*--format"):
        format_of(("a.csv", "b.json"))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("s3a://key:secret@bucket/a@b.csv", "s3a://bucket/a@b.csv"),
        ("/plain/a@b.csv", "/plain/a@b.csv"),
        ("hdfs://ada@name:8020/x, s3a://k:s@b", "hdfs://name:8020/x, s3a://b"),
        ("file:///a@b", "file:///a@b"),
    ],
)
def test_the_user_of_a_url_is_cut(text: str, kept: str) -> None:
    assert without_user(text) == kept


@pytest.mark.django_db(transaction=True)
def test_the_secret_of_a_url_is_kept_nowhere(spark: SparkSession, delayq: Broker) -> None:
    make_task(name="bulk.secret")(lambda pk: None)
    with pytest.raises(CommandError) as caught:
        run("bulk", "nowhere://key:hunter2@bucket/rows.csv", "--task", "bulk.secret", "--id", "{pk}")
    row = PipelineRun.objects.get()
    assert "hunter2" not in f"{row.detail} {row.error} {caught.value}"
    assert (row.detail["paths"], row.detail["format"]) == (["nowhere://bucket/rows.csv"], "csv")


def test_what_spark_says_before_the_write_is_a_sentence(
    spark: SparkSession, broker: Broker, how: dict[str, Any]
) -> None:
    for act in (bulk, rehearse):
        with pytest.raises(PipelineError, match="file://x/y") as caught:
            act(spark, Files(("file://ada@x/y",)), BulkOptions(**how, run_id="r"))
        assert "\tat " not in str(caught.value)
        assert "is open" not in str(caught.value)
    assert loads.read_load(broker, "r") is None


@pytest.mark.parametrize(
    ("name", "merge", "words", "told"),
    [
        ("bulk.merged", True, (), "is merged: its jobs need a --payload"),
        ("bulk.plain", False, ("--payload", "pk"), "is not merged: leave --payload out"),
    ],
)
def test_a_payload_is_for_merged_tasks(
    delayq: Broker, name: str, merge: bool, words: tuple[str, ...], told: str
) -> None:
    make_task(name=name, merge=merge)(lambda payloads: None)
    with pytest.raises(CommandError, match=told) as caught:
        run("bulk", "x", "--task", name, "--id", "{pk}", *words)
    assert caught.value.returncode == 2


@pytest.mark.django_db(transaction=True)
def test_a_new_run_that_is_named_is_looked_at_first_and_a_known_one_is_not(
    spark: SparkSession, delayq: Broker, tmp_path: Path
) -> None:
    make_task(name="bulk.named")(lambda pk: None)
    (tmp_path / "rows.csv").write_text("pk\n1\n2\n")
    words = (
        "bulk",
        str(tmp_path / "rows.csv"),
        "--task",
        "bulk.named",
        "--id",
        "{pk}",
        "--due",
        "+1h",
        "--storm",
        "1",
        "--run-id",
        "r",
    )
    with pytest.raises(CommandError, match="2 jobs fall due within one minute"):
        run(*words)
    assert loads.read_load(delayq, "r") is None
    assert run(*words, "--yes")["created"] == 2
    assert run(*words)["was_over"]


@pytest.mark.django_db(transaction=True)
def test_bad_rows_are_no_reason_to_refuse_where_there_is_a_quarantine(
    spark: SparkSession, delayq: Broker, tmp_path: Path
) -> None:
    make_task(name="bulk.odd")(lambda pk: None)
    pq.write_table(pa.table({"pk": ["1", None, "a\x07"]}), tmp_path / "rows.parquet")
    words = ("bulk", str(tmp_path / "rows.parquet"), "--task", "bulk.odd", "--id", "{pk}")
    with pytest.raises(CommandError, match="rows get no id"):
        run(*words)
    told = run(*words, "--quarantine", str(tmp_path / "aside"))
    assert (told["created"], told["bad"]) == (1, 2)
