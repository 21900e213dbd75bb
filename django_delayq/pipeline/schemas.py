"""What the rows of the events look like, in Spark."""

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


#: One row for each event; (queue, shard, stream_id) is its key. Durations and lateness are in milliseconds.
EVENTS: Final = _columns(
    ("queue", StringType(), True),
    ("shard", IntegerType(), True),  # its number through all epochs: epoch * 1024 + place
    ("stream_id", StringType(), True),
    ("ts", TimestampType(), True),  # when the event was written, on Redis's clock
    ("outcome", StringType(), True),
    ("id", StringType(), False),
    ("task", StringType(), False),
    ("key", StringType(), False),  # of the job's generation, in hex
    ("due", TimestampType(), False),
    ("started", TimestampType(), False),  # null = the run never began
    ("lateness_ms", LongType(), False),
    ("duration_ms", LongType(), False),
    ("attempt", IntegerType(), False),
    ("worker", StringType(), False),
    ("error_class", StringType(), False),
    ("jobs", LongType(), False),  # of the outcome "bulk", which has no run
    ("created", LongType(), False),
    ("extra", MapType(StringType(), StringType()), False),  # fields that this version does not know
)
