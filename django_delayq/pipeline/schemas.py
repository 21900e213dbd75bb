"""Columns of the formats: the schema of events, checks of requested columns, and names compared as Spark compares them.

Names of the formats' own columns are compared ignoring case, and are in lower case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
from ..core.inputs import short, suggest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def column_of(frame: DataFrame, name: str) -> str | None:
    """Return the name of the frame's column that Spark resolves ``name`` to; None = there is none.

    Raises:
        Misconfigured: several columns match.
    """
    sensitive = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    matching = [one for one in frame.columns if one == name or (not sensitive and one.lower() == name.lower())]
    if len(matching) > 1:
        raise Misconfigured(
            f"the input has several columns {short(name)} ({', '.join(matching)}); leave all but one out"
        )
    return matching[0] if matching else None


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
