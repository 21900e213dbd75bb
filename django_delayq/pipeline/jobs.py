"""The format ``delayq``: jobs. Batch read, batch write and streaming write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .job_options import ReadOptions
from .job_schema import JOBS
from .reader import JobsReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter


class JobsSource(DataSource):
    """``spark.read.format("delayq")`` and ``df.write.format("delayq").mode("append")``.

    Options for reading: redis or redisEnv, prefix, queue (a name, several with commas, or ``*``, the default), states
    (some of waiting, reserved, gated, morgue; default waiting,reserved), shards, ids (a JSON list, or with commas
    between them), dueFrom and dueTo (ISO 8601 with a zone, or Unix ms; from the one on, before the other), fetch (jobs
    in one call of Redis, 200), partitions (most tasks, 200) and missingQueue (fail or empty). Those for writing:
    :mod:`.writer`.
    """

    @classmethod
    def name(cls) -> str:
        """What Spark calls the format."""
        return "delayq"

    def schema(self) -> StructType:
        """What is read where nobody asks for some columns only; asked before anything runs, so options are checked.

        Raises:
            Misconfigured: an option is none, or not usable.
        """
        ReadOptions.parse(self.options)
        return JOBS

    def _given(self) -> Mapping[str, str]:
        """The options; a copy of the same class, because to any other dict their names are spelt in small letters."""
        options: Any = self.options
        return options.copy()  # type: ignore[no-any-return]

    def reader(self, schema: StructType) -> JobsReader:
        """See :class:`.reader.JobsReader`."""
        return JobsReader(schema, self._given())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """See :func:`.writer.batch_writer`."""
        from .writer import batch_writer

        return batch_writer(self._given(), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """See :func:`.writer.stream_writer`."""
        from .writer import stream_writer

        return stream_writer(self._given(), schema, overwrite)
