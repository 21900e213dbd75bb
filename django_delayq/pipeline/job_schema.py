"""Schema of the queue's rows, in Spark and in Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType, TimestampType

from ..core.job_view import FARTHEST
from ..core.snapshot import Columns, Entries, Part
from .schemas import columns

#: One row per job and place; a morgue record is a row of its own beside a live job of the same id. Times have ms
#: precision.
JOBS: Final = columns(
    ("queue", StringType(), True),
    ("shard", IntegerType(), True),  # number across all epochs: epoch * 1024 + place
    ("state", StringType(), True),  # waiting (delayed, ready, or failed and to be retried), reserved, gated, morgue
    ("id", StringType(), True),
    ("task", StringType(), False),  # null = the job cannot be read; `error` says why
    ("due", TimestampType(), False),
    ("priority", IntegerType(), False),  # 0 (first) … 7
    ("args", BinaryType(), False),  # as stored; null = merged; for an unreadable job the whole body
    ("context", StringType(), False),  # JSON
    ("key", StringType(), False),  # of the job's generation, in hex
    ("failures", IntegerType(), False),
    ("reserves", IntegerType(), False),
    ("crashes", IntegerType(), False),
    ("lease_until", TimestampType(), False),
    ("worker", StringType(), False),  # the worker that has reserved it
    ("failed_at", TimestampType(), False),  # time of the last failure
    ("buried_at", TimestampType(), False),
    ("reason", StringType(), False),  # why it was moved to the morgue
    ("error_class", StringType(), False),  # of the last error
    ("error", StringType(), False),  # its message
    ("payloads", IntegerType(), False),  # how many, if merged; of a gated job without those of the attempt
)
#: columns that are constant within one place of a shard
OF_PART: Final = frozenset({"queue", "shard", "state"})


class ArrowRows:
    """Converter from jobs of the core to batches of the requested columns."""

    def __init__(self, schema: StructType) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def of_entries(self, entries: Entries) -> pa.RecordBatch:
        """Return a batch from pages of an index."""
        return self._batch([self._entry_column(field, entries) for field in self._schema])

    def of_jobs(self, part: Part, some: Sequence[Columns]) -> pa.RecordBatch:
        """Return a batch from jobs of one part."""
        return self._batch([self._column(field, part, some) for field in self._schema])

    def _batch(self, arrays: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, field: pa.Field, part: Part, some: Sequence[Columns]) -> pa.Array:
        name = field.name.lower()
        if name in OF_PART:
            return _of_part(field, part, sum(len(columns["id"]) for columns in some))
        return _array(field, list(chain.from_iterable(columns[name] for columns in some)))

    def _entry_column(self, field: pa.Field, entries: Entries) -> pa.Array:
        name = field.name.lower()
        if name in OF_PART:
            return _of_part(field, entries.part, len(entries.ids))
        if name == "id":
            return _idents(field, entries)
        return _times(field, entries)


def _of_part(field: pa.Field, part: Part, n: int) -> pa.Array:
    value = {"queue": part.queue, "shard": part.shard, "state": part.place}[field.name.lower()]
    return pa.repeat(pa.scalar(value, field.type), n)


def _array(field: pa.Field, values: list[Any]) -> pa.Array:
    if pa.types.is_timestamp(field.type):
        return pa.array(values, pa.timestamp("ms", tz="UTC")).cast(field.type)
    return pa.array(values, field.type)


def _idents(field: pa.Field, entries: Entries) -> pa.Array:
    try:
        return pa.array(entries.ids, pa.binary()).cast(field.type)
    except pa.ArrowInvalid:  # bytes that are not valid UTF-8
        return _array(field, entries.idents())


def _times(field: pa.Field, entries: Entries) -> pa.Array:
    scores = np.array(entries.scores)
    if np.abs(scores).max(initial=0.0) >= FARTHEST:
        return _array(field, entries.times())
    ms = scores if entries.part.place == "reserved" else np.floor_divide(scores, 1000)
    return pa.array(ms.astype(np.int64) * 1000).cast(field.type)
