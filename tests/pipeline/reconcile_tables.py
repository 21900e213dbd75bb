"""Tables of Django that a comparison on Spark reads, as frames of files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.db import router

from django_delayq.management.pipeline.model_rows import write_rows
from django_delayq.models import OutboxJob
from django_delayq.repair.row_comparison import RowJobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Tables:
    """Tables that a comparison reads, as frames of files that this process writes into a folder.

    Each call reads the database anew.
    """

    def __init__(self, spark: SparkSession, jobs: RowJobs, folder: str, outboxes: Sequence[str] = ()) -> None:
        self._spark = spark
        self._jobs = jobs
        self._folder = folder
        self._outboxes = outboxes
        self._numbers = count()

    def rows(self, before: datetime | None, written: bool) -> DataFrame:
        """Return the rows that need a job; see :data:`~django_delayq.pipeline.reconcile.Rows`."""
        jobs = self._jobs
        using = jobs.using or (router.db_for_write(jobs.model) if written else None)
        return self._frame([jobs.rows(before, using)], jobs.columns)

    def outbox(self) -> DataFrame:
        """Return the durable jobs of the queue."""
        tables = [OutboxJob.objects.using(alias).filter(queue=self._jobs.queue) for alias in self._outboxes]
        return self._frame(tables, ["job_id", "state"])

    def _frame(self, tables: Sequence[Any], names: Sequence[str]) -> DataFrame:
        Path(self._folder).mkdir(exist_ok=True)
        files = [f"{self._folder}/rows-{next(self._numbers)}.parquet" for _ in tables]
        for table, name in zip(tables, files, strict=True):
            write_rows(table, names, name)
        return self._spark.read.parquet(*files)
