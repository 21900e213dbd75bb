"""Delta table of a history: the events, in a partition for each hour.

Spark's tasks write Parquet into a new folder of the table, ``write=<batch>-<id>/day=2030-01-31/hour=7/``. The driver
then commits the names of these files, together with the positions in the streams up to which they have read: a
transaction (``txn``) for each shard. Files and positions are in or neither is, wherever a process dies. A commit on a
version that another process has continued is refused. The driver never sees a row.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyarrow import fs
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, StructField, StructType

from ..core.events import Place
from .errors import PipelineError
from .schemas import EVENTS
from .transforms import day_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE: Final = "events"
#: hours for which replaced files are kept for readers that still use them, and files of no version for their writer
KEEP_HOURS: Final = 24
#: schemes of URLs that Spark and deltalake both open
SCHEMES: Final = ("s3a", "s3", "gs", "abfss", "abfs", "hdfs")
#: transactions: number of the last batch; number of the last day whose events are deleted, counted from 1970
BATCH: Final = "history"
_CLOSED: Final = "history closed"
#: property of the table: the shards that have a position
_PLACES: Final = "delayq.places"
_BY: Final = ["day", "hour"]
_EPOCH: Final = date(1970, 1, 1)
_HOUR_S: Final = 3600
_POLL_S: Final = 0.1
#: A stream makes 1,440 versions a day. A checkpoint of the log bounds what a reader opens; older entries are deleted.
_CONFIGURATION: Final = {
    "delta.checkpointInterval": "50",
    "delta.enableExpiredLogCleanup": "true",
    "delta.logRetentionDuration": f"interval {KEEP_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {KEEP_HOURS} hours",
}
#: All columns may be null: another version may not have written them.
_SCHEMA: Final = StructType(
    [
        *(StructField(field.name, field.dataType) for field in EVENTS.fields),
        StructField("day", DateType()),
        StructField("hour", IntegerType()),
    ]
)


@dataclass(frozen=True, slots=True)
class EventFile:
    """File of the latest version of the table."""

    #: relative to the table
    path: str
    bytes: int
    rows: int
    #: start of the hour whose events it has
    hour: datetime
    #: number of the batch that wrote it; -1 for a file that is the result of a compaction
    batch: int

    @property
    def day(self) -> date:
        """Day of its events, in UTC."""
        return self.hour.date()


class EventTable:
    """Table ``events`` below the root of a history.

    Args:
        root: a path, or a URL with one of :data:`SCHEMES`, whose credentials deltalake takes from the environment.

    Raises:
        PipelineError: the URL has another scheme.
    """

    def __init__(self, root: str) -> None:
        scheme, is_url, rest = root.partition("://")
        if is_url and scheme not in (*SCHEMES, "file"):
            raise PipelineError(
                f"The tables in {root} cannot be written, because deltalake does not open {scheme}://. Give a folder, "
                f"or a URL of {', '.join(f'{name}://' for name in SCHEMES)}; other stores can be mounted as a folder"
            )
        #: None if the root is a URL
        self.folder = None if is_url and scheme != "file" else Path(rest if is_url else root).absolute()
        #: URL by which Spark opens the table. It is not quoted, because Spark uses names as they are.
        self.url = f"{root.rstrip('/') if self.folder is None else f'file://{self.folder}'}/{TABLE}"

    @property
    def uri(self) -> str:
        """Path or URL by which deltalake opens the table."""
        return self.url if self.folder is None else str(self.folder / TABLE)

    @cached_property
    def _system(self) -> fs.FileSystem:
        """File system whose root is the table."""
        if self.folder is not None:
            return fs.SubTreeFileSystem(self.uri, fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.url))

    # --- reading

    def latest(self) -> DeltaTable | None:
        """Return the latest version; None if there is no table yet."""
        return DeltaTable(self.uri) if DeltaTable.is_deltatable(self.uri) else None

    def files(self, hours: Collection[datetime] | None = None) -> list[EventFile]:
        """Return the live files, those of some hours or all of them."""
        table = self.latest()
        found = [] if table is None else map(_file_of, pa.table(table.get_add_actions(flatten=True)).to_pylist())
        return [file for file in found if hours is None or file.hour in hours]

    def positions(self, table: DeltaTable | None) -> dict[Place, str]:
        """Return the positions up to which a version has read the streams, by shard."""
        positions = {}
        for place in [] if table is None else _places_of(table):
            number, ms = (number_of(table, name) for name in _names_of(place))
            if number >= 0:  # else a process has died between the two
                positions[place] = f"{number}-{ms}"
        return positions

    def closed_before(self) -> date:
        """Return the first day of which no event was deleted because of its age."""
        return _EPOCH + timedelta(days=max(0, number_of(self.latest(), _CLOSED)))

    def read(self, spark: SparkSession, hours: Collection[datetime] | None = None) -> DataFrame:
        """Return the events of some hours or all of them, with ``day`` and ``hour``, as they are in the latest version.

        Columns that an older version did not write are null. Those of a newer version are included.
        """
        table = self.latest()
        stored = _SCHEMA if table is None else StructType.fromJson(json.loads(table.schema().to_json()))
        fields = [*stored.fields, *(field for field in _SCHEMA.fields if field.name not in stored.names)]
        schema = StructType([field for field in fields if field.name not in _BY])
        names = [f"{self.url}/{file.path}" for file in self.files(hours)]
        # The files' folders differ in form, so they must not be taken for partitions.
        reader = spark.read.schema(schema).option("recursiveFileLookup", "true")
        frame = reader.parquet(*names) if names else spark.createDataFrame([], schema)
        return frame.withColumns(_placed())

    # --- writing

    def open(self) -> DeltaTable:
        """Return the latest version, with at least the columns of this release. The table is created if necessary."""
        wanted = Schema.from_json(_SCHEMA.json())
        table = self.latest() or DeltaTable.create(self.uri, wanted, "ignore", _BY, configuration=_CONFIGURATION)
        present = {field.name for field in table.schema().fields}
        missing = [field for field in wanted.fields if field.name not in present]
        if missing:
            table.alter.add_columns(missing)
        return table

    def write(self, rows: DataFrame, batch: int) -> list[AddAction]:
        """Write events to new files, which no version has yet; return them for :meth:`commit`."""
        folder = f"write={batch}-{uuid.uuid4().hex}"
        rows.withColumns(_placed()).write.partitionBy(*_BY).parquet(f"{self.url}/{folder}")
        selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
        infos = [info for info in self._system.get_file_info(selector) if info.is_file]
        return [self._added(info) for info in infos if not info.base_name.startswith(("_", "."))]

    def _added(self, info: fs.FileInfo) -> AddAction:
        values = dict(part.split("=") for part in info.path.split("/")[1:-1])
        stats = json.dumps({"numRecords": pq.read_metadata(self._system.open_input_file(info.path)).num_rows})
        return AddAction(info.path, info.size, values, int(time.time() * 1000), True, stats)

    def commit(self, table: DeltaTable, files: list[AddAction], batch: int, positions: Mapping[Place, str]) -> None:
        """Add the files of a batch, and the positions that it has reached, to the version on which it was planned.

        Raises:
            PipelineError: another process has added a batch since.
        """
        transactions, known = {BATCH: batch}, _places_of(table)
        new = [place for place in positions if place not in known]
        if new:  # before their positions, because transactions cannot be listed
            table.alter.set_table_properties({_PLACES: json.dumps([*known, *new])}, raise_if_not_exists=False)
        for place, position in positions.items():
            transactions |= dict(zip(_names_of(place), map(int, position.split("-")), strict=True))
        with self._refused():
            table.create_write_transaction(
                [*files], "append", table.schema(), _BY, commit_properties=_properties(transactions)
            )

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except CommitFailedError as error:
            raise PipelineError(
                f"Another process has changed {self.url}: wait for its end, or stop it, then run again"
            ) from error

    # --- upkeep

    def compact(self, day: date) -> None:
        """Merge the files of each hour of a day."""
        table = self.latest()
        if table is not None:
            with self._refused():
                table.optimize.compact(partition_filters=[("day", "=", str(day))])

    def delete_before(self, first: date) -> None:
        """Remove the days before ``first`` from the table and close them, in one version.

        An event of a closed day that arrives later is kept, but its hour is not computed: it has lost the others.
        """
        table = self.latest()
        if table is not None and first > self.closed_before():
            transactions = {_CLOSED: (first - _EPOCH).days}
            with self._refused():
                table.delete(f"day < '{first}'", commit_properties=_properties(transactions))

    def vacuum(self) -> None:
        """Delete files that were replaced, or that no version refers to, :data:`KEEP_HOURS` after that."""
        table = self.latest()
        if table is None:
            return
        table.vacuum(KEEP_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        if self.folder is not None:  # an object store has no folders
            for folder, _, _ in os.walk(self.uri, topdown=False):
                with contextlib.suppress(OSError):  # it is not empty
                    os.rmdir(folder)

    @contextlib.contextmanager
    def alone(self, wait_s: float) -> Iterator[None]:
        """Hold the lock of a root that is a folder. It is released when the process ends.

        A URL has no lock: a second writer is refused by its commit.

        Raises:
            PipelineError: another process still holds the lock after ``wait_s`` seconds.
        """
        if self.folder is None:
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "_lock").open("w") as lock:
            ends = time.monotonic() + wait_s
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= ends:
                        raise PipelineError(
                            f"Another process uses the history in {self.folder}: wait for its end, or stop it"
                        ) from None
                    time.sleep(_POLL_S)
            yield


def number_of(table: DeltaTable | None, transaction: str) -> int:
    """Return the number of a transaction in a version of the table; -1 if it has none."""
    number = None if table is None else table.transaction_version(transaction)
    return -1 if number is None else number


def _places_of(table: DeltaTable) -> list[Place]:
    return [(queue, number) for queue, number in json.loads(table.metadata().configuration.get(_PLACES) or "[]")]


def _names_of(place: Place) -> tuple[str, str]:
    """Return the transactions that hold a shard's position: the number of the last event, and the ms of its entry."""
    return f"{BATCH}/{place[0]}/{place[1]}", f"{BATCH}/{place[0]}/{place[1]}/ms"


def _properties(transactions: Mapping[str, int]) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(name, number) for name, number in transactions.items()])


def _placed() -> dict[str, Any]:
    """Return the values of the partitions of an event, in UTC."""
    ts = F.col("ts")
    return {"day": day_of(ts), "hour": F.pmod(F.floor(F.unix_seconds(ts) / _HOUR_S), F.lit(24)).cast("int")}


def _file_of(row: Mapping[str, Any]) -> EventFile:
    day, path = row["partition.day"], row["path"]
    hour = datetime(day.year, day.month, day.day, row["partition.hour"], tzinfo=UTC)
    _, is_written, rest = path.partition("write=")
    batch = int(rest.partition("-")[0]) if is_written else -1
    return EventFile(path, row["size_bytes"], row["num_records"] or 0, hour, batch)
