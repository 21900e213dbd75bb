"""Schema of the events in Spark, and the check of the columns that a reader is asked for."""

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

from ..core.errors import Misconfigured
from ..core.inputs import suggest


def columns(*columns: tuple[str, DataType, bool]) -> StructType:
    """Return a schema of (name, type, True if it is never null)."""
    return StructType([StructField(name, kind, not always) for name, kind, always in columns])


def check_columns(schema: StructType, known: StructType, what: str) -> None:
    """Check the schema requested from a reader: some of the known columns, in any order and case.

    Raises:
        Misconfigured: there is no such column, or it has another type.
    """
    types = {field.name.lower(): field.dataType for field in known}
    for field in schema:
        kind = types.get(field.name.lower())
        if kind is None:
            raise Misconfigured(
                f"{what} has no column {field.name!r}.{suggest(field.name, types)} Known columns: {', '.join(types)}"
            )
        if kind != field.dataType:
            raise Misconfigured(
                f"the column {field.name!r} of {what} is {kind.simpleString()}, not "
                f"{field.dataType.simpleString()}; read it with its type, then cast it"
            )


#: One row per event; its key is (queue, shard, stream_id). Durations and lateness are in milliseconds.
EVENTS: Final = columns(
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
