"""Names of the bulk loads of a stream."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from django_delayq.core.broker import Broker
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.write_options import WriteOptions
from django_delayq.pipeline.writer import JobsStreamWriter
from tests.core.bulk_loads_stage import list_loads


def test_a_stream_that_does_not_tell_its_query_and_batch_is_refused(
    spark: SparkSession, broker: Broker, redis_url: str
) -> None:
    """All of its batches would be one run, which is over after the first."""
    options = {"redis": redis_url, "prefix": broker.prefix, "queue": "q", "task": "t"}
    writer = JobsStreamWriter(options, WriteOptions.parse(options), {})
    with pytest.raises(PipelineError, match="query and batch"):
        writer.write(iter(()))
    with pytest.raises(PySparkException, match="query and batch"):
        spark.sparkContext.parallelize([0], 1).map(lambda _: writer.write(iter(()))).collect()
    assert list_loads(broker) == []
