"""``df.write.format("delayq")`` on real Spark and real Redis."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructField, StructType

from django_delayq import schedule_many, task as make_task
from django_delayq.core import loads
from django_delayq.core.broker import Broker
from django_delayq.core.errors import Misconfigured
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import ack
from django_delayq.pipeline import register
from django_delayq.pipeline.bulk import BulkOptions, bulk, jobs
from django_delayq.pipeline.inputs import Files
from django_delayq.pipeline.options import open_broker
from django_delayq.pipeline.writer import batch_writer
from tests.core.bulk_loads_stage import list_loads
from tests.core.world import read_world

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.redis_box import RedisBox

NOW = datetime.now(UTC).replace(microsecond=0)
SOON = NOW + timedelta(hours=1)
DUE = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
AT = "timestamp '2031-02-03T04:05:06Z'"

Stored = Callable[[Any], Files]


@pytest.fixture
def target(redis_setting: Any, prefix: str) -> dict[str, str]:
    """The options that lead to the test's Redis."""
    return {"redis": redis_setting if isinstance(redis_setting, str) else json.dumps(redis_setting), "prefix": prefix}


def write(df: DataFrame, target: dict[str, str], **options: Any) -> None:
    said = {"queue": "q", "task": "app.send", **target, **{name: str(value) for name, value in options.items()}}
    df.write.format("delayq").options(**said).mode("append").save()


def rows(spark: SparkSession, n: int, parts: int = 2) -> DataFrame:
    """Ids ``job-0`` … with their number as the argument, due at once."""
    return spark.range(0, n, 1, parts).select(
        F.concat(F.lit("job-"), F.col("id").cast("string")).alias("id"), F.array("id").alias("args")
    )


def take(broker: Broker, n: int, queue: str = "q") -> dict[str, bytes]:
    """Runs the due jobs of a queue: their ids and arguments."""
    found: dict[str, bytes] = {}
    one = broker.queue(queue)
    for number in one.numbers:
        while len(found) < n and (jobs := one.reserve(number, n - len(found), worker="test").jobs):
            found |= {job.id: job.args for job in jobs}
            one.settle([ack(job, 1, 1) for job in jobs])
    return found


def counts(broker: Broker, run_id: str) -> dict[str, int]:
    run = loads.read_load(broker, run_id)
    assert run is not None
    return dict(loads.progress(broker, run))


