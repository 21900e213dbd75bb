"""Bulk writes on a master of choice: ``python -m tests.pipeline.masters_program WHAT JSON``; ends with a line of JSON.

``write``      writes Parquet files twice under one run id, the second time when somebody says so
``fail``       the first three tries of every task fail: after a batch, in the middle, when everything is written
``overtake``   the first try of one task waits, so that Spark begins a second one of it beside the first
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F

from django_delayq.pipeline.jobs import JobsSource
from django_delayq.pipeline.session import SessionOptions, opened
from django_delayq.pipeline.writer import JobsWriter, Sent, batch_writer

#: the environment variable that tells the workers of Spark where Redis is
REDIS = "MASTERS_REDIS"
#: the task that is overtaken, how many there are, and the rows of each
SLOW, PARTS, ROWS = 3, 4, 2_000


class Hesitates(JobsWriter):
    """Both tries of one task stop half-way until they are told to go on, and go on together."""

    marks: Path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return super().write(self._halting(iterator))

    def _halting(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context: Any = TaskContext.get()
        passed = 0
        for batch in batches:
            yield batch
            passed += batch.num_rows
            if context.partitionId() == SLOW and passed == ROWS // 2:
                (self.marks / f"halted-{context.attemptNumber()}").touch()
                self._wait_for("go")
                (self.marks / f"went-on-{context.attemptNumber()}").touch()
                self._wait_for("went-on-0", "went-on-1")

    def _wait_for(self, *names: str) -> None:
        while not all((self.marks / name).exists() for name in names):
            time.sleep(0.005)


class Fails(JobsWriter):
    """Fails after a batch, then in the middle, then when everything is written, and then no more."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context: Any = TaskContext.get()
        attempt = context.attemptNumber()
        sent = super().write(self._failing(iterator, {0: 1, 1: ROWS // 2}.get(attempt, ROWS)))
        if attempt == 2:
            raise RuntimeError("failed after the write")
        return sent

    @staticmethod
    def _failing(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
        passed = 0
        for batch in batches:
            yield batch
            passed += batch.num_rows
            if most <= passed < ROWS:
                raise RuntimeError(f"failed after {passed} rows")


class FailsSource(JobsSource):
    """The format, with that writer."""

    def writer(self, schema: Any, overwrite: bool) -> Any:
        made = batch_writer(self._given(), schema, overwrite)
        made.__class__ = Fails
        return made


class HesitatesSource(JobsSource):
    """The format, with :class:`Hesitates`."""

    def writer(self, schema: Any, overwrite: bool) -> Any:
        given: Any = self._given()
        marks = given.pop("marks")
        made: Any = batch_writer(given, schema, overwrite)
        made.__class__ = Hesitates
        made.marks = Path(marks)
        return made


def write(spark: Any, said: dict[str, Any]) -> None:
    frame = spark.read.parquet(said["path"])
    for close in ("false", "true"):
        frame.write.format("delayq").options(**said["options"], close=close).mode("append").save()
        _tell({"tries": tries(spark), "parts": frame.rdd.getNumPartitions()})
        sys.stdin.readline()


def fail(spark: Any, said: dict[str, Any]) -> None:
    _numbers_by(FailsSource, spark, said)


def overtake(spark: Any, said: dict[str, Any]) -> None:
    _numbers_by(HesitatesSource, spark, said)


def _numbers_by(source: type[JobsSource], spark: Any, said: dict[str, Any]) -> None:
    spark.dataSource.register(source)
    ids = F.concat(F.lit("job-"), F.col("id").cast("string")).alias("id")
    frame = spark.range(0, PARTS * ROWS, 1, PARTS).select(ids)
    frame.write.format("delayq").options(**said["options"]).mode("append").save()
    _tell({"tries": tries(spark)})
    sys.stdin.readline()


def tries(spark: Any) -> list[dict[str, Any]]:
    """Every try of every task so far, as Spark itself keeps them."""
    told: Any = spark.sparkContext.statusTracker()
    store = spark._jsc.sc().statusStore()
    found = []
    for job in sorted(told.getJobIdsForGroup(None)):
        for stage in told.getJobInfo(job).stageIds:
            tasks = store.taskList(stage, 0, 1_000).iterator()
            while tasks.hasNext():
                one = tasks.next()
                found.append(
                    {
                        "job": job,
                        "stage": stage,
                        "part": one.index(),
                        "attempt": one.attempt(),
                        "host": one.host(),
                        "executor": one.executorId(),
                        "status": one.status(),
                        "speculative": one.speculative(),
                    }
                )
    return found


def _tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def main(what: str, said: dict[str, Any]) -> None:
    options = SessionOptions(said["master"], conf=said["conf"], environ={REDIS: said["redis"]})
    with opened(options) as spark:
        _tell({"app": spark.sparkContext.applicationId})
        {"write": write, "fail": fail, "overtake": overtake}[what](spark, said)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
