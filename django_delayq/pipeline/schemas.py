"""Schema of the events in Spark."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


def _columns(*columns: tuple[str, DataType, bool]) -> StructType:
    return StructType([StructField(name, kind, not always) for name, kind, always in columns])


#: One row per event; its key is (queue, shard, stream_id). Durations and lateness are in milliseconds.
EVENTS: Final = _columns(
    ("queue", StringType(), True),
    ("shard", IntegerType(), True),  # number across all epochs: epoch * 1024 + place
    ("stream_id", StringType(), True),
    ("ts", TimestampType(), True),  # time at which the event was written, on Redis's clock
    ("outcome", StringType(), True),
    ("id", StringType(), False),
    ("task", StringType(), False),
    ("key", StringType(), False),  # key of the job's generation, in hex
    ("due", TimestampType(), False),
    ("started", TimestampType(), False),  # null = the attempt never started
    ("lateness_ms", LongType(), False),
    ("duration_ms", LongType(), False),
    ("attempt", IntegerType(), False),
    ("worker", StringType(), False),
    ("error_class", StringType(), False),
    ("jobs", LongType(), False),  # of the outcome "bulk", which has no attempt
    ("created", LongType(), False),
    ("extra", MapType(StringType(), StringType()), False),  # what has no column of its own
)