def refusal(run: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:
        run()
    return str(caught.value)


@pytest.fixture
def case_sensitive(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.unset("spark.sql.caseSensitive")


def waiting(broker: Broker) -> dict[str, int]:
    """Return the due times of the jobs, Unix ms."""
    return {view.id: view.due_ms for view in broker.inspector.page("q", "waiting", limit=200).jobs}


# -- what is written ---------------------------------------------------------------------------------------------------


def test_spark_and_schedule_many_make_the_same_world(
    spark: SparkSession, delayq: Broker, target: dict[str, str]
) -> None:
    def send(*args: object, **kwargs: object) -> None: ...

    task = make_task(name="world.send", max_attempts=3)(send)
    entries = [
        {
            "args": [n, f'"é{n}"', n / 8],
            "kwargs": {"to": {"b": [SOON], "a": None}},
            "id": f"order-{n}",
            "at": SOON + timedelta(milliseconds=n),
            "context": {"trace": str(n)},
            "priority": n % 8,
        }
        for n in range(40)
    ]
    delayq.queue("ours", shards=1)
    schedule_many(task, entries, queue="ours")
    data = [(e["id"], e["at"], tuple(e["args"]), (e["kwargs"]["to"],), e["context"], e["priority"]) for e in entries]
    df = spark.createDataFrame(
        data,
        "id string, due timestamp, args struct<n: long, t: string, d: double>, "
        "kwargs struct<to: struct<b: array<timestamp>, a: string>>, "
        "context map<string, string>, priority int",
    )
    write(df, target, queue="theirs", task="world.send", onConflict="replace")
    ours, theirs = (world(delayq, queue) for queue in ("ours", "theirs"))
    assert ours == theirs
    assert len(ours["lives"]) == 40


def world(broker: Broker, queue: str) -> dict[str, Any]:
    """Return the live jobs of a queue, without the keys of generations and the statistics."""
    found = read_world(broker.queue(queue), broker.queue(queue).numbers[0])
    for live in found["lives"].values():
        live["content"] = (
            *(getattr(live["content"], name) for name in ("task", "merged", "args", "options", "priority")),
        )
    return {name: found[name] for name in ("waiting", "lives")}


def test_every_byte_of_a_payload_arrives(spark: SparkSession, broker: Broker, target: dict[str, str]) -> None:
    payloads = [bytes(range(256)), b"", b"\r\n\0", b"\xff\xfe$3\r\n", bytes(100_000)]
    df = spark.createDataFrame([(f"p{n}", data) for n, data in enumerate(payloads)], "id string, payload binary")
    df.write.format("delayq").options(queue="raw", kind="pull", shards="3", **target).mode("append").save()
    assert take(broker, 10, "raw") == {f"p{n}": data for n, data in enumerate(payloads)}
    _, layout = broker.read_layout("raw")
    assert layout is not None
    assert (layout["kind"], layout["shards"]) == ("pull", 3)


def test_due_times_do_not_depend_on_the_sessions_zone(
    spark: SparkSession, broker: Broker, target: dict[str, str]
) -> None:
    df = spark.sql(
        "SELECT 'x' AS id, timestamp '2027-03-28T01:30:00.1234Z' AS due, "
        "array(timestamp '2027-03-28T01:30:00Z') AS args"
    )
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")  # an hour that is not there in Berlin
    try:
        write(df, target)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    seen = broker.inspector.page("q", "waiting", limit=5).jobs[0]
    assert seen.due_ms == int(datetime(2027, 3, 28, 1, 30, tzinfo=UTC).timestamp() * 1000) + 124
    assert seen.job.args == b'[{"$dt":"2027-03-28T01:30:00+00:00"}]'


def test_merged_jobs_are_united(spark: SparkSession, broker: Broker, target: dict[str, str]) -> None:
    df = spark.createDataFrame(
        [("crm-1", {"a": 1}, 2), ("crm-1", {"a": 2}, 1), ("crm-2", {"a": 3}, 5), ("crm-1", {"a": 1}, 7)],
        "id string, payload map<string, int>, score int",
    )
    write(df.coalesce(1), target, runId="united")
    found = read_world(broker.queue("q"), broker.queue("q").numbers[0])["lives"]
    assert {name: [(p.data, p.score) for p in live["waiting"]] for name, live in found.items()} == {
        "crm-1": [(b'{"a":2}', "1"), (b'{"a":1}', "2")],
        "crm-2": [(b'{"a":3}', "5")],
    }


# -- once, however often it is sent ------------------------------------------------------------------------------------


def test_a_second_write_of_a_run_adds_nothing_even_when_its_jobs_are_gone(
    spark: SparkSession, broker: Broker, target: dict[str, str]
) -> None:
    write(rows(spark, 1_000), target, runId="r", close="false")
    assert len(take(broker, 1_000)) == 1_000
    write(rows(spark, 1_000), target, runId="r")
    assert take(broker, 1_000) == {}
    assert counts(broker, "r") == {"created": 1_000}


def test_a_run_that_is_over_writes_nothing(spark: SparkSession, broker: Broker, target: dict[str, str]) -> None:
    write(rows(spark, 10), target, runId="r")
    write(rows(spark, 20), target, runId="r")
    assert len(take(broker, 100)) == 10
    assert counts(broker, "r") == {"created": 10}


def test_a_run_is_not_gone_on_with_by_other_columns(
    spark: SparkSession, broker: Broker, target: dict[str, str]
) -> None:
    write(rows(spark, 10), target, runId="r", close="false")
    assert "columns was" in refusal(lambda: write(rows(spark, 10).drop("args"), target, runId="r"))
    assert "priority was" in refusal(lambda: write(rows(spark, 10), target, runId="r", priority=1))
    assert "chunk was" in refusal(lambda: write(rows(spark, 10), target, runId="r", chunk=10))
    write(rows(spark, 10), target, runId="r", rateLimit=1e6, maxMemory=0.5)


def test_without_a_run_id_each_write_is_a_run_of_its_own(
    spark: SparkSession, broker: Broker, target: dict[str, str]
) -> None:
    write(rows(spark, 10), target)
    take(broker, 10)
    write(rows(spark, 10), target)
    assert len(take(broker, 100)) == 10
    assert [run.closed for run in list_loads(broker)] == [True, True]


def test_no_rows_make_an_empty_run(spark: SparkSession, broker: Broker, target: dict[str, str]) -> None:
    write(rows(spark, 0), target, runId="r")
    assert [(run.id, run.closed, counts(broker, run.id)) for run in list_loads(broker)] == [("r", True, {})]


def test_a_stream_that_replays_a_batch_adds_nothing(
    spark: SparkSession, broker: Broker, target: dict[str, str], tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"

    def load(batch: DataFrame, number: int) -> None:
        register(batch.sparkSession)
        write(batch, target, runId=f"crm-{number}")

    def stream() -> None:
        df = spark.readStream.schema("id string, args array<long>").option("maxFilesPerTrigger", 1).parquet(str(source))
        query = df.writeStream.foreachBatch(load).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    for n in range(3):
        rows(spark, 100 * (n + 1), 1).filter(F.col("args")[0] >= 100 * n).write.mode("append").parquet(str(source))
    stream()
    assert len(take(broker, 1_000)) == 300
    for name in ("2", ".2.crc"):  # as if Spark had died before it noted that the batch is in
        (checkpoint / "commits" / name).unlink()
    stream()
    assert take(broker, 1_000) == {}
    assert sorted(run.id for run in list_loads(broker)) == ["crm-0", "crm-1", "crm-2"]


# -- rows that are no jobs ---------------------------------------------------------------------------------------------


def test_bad_rows_are_put_aside_with_the_reason(
    spark: SparkSession, broker: Broker, target: dict[str, str], tmp_path: Path
) -> None:
    df = rows(spark, 100).withColumn("priority", F.when(F.col("id").endswith("7"), 9).otherwise(1))
    for _ in range(2):
        write(df, target, runId="bad", quarantine=tmp_path / "aside", close="false")
    assert counts(broker, "bad") == {"created": 90}
    aside = pq.read_table(tmp_path / "aside").to_pylist()
    assert sorted(row["id"] for row in aside) == sorted(f"job-{n}7" if n else "job-7" for n in range(10))
    assert {row["reason"] for row in aside} == {"priority must be 0 to 7, got 9"}
    assert list((tmp_path / "aside").glob(".*")) == []


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("id int, task string", {}, "no column 'task'. Known columns: id, due"),
        ("id int, arguments int", {}, "no column 'arguments'. Did you mean 'args'? Known columns: id, due"),
        ("i int", {}, "no column 'i'"),
        ("args array<int>", {}, "no column id"),
        ("id double", {}, "column id is double, but it has to be one of string, tinyint"),
        ("id int, due date", {}, "column due is date"),
        ("id int, due timestamp_ntz", {}, "column due is timestamp_ntz"),
        ("id int, due timestamp, due_ms long", {}, "keep one of them"),
        ("id int, args array<int>, payload int", {}, "keep one of them"),
        ("id int, score int", {}, "give a column payload"),
        ("id int, kwargs struct<a: int>", {"encoded": "true"}, "leave kwargs out"),
        ("id int", {"task": " "}, "task is empty"),
        ("id int", {"queue": "no queue"}, "queue name"),
        ("id int", {"onConflict": "update"}, "must be one of merge, replace, ignore, error"),
        ("id int", {"onConflikt": "error"}, "Did you mean 'onConflict'"),
        ("id int", {"priority": "8"}, "0 to 7"),
        ("id int", {"context": "[]"}, "JSON object"),
        ("id int", {"source": "[]"}, "JSON object"),
        ("id int", {"runId": "a b"}, "characters without spaces"),
        ("id int", {"rateLimit": "fast"}, "rateLimit must be a number from 0.001 to 1e+09, got 'fast'"),
        ("id int", {"close": "perhaps"}, "must be one of true, false"),
        ("id int", {"chunk": "251"}, "from 1 to 250"),
        ("id int", {"kind": "pull"}, "has no tasks"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(
    spark: SparkSession, broker: Broker, target: dict[str, str], columns: str, options: dict[str, str], words: str
) -> None:
    schema = StructType.fromDDL(columns)
    said = CaseInsensitiveDict({"queue": "q", "task": "app.send", **target, **options})
    assert words in refusal(lambda: batch_writer(said, schema, False))
    assert broker.client.hlen(broker.queues_key) == 0


def test_a_run_that_was_begun_with_other_input_is_refused_before_anything_runs(
    broker: Broker, target: dict[str, str]
) -> None:
    loads.open_load(broker, "r", "q", source={"files": "of yesterday"})
    schema = StructType([StructField("id", StringType())])
    said = {"queue": "q", "task": "app.send", "runId": "r", **target}
    assert "begin a new bulk load" in refusal(lambda: batch_writer(said, schema, False))


def test_a_queue_and_a_task_have_to_be_named(spark: SparkSession, target: dict[str, str]) -> None:
    schema = StructType.fromDDL("id int")
    assert "which queue?" in refusal(lambda: batch_writer({"task": "t", **target}, schema, False))
    assert "which task?" in refusal(lambda: batch_writer({"queue": "q", **target}, schema, False))


def test_only_append_is_a_mode(spark: SparkSession, broker: Broker, target: dict[str, str]) -> None:
    made = rows(spark, 1).write.format("delayq").options(queue="q", task="t", **target)
    assert '.mode("append")' in refusal(lambda: made.mode("overwrite").save())
    assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in refusal(lambda: made.mode("error").save())


#: three tasks; a row of the second one is no job
MIXED = "SELECT concat('j', id) AS id, if(id = 4, 9, 1) AS priority FROM range(0, 9, 1, 3)"


def failed_tasks(spark: SparkSession, group: str) -> int:
    tracker: Any = spark.sparkContext.statusTracker()
    stages = [stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds]
    infos = [tracker.getStageInfo(stage) for stage in stages]
    assert any(info.numCompletedTasks for info in infos)
    return sum(int(info.numFailedTasks) for info in infos)


def test_a_bad_row_fails_no_task_so_that_none_is_tried_again_and_its_message_comes_first(
    spark: SparkSession, broker: Broker, target: dict[str, str]
) -> None:
    spark.sparkContext.setJobGroup("bad row", "")
    try:
        said = refusal(lambda: write(spark.sql(MIXED), target, runId="r"))
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert failed_tasks(spark, "bad row") == 0
    reason = (
        "the row with id 'j4' cannot be written: priority must be 0 to 7, got 9. Bulk load r is open: repeat the write"
    )
    assert reason in said.partition("\n")[0]
    assert "Traceback" not in said


def test_what_cannot_be_written_at_all_is_told_in_the_first_line(
    spark: SparkSession, broker: Broker, target: dict[str, str]
) -> None:
    said = refusal(lambda: write(spark.sql("SELECT 'a' AS id, 1 AS prio"), target))
    assert "jobs have no column 'prio'. Did you mean 'priority'?" in said.partition("\n")[0]
    assert "Traceback" not in said


def test_a_write_with_a_bad_row_is_open_and_is_completed_once(
    spark: SparkSession, broker: Broker, target: dict[str, str], tmp_path: Path
) -> None:
    refusal(lambda: write(spark.sql(MIXED), target, runId="r"))
    assert waiting(broker).keys() == {f"j{n}" for n in (0, 1, 2, 6, 7, 8)}, "the other tasks' rows"
    (run,) = list_loads(broker)
    assert not run.closed
    write(spark.sql(MIXED), target, runId="r", quarantine=tmp_path / "aside")
    (run,) = list_loads(broker)
    assert run.closed
    assert loads.progress(broker, run) == {"created": 8}
    assert waiting(broker).keys() == {f"j{n}" for n in range(9) if n != 4}


# -- names of columns --------------------------------------------------------------------------------------------------


def test_names_of_columns_are_compared_without_regard_to_case(
    spark: SparkSession, broker: Broker, target: dict[str, str]
) -> None:
    write(spark.sql(f"SELECT 'a' AS ID, {AT} AS Due, array(1) AS ARGS"), target, runId="r")
    assert waiting(broker) == {"a": DUE.timestamp() * 1000}
    write(spark.sql(f"SELECT 'a' AS id, {AT} AS due, array(1) AS args"), target, runId="r")
    said = refusal(lambda: write(spark.sql("SELECT 'a' AS id, 'b' AS `ID`"), target))
    assert "there are several columns id; leave all but one out" in said


def test_names_of_the_input_are_compared_with_regard_to_case_where_spark_does_so(
    spark: SparkSession,
    broker: Broker,
    target: dict[str, str],
    stored: Stored,
    case_sensitive: None,
) -> None:
    write(spark.sql("SELECT 'a' AS id"), target)
    write(spark.sql("SELECT 'b' AS ID"), target)
    assert waiting(broker).keys() == {"a", "b"}, "the names of the format mean the same in any case"
    rows = spark.sql("SELECT 1 AS pk, 2 AS PK")
    assert bulk(spark, stored(rows), BulkOptions(**target, queue="q", task="t", id="x{pk}")).created == 1
    with pytest.raises(Misconfigured, match="no column 'Pk'"):
        bulk(spark, stored(rows), BulkOptions(**target, queue="q", task="t", id="x{Pk}"))


def test_a_bulk_write_finds_columns_as_spark_does(
    spark: SparkSession, broker: Broker, target: dict[str, str], stored: Stored
) -> None:
    rows = spark.sql(f"SELECT 7 AS Pk, {AT} AS send_at")
    options = BulkOptions(**target, queue="q", task="t", id="sms:{PK}", due="Send_At", args=("pk",))
    assert bulk(spark, stored(rows), options).created == 1
    assert waiting(broker) == {"sms:7": DUE.timestamp() * 1000}
    with pytest.raises(Misconfigured, match=r"several columns 'PK' \(pk, PK\); leave all but one out"):
        jobs(spark.sql("SELECT 1 AS pk, 2 AS PK"), options, 0)


def test_a_schema_for_reading_may_be_written_in_any_case(
    spark: SparkSession, broker: Broker, target: dict[str, str]
) -> None:
    broker.queue("q").schedule(NewJob("a", "t", due_ms=int(DUE.timestamp() * 1000), delay_ms=None))
    for schema in ("ID string, Due timestamp", "ID string, Due timestamp, TASK string, Queue string"):
        (row,) = spark.read.format("delayq").options(**target).schema(schema).load().toArrow().to_pylist()
        assert {name.lower(): value for name, value in row.items()} == {
            "id": "a",
            "due": DUE,
            **({"task": "t", "queue": "q"} if "TASK" in schema else {}),
        }
        assert list(row) == [part.split()[0] for part in schema.split(", ")]
    events = spark.read.format("delayq.events").options(**target).schema("Queue string, ID string").load()
    assert events.columns == ["Queue", "ID"]
    assert events.count() == 0


# -- due times that are null -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "due",
    [
        f"if(id = 1, {AT}, null) AS due",
        "if(id = 1, 1927857906000, null) AS due_ms",
        "null AS due",
    ],
)
def test_a_null_due_time_means_now(spark: SparkSession, broker: Broker, target: dict[str, str], due: str) -> None:
    before = broker.now_ms()
    write(spark.sql(f"SELECT concat('j', id) AS id, {due} FROM range(2)"), target)
    found = waiting(broker)
    assert found.keys() == {"j0", "j1"}
    assert before - 1 <= found["j0"] <= broker.now_ms()
    assert found["j1"] == found["j0"] or found["j1"] == DUE.timestamp() * 1000 == 1_927_857_906_000
    assert ("null AS" in due) == (found["j1"] == found["j0"])


def test_a_null_due_time_can_be_refused(spark: SparkSession, broker: Broker, target: dict[str, str]) -> None:
    said = refusal(lambda: write(spark.sql("SELECT 'a' AS id, timestamp(null) AS due"), target, nullDue="fail"))
    assert "the row with id 'a' cannot be written: due is null" in said
    assert waiting(broker) == {}


# -- Redis -------------------------------------------------------------------------------------------------------------


def test_a_redis_that_may_throw_jobs_away_is_refused(
    spark: SparkSession, redis_factory: Callable[..., RedisBox]
) -> None:
    box = redis_factory(maxmemory_policy="allkeys-lru")
    assert "CONFIG SET maxmemory-policy noeviction" in refusal(lambda: write(rows(spark, 1), {"redis": box.url}))


def test_a_rate_is_kept_by_all_tasks_together(spark: SparkSession, broker: Broker, target: dict[str, str]) -> None:
    write(rows(spark, 1), target)  # Spark's workers are there
    began = time.monotonic()
    write(rows(spark, 1_000), {**target, "queue": "unlimited"}, chunk=50)
    unlimited = time.monotonic() - began
    began = time.monotonic()
    write(rows(spark, 1_000), target, rateLimit=1_000, chunk=50)
    assert 0.85 <= time.monotonic() - began < 1.5 + 3 * unlimited
    assert len(take(broker, 2_000)) == 1_000


def test_a_redis_that_is_nearly_full_is_waited_for(spark: SparkSession, redis_factory: Callable[..., RedisBox]) -> None:
    box = redis_factory()
    used = int(box.client().info("memory")["used_memory"])
    box.client().config_set("maxmemory", used + (used // 10) + 20_000_000)
    told = refusal(lambda: write(rows(spark, 10), {"redis": box.url}, maxMemory=0.001, patience=0.5, runId="r"))
    assert "stops at 0%" in told
    assert "runId" in told
    write(rows(spark, 10), {"redis": box.url}, runId="r")


def test_a_paused_queue_is_waited_for(spark: SparkSession, broker: Broker, target: dict[str, str]) -> None:
    broker.queue("q")
    broker.pause("q", "in")
    assert "paused for new jobs" in refusal(lambda: write(rows(spark, 10), target, runId="r", patience=0.3))
    broker.resume("q", "in")
    write(rows(spark, 10), target, runId="r")
    assert len(take(broker, 100)) == 10


def test_a_redis_that_dies_is_told_within_seconds_and_the_run_goes_on_later(
    spark: SparkSession, redis_factory: Callable[..., RedisBox]
) -> None:
    box = redis_factory(aof="always")
    target = {"redis": box.url}
    df = rows(spark, 3_000)

    def kill_in_the_middle() -> None:
        while not any(key.endswith(b":body") for key in box.client().scan_iter("*")):
            time.sleep(0.01)
        box.kill()

    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    began = time.monotonic()
    told = refusal(lambda: write(df, target, rateLimit=1_500, chunk=50, runId="r"))
    killer.join()
    assert time.monotonic() - began < 30
    assert "option('runId', 'r')" in told
    box.start()
    write(df, target, chunk=50, runId="r")
    with open_broker(target) as broker:
        assert counts(broker, "r") == {"created": 3_000}
        assert len(take(broker, 4_000)) == 3_000
