"""Format ``delayq``: jobs. Batch read, batch write and streaming write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .job_schema import JOBS
from .read_options import ReadOptions
from .reader import JobsReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter


class JobsSource(DataSource):
    """``spark.read.format("delayq")`` and ``df.write.format("delayq").mode("append")``.

    Options for reading: redis or redisEnv, prefix, queue (a name, several separated by commas, or ``*``, the default),
    states (some of waiting, reserved, gated, morgue; default waiting,reserved), shards, ids (a JSON list, or separated
    by commas), dueFrom and dueTo (ISO 8601 with a zone, or Unix ms; inclusive start, exclusive end), fetch (jobs per
    call to Redis, 200), partitions (maximum number of tasks, 200) and missingQueue (fail or empty). Options for
    writing: :mod:`.writer`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "delayq"

    def schema(self) -> StructType:
        """Return the default schema; called before anything runs, so the options are validated here.

        Raises:
            Misconfigured: an option is unknown or invalid.
        """
        ReadOptions.parse(self.options)
        return JOBS

    def _given(self) -> Mapping[str, str]:
        """Return a copy of the options of the same class, because any other dict would lower-case their names."""
        options: Any = self.options
        return options.copy()  # type: ignore[no-any-return]

    def reader(self, schema: StructType) -> JobsReader:
        """Return a :class:`.reader.JobsReader`."""
        return JobsReader(schema, self._given())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of :func:`.writer.batch_writer`."""
        from .writer import batch_writer

        return batch_writer(self._given(), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of :func:`.writer.stream_writer`."""
        from .writer import stream_writer

        return stream_writer(self._given(), schema, overwrite)
