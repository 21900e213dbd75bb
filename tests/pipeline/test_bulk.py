"""Scheduling in bulk from files and frames: the words of it, the run, the dry run, the command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
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
from django_delayq.pipeline import bulk as module
from django_delayq.pipeline.bulk import BulkOptions, bulk, jobs, rehearse
from django_delayq.pipeline.errors import PipelineError, without_user
from django_delayq.pipeline.inputs import Files
from django_delayq.repair.rows import seconds
from shop.models import Customer
from tests.core.world import raw
from tests.support.moments import in_days

from .test_writer import take

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


DAY = date(2026, 11, 21)
SOON = datetime(2030, 1, 2, 3, 4, 5, 678_900, UTC)

Stored = Callable[[Any], Files]


@pytest.fixture
def how(redis_url: str, prefix: str) -> dict[str, Any]:
    """Options that the bulk loads of these tests share."""
    return {"redis": redis_url, "prefix": prefix, "queue": "q", "task": "bulk.send", "id": "sms:{pk}:{day}"}


@pytest.fixture
def kept_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads stay open, as if they had died at their end."""
    monkeypatch.setattr(loads, "close_load", lambda broker, load: load)


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """1,000 rows in two files."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for n in range(2):
        pk = list(range(500 * n, 500 * (n + 1)))
        table = pa.table({"pk": pk, "day": [DAY] * 500, "name": [f"é{one}" for one in pk]})
        pq.write_table(table, folder / f"{n}.parquet", row_group_size=100)
    return folder


def frame(spark: SparkSession, sql: str = "SELECT 7 AS pk, date '2026-11-21' AS day") -> DataFrame:
    return spark.sql(sql)


# -- the words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "sql", "ident"),
    [
        ("sms:{pk}:{day}", "SELECT 7 AS pk, date '2026-11-21' AS day", "sms:7:2026-11-21"),
        ("{a b}{{x}}-{`}", "SELECT 'é' AS `a b`, true AS ```` ", "é{x}-true"),
        ("{pk}", "SELECT 12.50BD AS pk", "12.50"),
        ("x{pk}", "SELECT CAST(NULL AS INT) AS pk", None),
    ],
)
def test_ids_are_made_of_columns(spark: SparkSession, template: str, sql: str, ident: str | None) -> None:
    made = jobs(spark.sql(sql), BulkOptions(queue="sms", id=template), 0)
    assert [row["id"] for row in made.toArrow().to_pylist()] == [ident]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("sms:{pkk}", "no column 'pkk'. Did you mean 'pk'? Known columns: pk, day"),
        ("sms", "names no column"),
        ("{f}", "f is double"),
        ("{t}", "t is timestamp"),
    ],
)
def test_ids_that_cannot_be_are_refused(spark: SparkSession, template: str, words: str) -> None:
    rows = frame(spark, "SELECT 7 AS pk, current_date() AS day, 1D AS f, now() AS t")
    with pytest.raises(Misconfigured) as caught:
        jobs(rows, BulkOptions(queue="sms", id=template), 0)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("due", "ms"),
    [
        ("at", 1_893_553_445_678),
        ("ms", 123),
        ("text", 1_893_553_445_678),
        ("utc", 1_893_553_445_000),
        ("none", None),
        ("+1d2h3m4s", 1_000 + 93_784_000),
        ("+90", 91_000),
        ("+0.5s", 1_500),
        ("2030-01-02T03:04:05.678+00:00", 1_893_553_445_678),
        ("2030-01-02T04:04:05.6789+01:00", 1_893_553_445_679),
    ],
)
def test_due_times_are_columns_moments_or_delays(spark: SparkSession, due: str, ms: int | None) -> None:
    rows = frame(
        spark,
        "SELECT 7 AS pk, timestamp '2030-01-02T03:04:05.678Z' AS at, 123 AS ms, 'tomorrow' AS none, "
        "'2030-01-02T04:04:05.678+01:00' AS text, '2030-01-02 03:04:05' AS utc",
    )
    (row,) = jobs(rows, BulkOptions(queue="sms", id="{pk}", due=due), 1_000).toArrow().to_pylist()
    assert row["due_ms"] == ms


@pytest.mark.parametrize(
    ("due", "words"),
    [
        ("dai", "Did you mean 'day'"),
        ("day", "a date has no hour"),
        ("2030-01-02T03:04:05", "no time zone"),
        ("+", "is no duration"),
        ("+5x", "is no duration"),
        ("+-5", "is no duration"),
        ("+99999d", "ten years"),
    ],
)
def test_due_times_that_cannot_be_meant_are_refused(spark: SparkSession, due: str, words: str) -> None:
    with pytest.raises(Exception, match=r".") as caught:
        jobs(frame(spark), BulkOptions(queue="sms", id="{pk}", due=due), 0)
    assert words in str(caught.value)


def test_times_are_written_as_people_do() -> None:
    assert [seconds(text) for text in ("90", "1.5h", "1d1s")] == [90, 5400, 86401]


# -- the run -----------------------------------------------------------------------------------------------------------


def test_files_become_jobs_once(
    spark: SparkSession, broker: Broker, how: dict[str, Any], parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int | None]] = []

    def watch(counts: Mapping[str, int], total: int | None) -> None:
        seen.append((sum(counts.values()), total))

    files, options = (
        Files((str(parquet),)),
        BulkOptions(**how, args=("pk", "name"), kwargs=("day",), due="+0s", run_id="r"),
    )
    with monkeypatch.context() as patched:
        patched.setattr(loads, "close_load", lambda broker, load: load)
        first = bulk(spark, files, options, watch=watch)
    assert (first.rows, first.created, first.known, first.bad, first.was_over) == (1_000, 1_000, 0, 0, False)
    assert seen[-1] == (1_000, 1_000)
    found = take(broker, 2_000)
    assert len(found) == 1_000
    assert found["sms:7:2026-11-21"] == '{"a":[7,"é7"],"k":{"day":{"$d":"2026-11-21"}}}'.encode()
    again = bulk(spark, files, options)
    assert (again.rows, again.created, again.before) == (1_000, 1_000, 1_000)
    assert take(broker, 1) == {}
    last = bulk(spark, files, options)
    assert last.was_over
    assert (last.rows, dict(last.counts)) == (1_000, {"created": 1_000})


@pytest.mark.usefixtures("kept_open")
def test_a_run_is_not_gone_on_with_by_other_files_or_words(
    spark: SparkSession, broker: Broker, how: dict[str, Any], parquet: Path
) -> None:
    def differs(source: Files, **said: Any) -> str:
        with pytest.raises(loads.BulkLoadDiffers) as caught:
            bulk(spark, source, BulkOptions(**{**how, "run_id": "r", **said}))
        return str(caught.value)

    files = Files((str(parquet),))
    bulk(spark, files, BulkOptions(**how, run_id="r"))
    assert "words was" in differs(files, args=("pk",))
    assert "words was" in differs(files, id="sms:{pk}")
    assert "words was" in differs(files, group="name")
    assert "chunk was" in differs(files, more={"chunk": "100"})
    assert "queue was" in differs(files, queue="other")
    assert "priority was" in differs(files, more={"priority": "1"})
    os.utime(parquet / "0.parquet", (1, 1))
    told = differs(files)
    assert "files was '2 (0.parquet, 1.parquet)" in told
    assert "begin a new bulk load" in told


@pytest.mark.usefixtures("kept_open")
def test_other_cores_cut_the_files_of_a_run_as_before(
    spark: SparkSession, broker: Broker, how: dict[str, Any], parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, options = Files((str(parquet),)), BulkOptions(**how, run_id="r")
    with monkeypatch.context() as patched:
        patched.setattr(module, "PART_BYTES", 2_000)
        patched.setattr(module, "least_parts", lambda spark: 5)
        bulk(spark, files, options)
    assert bulk(spark, files, options).created == 1_000
    run = loads.read_load(broker, "r")
    assert run is not None
    assert dict(run.source)["least_parts"] == "5"
    assert dict(loads.progress(broker, run)) == {"created": 1_000}


def test_a_run_that_failed_for_rows_without_an_id_puts_them_aside_in_a_quarantine(
    spark: SparkSession, broker: Broker, how: dict[str, Any], stored: Stored, tmp_path: Path
) -> None:
    rows = stored(spark.sql("SELECT IF(id % 10 = 0, NULL, id) AS pk, date '2026-11-21' AS day FROM range(100)"))
    with pytest.raises(PipelineError, match="id is null") as caught:
        bulk(spark, rows, BulkOptions(**how, run_id="a"))
    assert "option('runId', 'a')" in str(caught.value)
    aside = str(tmp_path / "aside")
    result = bulk(spark, rows, BulkOptions(**how, run_id="a", quarantine=aside))
    assert (result.rows, result.created, result.bad) == (100, 90, 10)
    assert pq.read_table(aside).num_rows == 10
    assert len(take(broker, 200)) == 90


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ('pk,day,at\n1,x,2030-01-02T03:04:05Z\n2,"y,""z",\n', Files(("rows.csv",), "csv")),
        (
            '{"pk": "1", "day": "x", "at": "2030-01-02T03:04:05Z"}\n{"pk": "2", "day": "y,\\"z"}\n',
            Files(("rows.json",), "json"),
        ),
    ],
)
def test_texts_of_csv_and_json_are_read(
    spark: SparkSession, broker: Broker, how: dict[str, Any], tmp_path: Path, text: str, files: Files
) -> None:
    path = tmp_path / files.paths[0]
    path.write_text(text)
    result = bulk(
        spark,
        Files((str(path),), files.format),
        BulkOptions(**how, due="at", args=("pk",), run_id="r", quarantine=str(tmp_path / "aside")),
    )
    assert (result.created, result.bad) == (1, 1)
    (aside,) = pq.read_table(tmp_path / "aside").to_pylist()
    assert aside["id"] == 'sms:2:y,"z'
    assert aside["reason"].startswith("due is null")


def test_a_file_that_is_not_what_it_is_called_is_told(
    spark: SparkSession, broker: Broker, how: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match="no-such"):
        bulk(spark, Files((str(tmp_path / "no-such"),)), BulkOptions(**how))
    (tmp_path / "rows.csv").write_text("pk,day\n1,2\n3,4,5,6\n")
    files = Files((str(tmp_path / "rows.csv"),), "csv", "pk INT, day INT")
    with pytest.raises(PipelineError):
        bulk(spark, files, BulkOptions(**how, run_id="r"), total=2)


@pytest.mark.django_db(transaction=True)
def test_the_rows_of_a_model_become_jobs_and_a_resumed_load_has_those_of_its_beginning(
    spark: SparkSession, delayq: Broker, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_task(name="bulk.due", queue="due")(lambda pk: None)
    settings.DELAYQ = {**settings.DELAYQ, "PIPELINE": {"root": str(tmp_path / "history")}}
    copies = tmp_path / "history" / "_bulk"
    for n in range(20):
        Customer.objects.create(name=f"c{n}", email=f"{n}@{'nowhere' if n < 5 else 'example.com'}")
    words = ["bulk", "--model", "shop.Customer", "--filter", '{"email__endswith": "example.com"}', "--task", "bulk.due"]
    words += ["--id", "item-{id}", "--due", "+1h", "--args", "name", "--yes", "--run-id", "r"]
    call_command("delayq_pipeline", *words, "--dry-run", stdout=StringIO(), stderr=StringIO())
    assert list(copies.iterdir()) == []

    def die(*_: object, **__: object) -> None:
        raise ConnectionResetError("died")

    with monkeypatch.context() as patched:
        patched.setattr("django_delayq.core.loads.close_load", die)
        with pytest.raises((ConnectionResetError, CommandError), match="died"):
            call_command("delayq_pipeline", *words, stdout=StringIO(), stderr=StringIO())
    assert len(list(copies.rglob("*.parquet"))) == 1
    Customer.objects.filter(name="c7").delete()
    other = [word.replace("example.com", "com") for word in words]
    with pytest.raises(CommandError, match="files was"):
        call_command("delayq_pipeline", *other, stdout=StringIO(), stderr=StringIO())
    out = StringIO()
    call_command("delayq_pipeline", *words, stdout=out, stderr=StringIO())
    told = json.loads(out.getvalue())
    assert (told["rows"], told["created"], told["before"]) == (15, 15, 15)
    jobs = delayq.inspector.page("due", "waiting", limit=50).jobs
    assert sorted(job.job.args for job in jobs) == sorted(b'["c%d"]' % n for n in range(5, 20))
    assert list(copies.iterdir()) == [], "a load that is complete needs no rows"
    out = StringIO()
    call_command("delayq_pipeline", *words, stdout=out, stderr=StringIO())
    assert (json.loads(out.getvalue())["was_over"], list(copies.iterdir())) == (True, [])


# -- the dry run -------------------------------------------------------------------------------------------------------


def test_a_dry_run_tells_what_would_be_and_changes_nothing(
    spark: SparkSession, broker: Broker, how: dict[str, Any], stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = stored(
        spark.sql(
            "SELECT IF(id = 0, NULL, id) AS pk, date '2026-11-21' AS day, "
            "IF(id = 1, NULL, timestamp_millis(1893456000000 + id * 1000)) AS at FROM range(300)"
        )
    )
    before = raw(broker)
    monkeypatch.setattr(module, "STORM", 50)
    found = rehearse(spark, rows, BulkOptions(**how, due="at", args=("pk",), more={"shards": "3"}))
    assert raw(broker) == before == {}
    assert broker.client.dbsize() == 0
    assert (found.rows, found.due_now) == (300, 0)
    assert found.faults == {"id is null, because a part of it is": 1, "due is null": 1}
    assert found.dues == [(1_893_456_000_000, 298)]
    assert found.busiest_minute == (1_893_456_060_000, 60)
    assert len(found.first) == 5
    assert [ident for ident, _ in found.bad] == ["None", "'sms:1:2026-11-21'"]
    words = " | ".join(found.warnings)
    assert "60 jobs fall due within one minute" in words
    assert "1 rows: id is null" in words


def test_a_dry_run_counts_rows_of_many_minutes_by_minute(
    spark: SparkSession, broker: Broker, how: dict[str, Any], stored: Stored
) -> None:
    rows = stored(
        spark.sql(
            "SELECT IF(id = 7, NULL, id) AS pk, IF(id = 9, NULL, timestamp_seconds(2000000000 + 60 * id)) "
            "AS at FROM range(2000)"
        )
    )
    found = rehearse(spark, rows, BulkOptions(**{**how, "id": "sms:{pk}"}, due="at", more={"shards": "4"}))
    assert (found.rows, sum(found.faults.values()), found.due_now) == (2_000, 2, 0)
    assert [count for _, count in found.dues][1:3] == [60, 60]
    assert (sum(count for _, count in found.dues), found.busiest_minute[1]) == (1_998, 1)


def test_the_memory_of_a_dry_run_is_that_of_the_real_one(
    spark: SparkSession, broker: Broker, how: dict[str, Any], stored: Stored
) -> None:
    rows = stored(spark.sql("SELECT id AS pk, date '2026-11-21' AS day, repeat('x', 60) AS text FROM range(20000)"))
    options = BulkOptions(**how, due="+1h", args=("pk", "text"), more={"shards": "2"})
    estimate = rehearse(spark, rows, options).bytes
    before = broker.client.info("memory")["used_memory"]
    bulk(spark, rows, options)
    used = broker.client.info("memory")["used_memory"] - before
    assert 0.7 < estimate / used < 1.4


# -- the command -------------------------------------------------------------------------------------------------------


def run(*arguments: str, err: StringIO | None = None) -> dict[str, Any]:
    out = StringIO()
    call_command("delayq_pipeline", "bulk", *arguments, stdout=out, stderr=err or StringIO(), no_color=True)
    told: dict[str, Any] = json.loads(out.getvalue())
    return told


@pytest.mark.django_db(transaction=True)
def test_the_command_uses_the_tasks_own_queue_and_policy_and_keeps_a_row(
    spark: SparkSession, delayq: Broker, parquet: Path, settings: Any
) -> None:
    make_task(name="bulk.mail", queue="mails", priority=2, shards=3, expires=60)(lambda pk: None)
    settings.TIME_ZONE = "America/Chicago"
    due = in_days(30) + timedelta(milliseconds=678)
    words = (
        str(parquet),
        "--task",
        "bulk.mail",
        "--id",
        "mail:{pk}",
        "--due",
        due.isoformat(),
        "--args",
        "pk",
        "--run-id",
        "r",
    )
    preview = StringIO()
    dry = run(*words, "--dry-run", err=preview)
    assert (dry["rows"], dry["busiest_minute"]["rows"]) == (1_000, 1_000)
    assert "1,000 rows, 0 of them due now" in preview.getvalue(), "for people, on stderr"
    assert PipelineRun.objects.count() == 0
    told = run(*words)
    assert {name: told[name] for name in ("run_id", "rows", "created", "known", "bad", "was_over")} == {
        "run_id": "r",
        "rows": 1_000,
        "created": 1_000,
        "known": 0,
        "bad": 0,
        "was_over": False,
    }
    assert run(*words)["was_over"] is True
    job = delayq.inspector.page("mails", "waiting", limit=1).jobs[0]
    due_ms = round(due.timestamp() * 1000)
    assert (job.due_ms, job.job.priority, job.job.options) == (due_ms, 2, {"expires_in_ms": 60_000})
    assert len(delayq.queue("mails").numbers) == 3
    row, _ = PipelineRun.objects.order_by("pk")
    assert (row.kind, row.state, row.run_id, row.queue, row.task, row.rows, row.created) == (
        "bulk",
        "finished",
        "r",
        "mails",
        "bulk.mail",
        1_000,
        1_000,
    )


@pytest.mark.django_db(transaction=True)
def test_a_command_that_fails_says_once_how_its_run_is_resumed(
    spark: SparkSession, delayq: Broker, tmp_path: Path
) -> None:
    make_task(name="bulk.broken")(lambda pk: None)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"pk": pa.array([1, None])}), path)
    words = (str(path), "--task", "bulk.broken", "--id", "{pk}", "--yes")
    with pytest.raises(CommandError) as caught:
        run(*words)
    run_id = PipelineRun.objects.get().run_id
    assert f"'runId', '{run_id}') to resume it" in str(caught.value)
    assert "the same command" not in str(caught.value)


@pytest.mark.django_db(transaction=True)
def test_the_command_warns_before_it_writes_a_new_run_and_does_not_look_at_a_known_one(
    spark: SparkSession, delayq: Broker, parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STORM", 999)
    make_task(name="bulk.warn")(lambda pk: None)
    words = (str(parquet), "--task", "bulk.warn", "--id", "{pk}", "--due", "+1h", "--run-id", "r")
    with pytest.raises(CommandError, match="1,000 jobs fall due within one minute"):
        run(*words)
    assert delayq.queue_names() == []
    assert loads.read_load(delayq, "r") is None
    assert PipelineRun.objects.get().state == "failed"
    assert run(*words, "--yes")["created"] == 1_000
    assert run(*words)["was_over"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--task", "bulk.mail", "--id", "{pk}"), "give either paths of files or --model"),
        (("x", "--model", "a.B", "--task", "bulk.mail", "--id", "{pk}"), "give either paths of files or --model"),
        (("x", "--filter", "{}", "--task", "bulk.mail", "--id", "{pk}"), "--filter needs --model"),
        (("x", "--task", "bulk.nobody", "--id", "{pk}"), "there is no task 'bulk.nobody'"),
        (("x", "--id", "{pk}"), "the task is missing"),
        (("x", "--queue", "q", "--id", "{pk}"), "the task is missing"),
        (("x", "--task", "bulk.merged", "--id", "{pk}"), "is merged: its jobs need a --payload"),
        (("x", "--task", "bulk.plain", "--id", "{pk}", "--payload", "pk"), "is not merged: leave --payload out"),
    ],
)
def test_the_command_refuses_what_cannot_be(delayq: Broker, words: tuple[str, ...], told: str) -> None:
    make_task(name="bulk.merged", merge=True)(lambda payloads: None)
    make_task(name="bulk.plain")(lambda pk: None)
    with pytest.raises(CommandError, match=told) as caught:
        run(*words)
    assert caught.value.returncode == 2


@pytest.mark.django_db(transaction=True)
def test_bad_rows_are_no_reason_to_refuse_where_there_is_a_quarantine(
    spark: SparkSession, delayq: Broker, tmp_path: Path
) -> None:
    make_task(name="bulk.odd")(lambda pk: None)
    pq.write_table(pa.table({"pk": ["1", None, "a\x07"]}), tmp_path / "rows.parquet")
    words = (str(tmp_path / "rows.parquet"), "--task", "bulk.odd", "--id", "{pk}")
    with pytest.raises(CommandError, match="1 rows: id is null"):
        run(*words)
    told = run(*words, "--quarantine", str(tmp_path / "aside"))
    assert (told["created"], told["bad"]) == (1, 2)


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
        run("nowhere://key:hunter2@bucket/rows.csv", "--format", "csv", "--task", "bulk.secret", "--id", "{pk}")
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
