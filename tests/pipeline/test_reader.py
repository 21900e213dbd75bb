"""Reading the queue through Spark: all columns or a few, all shards or some, all ids or some."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from django_delayq.core.broker import Broker
from django_delayq.core.errors import InvalidJob
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import bury, fail
from django_delayq.pipeline.jobs import JOBS, JobsReader
from django_delayq.pipeline.repair import snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERY_BYTE = bytes(range(256)) + b"\0\r\n\0"
FAR_MS = 4_000_000_000_123  # in the year 2096
FAR = datetime(2096, 10, 2, 7, 6, 40, 123_000, tzinfo=UTC)
ALL = {"states": "*"}


def columns_of(*names: str) -> StructType:
    return StructType([field for field in JOBS.fields if field.name in names])


@pytest.fixture
def options(redis_url: str, prefix: str) -> dict[str, str]:
    return {"redis": redis_url, "prefix": prefix}


@pytest.fixture
def read(options: dict[str, str]) -> Callable[..., list[dict[str, Any]]]:
    """Reads as Spark does, but in this process: the rows."""

    def rows(*names: str, on: dict[str, str] = options, **others: str) -> list[dict[str, Any]]:
        reader = JobsReader(columns_of(*names) if names else JOBS, {**on, **others})
        batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
        return pa.Table.from_batches(batches).to_pylist() if batches else []

    return rows


def filled(broker: Broker) -> Broker:
    """Two queues with something in every place."""
    queue = broker.queue("orders", shards=3)
    queue.schedule_many(
        NewJob(f"order-{n}", "shop.cancel", args=EVERY_BYTE, due_ms=FAR_MS + n * 1000, delay_ms=None, priority=n % 8)
        for n in range(40)
    )
    queue.schedule_many(NewJob(f"now-{n}", "shop.pay", options=b'{"context":{"n":1}}') for n in range(9))
    held = [job for number in range(3) for job in queue.reserve(number, 50, worker="w").jobs]
    queue.settle(
        [fail(job, 1, 2, delay_ms=10**9, error_class="E", error=b'{"class":"E","message":"m"}') for job in held[:2]]
    )
    queue.settle([bury(job, 1, 2, reason="why") for job in held[2:5]])
    queue.schedule(NewJob(held[-1].id, "shop.pay", due_ms=FAR_MS, delay_ms=None))
    other = broker.queue("mail", shards=1)
    other.schedule(NewJob("mail-1", "post", due_ms=FAR_MS, delay_ms=None))
    return broker


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["id"] for row in rows)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: repr(sorted(row.items())))


# -- in this process ---------------------------------------------------------------------------------------------------


def test_a_row_has_everything_that_is_known_of_a_job(broker: Broker, read: Callable[..., Any]) -> None:
    queue = broker.queue("q", shards=2)
    queue.schedule(
        NewJob(
            "job",
            "work",
            args=EVERY_BYTE,
            due_ms=FAR_MS,
            delay_ms=None,
            key=b"k" * 16,
            priority=2,
            options=json.dumps({"context": {"a": [1]}}).encode(),
        )
    )
    (row,) = read()
    assert row == {
        "queue": "q",
        "shard": queue.shard_of("job"),
        "state": "waiting",
        "id": "job",
        "task": "work",
        "due": FAR,
        "priority": 2,
        "args": EVERY_BYTE,
        "context": '{"a":[1]}',
        "key": (b"k" * 16).hex(),
        "failures": 0,
        "reserves": 0,
        "crashes": 0,
        "lease_until": None,
        "worker": None,
        "failed_at": None,
        "buried_at": None,
        "reason": None,
        "error_class": None,
        "error": None,
        "payloads": None,
    }


def test_a_column_that_is_declared_as_never_null_has_a_value_in_every_row(
    broker: Broker, read: Callable[..., Any]
) -> None:
    filled(broker)
    with_nulls = {name for row in read(**ALL) for name, value in row.items() if value is None}
    assert {"buried_at", "lease_until"} <= with_nulls
    assert [field.name for field in JOBS if not field.nullable and field.name in with_nulls] == []


@pytest.mark.parametrize(
    "names",
    [
        ("id", "due"),
        ("id", "due", "priority", "queue", "shard", "state"),
        ("id", "lease_until"),
        ("id", "buried_at"),
        ("id", "task"),
        ("args", "id"),
        ("queue",),
        ("id", "due", "payloads"),
    ],
)
def test_some_columns_have_what_they_have_among_all(
    broker: Broker, read: Callable[..., Any], names: tuple[str, ...]
) -> None:
    filled(broker)
    for bounds in ({}, {"dueFrom": FAR.isoformat(), "dueTo": str(FAR_MS + 7000)}):
        everything = [{name: row[name] for name in names} for row in read(**ALL, **bounds)]
        assert in_order(read(*names, **ALL, **bounds)) == in_order(everything)
        assert len(everything) == (9 if bounds else 51)


def test_queues_states_and_bounds_are_kept_to(broker: Broker, read: Callable[..., Any]) -> None:
    filled(broker)
    everything = read(**ALL)
    assert {row["state"] for row in everything} == {"waiting", "reserved", "gated", "morgue"}
    assert {row["state"] for row in read()} == {"waiting", "reserved"}
    assert ids(read(queue="mail")) == ["mail-1"]
    assert len(read(queue="mail, orders", **ALL)) == len(everything)
    bounded = read(queue="orders", states="waiting", dueFrom=str(FAR_MS + 1000), dueTo=str(FAR_MS + 3000))
    assert ids(bounded) == ["order-1", "order-2"]


def test_some_ids_are_looked_up_wherever_they_lie(broker: Broker, read: Callable[..., Any]) -> None:
    queue = filled(broker).queue("orders")
    queue.schedule(NewJob("a,b", "work", delay_ms=10**9))
    everything = read(**ALL)
    names = {"a,b", "order-1", "mail-1", *(row["id"] for row in everything if row["state"] not in ("waiting",))}
    wanted = [row for row in everything if row["id"] in names]
    assert {row["state"] for row in wanted} == {"waiting", "reserved", "gated", "morgue"}
    idents = json.dumps([*names, "nobody", "order-1"])
    assert in_order(read(**ALL, ids=idents)) == in_order(wanted)
    assert in_order(read("id", "due", **ALL, ids=idents)) == in_order(
        [{"id": row["id"], "due": row["due"]} for row in wanted]
    )
    assert ids(read(queue="mail", ids=" order-1, mail-1")) == ["mail-1"]
    assert ids(read(ids="order-1,order-2", dueFrom=str(FAR_MS + 2000))) == ["order-2"]
    assert read(ids="[]") == []


def test_of_some_ids_no_other_job_is_read(broker: Broker, options: dict[str, str]) -> None:
    filled(broker)
    reader = JobsReader(JOBS, {**options, **ALL, "queue": "orders", "ids": "order-1"})
    (only,) = reader.partitions()
    before = broker.client.info("commandstats")
    assert sum(batch.num_rows for batch in reader.read(only)) == 1
    after = broker.client.info("commandstats")
    for scan in ("zscan", "hscan", "zrange", "zrangebyscore"):
        assert before.get(f"cmdstat_{scan}") == after.get(f"cmdstat_{scan}"), scan


def test_small_batches_and_few_tasks_have_the_same_rows(
    broker: Broker, options: dict[str, str], read: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(broker)
    everything = in_order(read(**ALL))
    assert in_order(read(**ALL, fetch="7")) == everything
    assert len(JobsReader(JOBS, options).partitions()) == 4
    monkeypatch.setattr("django_delayq.pipeline.jobs.MOST_TASKS", 3)
    assert in_order(read(**ALL, fetch="1")) == everything
    assert len(JobsReader(JOBS, options).partitions()) == 3


def test_batches_are_cut_at_ten_thousand_rows_and_at_large_ones(broker: Broker, options: dict[str, str]) -> None:
    queue = broker.queue("q", shards=1)
    queue.count_many(NewJob(f"j{n}", "work", delay_ms=10**7) for n in range(12_000))
    queue.count_many(NewJob(f"k{n}", "work", delay_ms=10**9, args=b"x" * 900_000) for n in range(12))
    reader = JobsReader(JOBS, {**options, "fetch": "1000"})
    sizes = [batch.num_rows for partition in reader.partitions() for batch in reader.read(partition)]
    assert sum(sizes) == 12_012 and 10_000 <= sizes[0] <= 11_000 and len(sizes) == 3
    reader = JobsReader(columns_of("id", "due"), options)
    found = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert sum(batch.num_rows for batch in found) == len({ident for batch in found for ident in batch[0].to_pylist()})
    assert sum(batch.num_rows for batch in found) == 12_012 and len(found) == 2


def test_a_queue_that_is_not_there_is_an_error_unless_it_may_be_empty(broker: Broker, read: Callable[..., Any]) -> None:
    broker.queue("orders")
    with pytest.raises(InvalidJob, match=r"no queue 'ordres'. Did you mean 'orders'.*missingQueue=empty"):
        read(queue="ordres")
    assert read(queue="ordres,orders", missingQueue="empty") == []


def test_shards_of_former_epochs_are_read_too(broker: Broker, read: Callable[..., Any]) -> None:
    queue = broker.queue("q", shards=2)
    queue.schedule(NewJob("old", "work", delay_ms=10**9))
    broker.reshard("q", 3)
    queue.schedule(NewJob("new", "work", delay_ms=10**9))
    assert {row["id"]: row["shard"] // 1024 for row in read()} == {"old": 0, "new": 1}
    assert ids(read("id", states="waiting")) == ["new", "old"]


@pytest.mark.broken_on_purpose
def test_damage_in_redis_is_a_row_and_no_error(broker: Broker, read: Callable[..., Any]) -> None:
    queue = broker.queue("q", shards=1)
    queue.schedule(NewJob("sound", "work", delay_ms=10**9))
    names = queue.shard(0).names
    broker.client.zadd(names["due.4"], {b"\xff": 1, b"bad": 2, b"inf": float("inf")})
    broker.client.hset(names["body"], "bad", b"\x24\0\0")
    rows = {row["id"]: row for row in read()}
    assert set(rows) == {"sound", "\ufffd", "bad", "inf"}
    assert (rows["bad"]["error_class"], rows["bad"]["task"], rows["bad"]["args"]) == ("Undecodable", None, b"\x24\0\0")
    assert {row["id"]: row["due"] for row in read("id", "due")} == {ident: row["due"] for ident, row in rows.items()}


# -- through Spark -----------------------------------------------------------------------------------------------------


def frame(spark: SparkSession, options: dict[str, str], *names: str, **others: str) -> DataFrame:
    reader = spark.read.format("delayq").options(**options, **others)
    return (reader.schema(columns_of(*names)) if names else reader).load()


def as_rows(found: DataFrame) -> list[dict[str, Any]]:
    """The rows, with aware times."""
    rows: list[dict[str, Any]] = found.toArrow().to_pylist()
    return in_order(rows)


def test_spark_reads_what_lies_in_redis(
    spark: SparkSession, broker: Broker, options: dict[str, str], read: Callable[..., Any]
) -> None:
    filled(broker)
    found = frame(spark, options, **ALL)
    assert found.rdd.getNumPartitions() == 4
    assert as_rows(found) == in_order(read(**ALL))
    assert found.count() == frame(spark, options, "id", **ALL).count() == 51
    assert as_rows(frame(spark, options, "id", "due")) == in_order(read("id", "due"))


def test_a_view_in_sql_reads_it_too(spark: SparkSession, broker: Broker, options: dict[str, str]) -> None:
    filled(broker)
    given = ", ".join(f"{name} '{value}'" for name, value in {**options, **ALL, "queue": "orders"}.items())
    spark.sql(f"CREATE OR REPLACE TEMP VIEW jobs_now USING delayq OPTIONS ({given})")
    found = spark.sql("SELECT state, count(*) AS n, max(error) AS error FROM jobs_now GROUP BY state")
    assert {row["state"]: (row["n"], row["error"]) for row in found.collect()} == {
        "waiting": (42, "m"),
        "reserved": (4, None),
        "gated": (1, None),
        "morgue": (3, None),
    }
    spark.catalog.dropTempView("jobs_now")


def test_a_filtered_count_changes_no_later_one(spark: SparkSession, broker: Broker, options: dict[str, str]) -> None:
    filled(broker)
    for jobs in (frame(spark, options, **ALL), snapshot(spark, options, JOBS.fieldNames())):
        assert jobs.where("id = 'order-1' AND queue = 'orders'").count() == 1
        assert jobs.count() == 51
        assert jobs.where("due >= timestamp '2096-10-02T07:06:40Z' AND state = 'waiting'").count() == 41
        assert jobs.count() == 51


def test_spark_reads_some_ids_alone(spark: SparkSession, broker: Broker, options: dict[str, str]) -> None:
    filled(broker)
    found = frame(spark, options, **ALL, ids=json.dumps(["mail-1", "order-1"]))
    assert {(row["queue"], row["id"]) for row in found.collect()} == {("mail", "mail-1"), ("orders", "order-1")}
    assert found.rdd.getNumPartitions() <= 3, "the homes of two ids in a queue of three shards and in one of one"


def test_errors_of_options_reach_the_caller_with_their_text(spark: SparkSession, options: dict[str, str]) -> None:
    for more, text in ({"dueFrom": "2026-01-01"}, "no time zone"), ({"qeue": "q"}, "Did you mean 'queue'"):
        with pytest.raises(Exception, match=text):
            frame(spark, options, **more)
    with pytest.raises(Exception, match="no queue 'q'"):
        frame(spark, options, queue="q").count()
    with pytest.raises(Exception, match="Did you mean 'due'"):
        spark.read.format("delayq").options(**options).schema("dew timestamp").load().count()
    assert frame(spark, options, queue="q", missingQueue="empty").count() == 0


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Another time zone for Python, as Django sets it."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/Chicago"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
def test_times_do_not_depend_on_a_time_zone(spark: SparkSession, broker: Broker, options: dict[str, str]) -> None:
    filled(broker)
    for names in ((), ("id", "due")):
        jobs = frame(spark, options, *names, queue="mail")
        assert jobs.select(F.unix_millis("due")).collect()[0][0] == FAR_MS
        assert as_rows(jobs)[0]["due"] == FAR
