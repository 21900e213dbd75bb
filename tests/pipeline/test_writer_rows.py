"""Names of columns, null due times, and rows that are no jobs: what a write makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_delayq.core import loads
from django_delayq.core.broker import Broker
from django_delayq.core.errors import Misconfigured
from django_delayq.core.job import NewJob
from django_delayq.pipeline.bulk import BulkOptions, bulk, jobs
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.inputs import Files
from tests.core.bulk_loads_stage import list_loads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DUE = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
AT = "timestamp '2031-02-03T04:05:06Z'"

Stored = Callable[[Any], Files]


@pytest.fixture
def door(redis_url: str, prefix: str) -> dict[str, str]:
    return {"redis": redis_url, "prefix": prefix}


@pytest.fixture
def target(door: dict[str, str]) -> dict[str, str]:
    return {**door, "queue": "q", "task": "app.send"}


@pytest.fixture
def case_sensitive(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.unset("spark.sql.caseSensitive")


def write(frame: DataFrame, target: dict[str, str], **options: Any) -> None:
    said = {**target, **{name: str(value) for name, value in options.items()}}
    frame.write.format("delayq").options(**said).mode("append").save()


def refusal(call: Callable[[], object]) -> str:
    """Return the text of the error with which a write fails."""
    with pytest.raises(Exception, match=r"delayq|PipelineError") as caught:
        call()
    return str(caught.value)


def waiting(broker: Broker) -> dict[str, int]:
    """Return the due times of the jobs, Unix ms."""
    return {view.id: view.due_ms for view in broker.inspector.page("q", "waiting", limit=200).jobs}


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
    door: dict[str, str],
    stored: Stored,
    case_sensitive: None,
) -> None:
    write(spark.sql("SELECT 'a' AS id"), target)
    write(spark.sql("SELECT 'b' AS ID"), target)
    assert waiting(broker).keys() == {"a", "b"}, "the names of the format mean the same in any case"
    rows = spark.sql("SELECT 1 AS pk, 2 AS PK")
    assert bulk(spark, stored(rows), BulkOptions(**door, queue="q", task="t", id="x{pk}")).created == 1
    with pytest.raises(Misconfigured, match="no column 'Pk'"):
        bulk(spark, stored(rows), BulkOptions(**door, queue="q", task="t", id="x{Pk}"))


def test_a_bulk_write_finds_columns_as_spark_does(
    spark: SparkSession, broker: Broker, door: dict[str, str], stored: Stored
) -> None:
    rows = spark.sql(f"SELECT 7 AS Pk, {AT} AS send_at")
    options = BulkOptions(**door, queue="q", task="t", id="sms:{PK}", due="Send_At", args=("pk",))
    assert bulk(spark, stored(rows), options).created == 1
    assert waiting(broker) == {"sms:7": DUE.timestamp() * 1000}
    with pytest.raises(Misconfigured, match=r"several columns 'PK' \(pk, PK\); leave all but one out"):
        jobs(spark.sql("SELECT 1 AS pk, 2 AS PK"), options, 0)


def test_a_schema_for_reading_may_be_written_in_any_case(
    spark: SparkSession, broker: Broker, door: dict[str, str]
) -> None:
    broker.queue("q").schedule(NewJob("a", "t", due_ms=int(DUE.timestamp() * 1000), delay_ms=None))
    for schema in ("ID string, Due timestamp", "ID string, Due timestamp, TASK string, Queue string"):
        (row,) = spark.read.format("delayq").options(**door).schema(schema).load().toArrow().to_pylist()
        assert {name.lower(): value for name, value in row.items()} == {
            "id": "a",
            "due": DUE,
            **({"task": "t", "queue": "q"} if "TASK" in schema else {}),
        }
        assert list(row) == [part.split()[0] for part in schema.split(", ")]
    events = spark.read.format("delayq.events").options(**door).schema("Queue string, ID string").load()
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


# -- rows that are no jobs ---------------------------------------------------------------------------------------------

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
    write(spark.sql(MIXED), target, runId="r", onError="quarantine", quarantine=tmp_path / "aside")
    (run,) = list_loads(broker)
    assert run.closed
    assert loads.progress(broker, run) == {"created": 8}
    assert waiting(broker).keys() == {f"j{n}" for n in range(9) if n != 4}


def test_a_bulk_write_names_the_bad_row_alone(
    spark: SparkSession, broker: Broker, door: dict[str, str], stored: Stored
) -> None:
    rows = spark.sql("SELECT id AS pk, if(id = 4, 9, 1) AS prio FROM range(9)")
    with pytest.raises(PipelineError) as caught:
        bulk(spark, stored(rows), BulkOptions(**door, queue="q", task="t", id="j{pk}", priority="prio", run_id="r"))
    reason = "the row with id 'j4' cannot be written: priority must be 0 to 7, got 9. Bulk load r"
    assert str(caught.value).startswith(reason)
