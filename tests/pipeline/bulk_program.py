"""Bulk writes in a process of their own: ``python -m tests.pipeline.bulk_program WHAT JSON``; ends with a line of JSON.

``files``      a bulk write of Parquet files
``after``      local[2,3]: the first try of every task fails when everything is written
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F

from django_delayq.pipeline.bulk import BulkOptions, bulk
from django_delayq.pipeline.inputs import Files
from django_delayq.pipeline.jobs import JobsSource
from django_delayq.pipeline.session import SessionOptions, opened
from django_delayq.pipeline.writer import JobsWriter, Sent, batch_writer

from .few_rows import CONF


class FailsAfter(JobsWriter):
    """Writes everything, and fails when it is the first try."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        sent = super().write(iterator)
        context: Any = TaskContext.get()
        if context.attemptNumber() == 0:
            raise RuntimeError("failed after the write")
        return sent


class FailsAfterSource(JobsSource):
    """The format, with that writer."""

    def writer(self, schema: Any, overwrite: bool) -> Any:
        made = batch_writer(self._given(), schema, overwrite)
        made.__class__ = FailsAfter
        return made


def files(said: dict[str, Any]) -> None:
    with opened(SessionOptions(master=said.pop("master", "local[2]"), conf=CONF)) as spark:
        print("ready", flush=True)
        bulk(spark, Files((said.pop("path"),)), BulkOptions(**said))


def after(said: dict[str, Any]) -> None:
    with opened(SessionOptions(master="local[2,3]", conf=CONF)) as spark:
        spark.dataSource.register(FailsAfterSource)
        _rows(spark, 5_000).write.format("delayq").options(**said).mode("append").save()


def _rows(spark: Any, n: int) -> Any:
    return spark.range(0, n, 1, 2).select(F.concat(F.lit("job-"), F.col("id").cast("string")).alias("id"))


if __name__ == "__main__":
    {"files": files, "after": after}[sys.argv[1]](json.loads(sys.argv[2]))
    print(json.dumps({"done": True}), flush=True)
