"""``register()``: the thread that calls it may write."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pytest

from django_delayq.core.broker import Broker
from django_delayq.pipeline import register
from django_delayq.pipeline.bulk import BulkOptions, bulk
from django_delayq.pipeline.inputs import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


@pytest.fixture
def target(redis_url: str, prefix: str) -> dict[str, str]:
    return {"redis": redis_url, "prefix": prefix, "queue": "q", "task": "app.send"}


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.sql("SELECT concat('job-', id) AS id FROM range(3)")


def in_a_thread(call: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(120)


def waiting(broker: Broker) -> list[str]:
    return sorted(view.id for view in broker.inspector.page("q", "waiting").jobs)


def test_a_bulk_write_works_from_any_thread(
    spark: SparkSession, broker: Broker, target: dict[str, str], stored: Callable[[DataFrame], Files]
) -> None:
    options = BulkOptions(id="job-{id}", args=("id",), **target)  # type: ignore[arg-type]
    done = in_a_thread(lambda: bulk(spark, stored(spark.range(3)), options))
    assert (done.counts, waiting(broker)) == ({"created": 3}, ["job-0", "job-1", "job-2"])


def test_a_thread_that_registers_the_formats_writes_to_them(
    spark: SparkSession, rows: DataFrame, broker: Broker, target: dict[str, str]
) -> None:
    def write() -> None:
        register(spark)
        rows.write.format("delayq").options(**target).mode("append").save()

    in_a_thread(write)
    assert waiting(broker) == ["job-0", "job-1", "job-2"]
