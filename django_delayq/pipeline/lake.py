"""The folders of the history: what is where, and how a folder is put in the place of another.

    root/events/day=2030-01-31/batch=<query>-<number>/*.parquet   what was read, as it was read (:mod:`.landing`)
    root/attempts/day=2030-01-31/*.parquet                        the runs among them, each once
    root/hours/day=2030-01-31/*.parquet                           figures by hour, queue and task
    root/quarantine/day=2030-01-31/*.parquet                      attempts that cannot be counted, with the reason
    root/_checkpoints/<consumer>                                  how far Spark has read
    root/_pending_days/2030-01-31                                 this day's figures are not yet everywhere
    root/_compacting/2030-01-31.began, .done                      a day's batches are made one (:mod:`.compacting`)
    root/_closed_before                                           days before this one have lost events by age

Nothing is ever written where it is read: Spark writes into a folder whose name begins with ``_fresh``, which readers
pass over, and its days are then moved to where they belong.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, StructField, StructType

from .errors import PipelineError
from .files import files_at, is_data
from .schemas import EVENTS
from .transforms import day_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS_TABLE: Final = "events"
#: tables, the raw one first
TABLES: Final = (EVENTS_TABLE, "attempts", "hours", "quarantine")
PENDING: Final = "_pending_days"
COMPACTING: Final = "_compacting"
CLOSED: Final = "_closed_before"
#: beginning of the name of a batch that others were made into
COMPACT: Final = "compact-"
_FRESH: Final = "_fresh-"
_OLD: Final = "_old-"
#: where events without a time lie
_NO_DAY: Final = date(1970, 1, 1)

#: called with the name of each step that is done; tests let one fail
Step = Callable[[str], None]


def no_step(name: str) -> None:
    """Nobody wants to know."""


class Lake:
    """The folders of one history.

    Args:
        root: a path, or a URL that Spark can write to.
        spark: may be missing where only folders are looked at, and the root is a path.
    """

    def __init__(self, root: str, spark: SparkSession | None = None, step: Step = no_step) -> None:
        self.files = files_at(root, spark)
        self.step = step
        self._spark = spark

    @property
    def spark(self) -> SparkSession:
        """The session.

        Raises:
            PipelineError: there is none.
        """
        if self._spark is None:
            raise PipelineError("Reading and writing the history needs a session of Spark")
        return self._spark

    # --- what is there

    def days(self, table: str) -> list[date]:
        """The days that a table of plain Parquet has, in order."""
        return _days_in(name[4:] for name in self.files.names(table) if name.startswith("day="))

    def batches(self, day: date) -> list[str]:
        """The folders that together have the events of a day, whatever a compaction is about."""
        there = [name for name in self.files.names(folder_of(EVENTS_TABLE, day)) if is_data(name)]
        done = self.note_of(day, "done")
        if done is not None:
            return [name for name in there if name not in done["old"]]
        began = self.note_of(day, "began")
        return there if began is None else [name for name in there if name != began["new"]]

    def note_of(self, day: date, state: str) -> dict[str, Any] | None:
        """What a compaction noted of a day: ``began`` or ``done``."""
        text = self.files.read(f"{COMPACTING}/{day}.{state}")
        found: dict[str, Any] | None = None if text is None else json.loads(text)
        return found

    # --- reading

    def events(self, days: Sequence[date]) -> DataFrame:
        """The events of some days, with the columns of ``schemas.EVENTS``; no other day is looked at.

        An event may be in several batches: of a checkpoint that was lost, or of a run that allowed losses.
        What an older writer did not know is null, what a newer one knows as well is passed over.
        """
        folders = [f"{folder_of(EVENTS_TABLE, day)}/{batch}" for day in days for batch in self.batches(day)]
        partitions = [StructField("day", DateType()), StructField("batch", StringType())]
        return self.read(EVENTS_TABLE, folders, StructType([*EVENTS.fields, *partitions])).select(*EVENTS.names)

    def read(self, table: str, folders: Sequence[str], schema: StructType) -> DataFrame:
        """The rows in some folders of a table of plain Parquet."""
        if not folders:
            return self.spark.createDataFrame([], schema)
        reader = self.spark.read.schema(schema).option("basePath", self.files.url(table))
        return reader.parquet(*map(self.files.url, folders))

    # --- writing

    def write(self, table: str, rows: DataFrame) -> Fresh:
        """Writes rows with a column ``ts``, by its day, to where nobody reads them yet."""
        folder = f"{table}/{_FRESH}{uuid.uuid4().hex}"
        when = F.coalesce(day_of(F.col("ts" if "ts" in rows.columns else "hour")), F.lit(_NO_DAY))
        writer = rows.withColumn("day", when).write.mode("error").partitionBy("day")
        writer.parquet(self.files.url(folder))
        return Fresh(folder, _days_in(name[4:] for name in self.files.names(folder) if name.startswith("day=")))

    def put(self, table: str, fresh: Fresh, days: Iterable[date], below: str = "") -> None:
        """Moves what was written into the place of what is there; a day of which nothing was written goes.

        Args:
            below: folder below that of the day that is replaced; "" = the whole day.
        """
        for day in days:
            target = folder_of(table, day) + (f"/{below}" if below else "")
            parent, _, name = target.rpartition("/")
            if name in self.files.names(parent):
                old = f"{table}/{_OLD}{uuid.uuid4().hex}"
                self.files.move(target, old)
                self.step(f"{table}: day taken out")
                if day in fresh.days:
                    self.files.move(f"{fresh.folder}/day={day}", target)
                self.files.delete(old)
            elif day in fresh.days:
                self.files.move(f"{fresh.folder}/day={day}", target)
            self.step(f"{table}: day put")
        self.files.delete(fresh.folder)

    def drop(self, table: str, days: Iterable[date]) -> None:
        """Deletes days of a table of plain Parquet."""
        for day in days:
            self.files.delete(folder_of(table, day))

    def sweep(self) -> None:
        """Deletes what a run left half written when it died; to be called when no other is at work."""
        for table in TABLES:
            for name in self.files.names(table):
                if name.startswith((_FRESH, _OLD)):
                    self.files.delete(f"{table}/{name}")

    # --- notes

    def pending(self) -> list[date]:
        """Days whose figures have to be computed, or told, once more."""
        return _days_in(self.files.names(PENDING))

    def note_pending(self, days: Iterable[date]) -> None:
        """Notes days before anything of them changes."""
        for day in days:
            self.files.write(f"{PENDING}/{day}", "")

    def settle(self, days: Iterable[date]) -> None:
        """These days are everywhere as they should be."""
        for day in days:
            self.files.delete(f"{PENDING}/{day}")

    def closed_before(self) -> date:
        """Days before this one have lost events by age, so they cannot be computed again."""
        text = self.files.read(CLOSED)
        return date.min if text is None else date.fromisoformat(text.strip())

    def close_before(self, day: date) -> None:
        """Closes the days before this one; a closed day is never opened again."""
        if day > self.closed_before():
            self.files.write(CLOSED, f"{day}\n")


class Fresh:
    """What was written, and is not yet where it belongs."""

    def __init__(self, folder: str, days: list[date]) -> None:
        self.folder = folder
        self.days = days


def folder_of(table: str, day: date) -> str:
    """The folder of a day."""
    return f"{table}/day={day}"


def _days_in(texts: Iterable[str]) -> list[date]:
    found = []
    for text in texts:
        try:
            found.append(date.fromisoformat(text))
        except ValueError:
            continue  # a file of somebody else, or of the file system
    return sorted(found)
