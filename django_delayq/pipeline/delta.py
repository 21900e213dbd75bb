"""Tables of the history in the Delta format, for readers with other tools. Needs the package ``deltalake``.

Spark computes a day and writes it beside the table; the driver then commits the whole day as one version. The rows are
copied by the driver, :data:`ROWS_AT_ONCE` rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from .errors import PipelineError, SparkMissing
from .files import is_data
from .lake import Lake
from .wanted import Wanted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

#: hours for which old versions are kept for readers that are still using them
KEEP_HOURS: Final = 24
#: maximum number of rows that the driver holds at once
ROWS_AT_ONCE: Final = 250_000
#: URL schemes of Spark and of deltalake for the same store
_SCHEMES: Final = {"s3a://": "s3://", "s3n://": "s3://", "file://": ""}


def load() -> Any:
    """Import and return the package ``deltalake``.

    Raises:
        SparkMissing: it is not installed.
    """
    try:
        import deltalake
    except ImportError as error:
        raise SparkMissing(
            "The format delta needs the package deltalake: pip install 'django-delayq[delta]'"
        ) from error
    return deltalake


class DeltaFormTable:
    """Delta table with a partition for each day.

    Raises:
        PipelineError: the table's folder holds plain Parquet.
        SparkMissing: the package ``deltalake`` is not installed.
    """

    def __init__(self, lake: Lake, name: str, schema: StructType) -> None:
        self._delta = load()
        self._lake = lake
        self._name = name
        self._schema = schema
        if not self._is_there() and lake.days(name):
            raise PipelineError(
                f"{lake.files.url(name)} holds plain Parquet: set the format back to parquet, or move that folder away "
                "and compute it again with a backfill"
            )

    @property
    def _uri(self) -> str:
        url = self._lake.files.url(self._name)
        for ours, theirs in _SCHEMES.items():
            if url.startswith(ours):
                return theirs + url.removeprefix(ours)
        return url

    def _is_there(self) -> bool:
        return bool(self._delta.DeltaTable.is_deltatable(self._uri))

    def replace(self, rows: DataFrame, wanted: Wanted) -> None:
        """Replace these days, each as a whole and in one version of the table."""
        fresh = self._lake.write(self._name, rows, most_rows=ROWS_AT_ONCE)
        for day in wanted:
            if day in fresh.days:
                self._commit(f"{fresh.folder}/day={day}", day)
            else:
                self.drop({day: None})
            self._lake.step(f"{self._name}: day put")
        self._lake.files.delete(fresh.folder)

    def _commit(self, folder: str, day: date) -> None:
        import pyarrow as pa

        failed: list[BaseException] = []
        batches = self._batches(folder, day, failed)
        first = next(batches)
        try:
            self._delta.write_deltalake(
                self._uri,
                pa.RecordBatchReader.from_batches(first.schema, chain([first], batches)),
                mode="overwrite",
                predicate=_is_day(day),
                partition_by=["day"],
                schema_mode="merge",
            )
        except Exception:
            if failed:  # raise the original error, which may be a stop; deltalake would wrap it in its own
                raise failed[0] from None
            raise

    def _batches(self, folder: str, day: date, failed: list[BaseException]) -> Iterator[Any]:
        """Yield the rows of a day, file by file; threads of deltalake request all batches except the first."""
        import pyarrow as pa

        context = self._lake.spark.sparkContext
        tags = context.getJobTags()
        for name in filter(is_data, self._lake.files.names(folder)):
            for tag in tags:
                context.addJobTag(tag)
            try:
                table = self._rows(f"{folder}/{name}")
            except BaseException as error:
                failed.append(error)
                raise
            yield from table.append_column("day", pa.array([day] * table.num_rows, pa.date32())).to_batches()

    def _rows(self, path: str) -> Any:
        return self._lake.spark.read.schema(self._schema).parquet(self._lake.files.url(path)).toArrow()

    def read(self, wanted: Wanted) -> DataFrame:
        files = [f"{self._name}/{each['path']}" for each in self._files() if each["partition.day"] in wanted]
        return self._lake.read(self._name, files, self._schema).select(*self._schema.names)

    def days(self) -> list[date]:
        return sorted({each["partition.day"] for each in self._files()})

    def is_by_hour(self, day: date) -> bool:
        """Return False, because a version replaces a whole partition, which is a day."""
        return False

    def drop(self, wanted: Wanted) -> None:
        there = set(self.days())
        for day in wanted:
            if day in there:
                self._delta.DeltaTable(self._uri).delete(_is_day(day))

    def size(self, day: date) -> tuple[int, int]:
        sizes = [int(each["size_bytes"]) for each in self._files() if each["partition.day"] == day]
        return sum(sizes), len(sizes)

    def tidy(self) -> None:
        """Delete the files of versions older than :data:`KEEP_HOURS`."""
        if self._is_there():
            self._delta.DeltaTable(self._uri).vacuum(
                retention_hours=KEEP_HOURS, enforce_retention_duration=False, dry_run=False
            )

    def _files(self) -> list[Mapping[str, Any]]:
        import pyarrow as pa

        if not self._is_there():
            return []
        found: list[Mapping[str, Any]] = pa.table(
            self._delta.DeltaTable(self._uri).get_add_actions(flatten=True)
        ).to_pylist()
        return found


def _is_day(day: date) -> str:
    return f"day = '{day}'"
