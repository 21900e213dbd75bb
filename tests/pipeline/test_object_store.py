"""A history at a URL of an object store, which Spark opens by Hadoop's API and deltalake by the store's own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from django_delayq import task as make_task
from django_delayq.core.broker import Broker
from django_delayq.models.history import HourlyStat, PipelineRun
from django_delayq.pipeline.delta import EventTable
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.history import read
from django_delayq.pipeline.writer import file_system

from .bucket_server import serving
from .history_stage import move_day
from .test_command import NOW, TODAY, figures, run, work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEME = "s3"
#: how deltalake finds the store
STORE = {
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "eu-west-1",
}


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which lies what Hadoop and deltalake find under ``s3a://bucket``."""
    folder = tmp_path / "bucket"
    settings = {
        f"fs.{SCHEME}.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    }
    for name in ("history", "rows"):
        (folder / name).mkdir(parents=True)
        settings[f"fs.viewfs.mounttable.bucket.link./{name}"] = f"file://{folder}/{name}"
    context: Any = spark.sparkContext
    conf = context._jsc.hadoopConfiguration()
    before = {name: conf.get(name) for name in settings}
    for name, value in settings.items():
        conf.set(name, value)
    with serving(folder) as address:
        for name, value in {**STORE, "AWS_ENDPOINT_URL": address}.items():
            monkeypatch.setenv(name, value)
        yield folder
    context._jvm.org.apache.hadoop.fs.Path(f"{SCHEME}://bucket/").getFileSystem(conf).close()  # Hadoop keeps them
    for name, value in before.items():
        if value is None:
            conf.unset(name)
        else:
            conf.set(name, value)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_history_at_a_url_is_kept_without_renaming_anything(
    store: Path, spark: SparkSession, delayq: Broker, settings: Any
) -> None:
    root = f"{SCHEME}://bucket/history"
    settings.DELAYQ = {**settings.DELAYQ, "PIPELINE": {"root": root}}
    work(delayq, 37, failing=3)
    first = ("orders", "shop.pay", 40, 37, 3)
    assert (run("run", "--max-rows", "25")["rows"], figures()) == (40, [first])
    work(delayq, 6, failing=1, queue="mails")
    both = [("mails", "shop.pay", 7, 6, 1), first]
    assert (run("run")["rows"], figures()) == (7, both)
    assert run("run")["rows"] == 0
    status = run("status", "--json")
    assert (status["root"], status["unread"], status["events"]["days"], status["pending_days"]) == (root, 0, 1, [])
    HourlyStat.objects.all().delete()
    told = run("backfill", "--from", TODAY, "--to", TODAY)
    assert (told["rows"], figures()) == (47, both)
    assert read(spark, f"{root}/events").selectExpr("count(distinct id)").first() == (47,)

    day, home = f"{NOW - timedelta(days=40):%Y-%m-%d}", store / "history"
    move_day(home, date.fromisoformat(TODAY), date.fromisoformat(day))
    table = EventTable(root)
    assert len(table.files()) > 1
    assert run("compact", "--older-than", "39")["days"] == [day]
    hours = [file.hour for file in table.files()]
    assert len(hours) == len(set(hours))
    assert read(spark, f"{root}/events").count() == 47
    settings.DELAYQ = {**settings.DELAYQ, "PIPELINE": {"root": root, "keep_events_days": 39}}
    assert run("purge")["days"] == [day]
    assert table.files() == []
    assert set(PipelineRun.objects.values_list("state", flat=True)) == {"finished"}


@pytest.mark.django_db(transaction=True)
def test_files_at_a_url_become_jobs(store: Path, delayq: Broker) -> None:
    make_task(name="store.mail", queue="mails")(lambda pk: None)
    pq.write_table(pa.table({"pk": list(range(60))}), store / "rows" / "0.parquet")
    words = (
        "bulk",
        f"{SCHEME}://bucket/rows",
        "--task",
        "store.mail",
        "--id",
        "mail-{pk}",
        "--args",
        "pk",
        "--yes",
        "--run-id",
        "r",
    )
    assert run(*words)["created"] == 60
    assert run(*words)["was_over"] is True
    assert delayq.inspector.counts("mails").ready == 60


def test_what_is_put_aside_finds_s3_by_either_name() -> None:
    for scheme in "s3", "s3a":
        opened, path = file_system(f"{scheme}://bucket/aside?region=eu-west-1")
        assert (opened.type_name, path) == ("s3", "bucket/aside")
    with pytest.raises(PipelineError, match="the quarantine 'nowhere://bucket' cannot be opened"):
        file_system("nowhere://bucket")
