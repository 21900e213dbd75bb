"""The folders of the history: what is where, and how a folder is put in the place of another.

    root/events/day=2030-01-31/batch=<query>-<number>-h7-8/*.parquet   what was read, of the hours from 7 to 8
    root/attempts/day=2030-01-31/hour=7/*.parquet                      the runs among them, each once
    root/hours/day=2030-01-31/*.parquet                                figures by hour, queue and task
    root/quarantine/day=2030-01-31/hour=7/*.parquet                    attempts that cannot be counted, with the reason
    root/_checkpoints/<consumer>                                       how far Spark has read (:mod:`.landing`)
    root/_pending_days/2030-01-31                                      this day's figures are not yet everywhere
    root/_compacting/2030-01-31.began, .done                           its batches are made one (:mod:`.compacting`)
    root/_closed_before                                                days before this one have lost events by age

Nothing is ever written where it is read: Spark writes into a folder whose name begins with ``_fresh``, which readers
pass over, and its days or hours are then moved to where they belong.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import date
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, StructField, StructType

from .errors import PipelineError
from .files import files_at, is_data
from .schemas import EVENTS
from .transforms import day_of, is_attempt
from .wanted import Wanted, hour_number, lies_in, whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
#: beginning of the name of a folder of an hour
_HOUR: Final = "hour="
#: end of the name of a batch: its first and its last hour
_HOURS: Final = re.compile(r"-h(\d{1,2})-(\d{1,2})$")
#: where events without a time lie
NO_DAY: Final = date(1970, 1, 1)

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

    def events(self, wanted: Wanted) -> DataFrame:
        """The events of some days or hours, with the columns of ``schemas.EVENTS``; no other day is looked at.

        An event may be in several batches: of a checkpoint that was lost, or of a run that allowed losses.
        What an older writer did not know is null, what a newer one knows as well is passed over.
        """
        days = [day for day, hours in wanted.items() if hours is None]
        partly = {day: hours for day, hours in wanted.items() if hours is not None}
        found = [self._events(whole(days))] if days or not partly else []
        if partly:
            found.append(self._events(partly).where(lies_in(F.col("ts"), partly)))
        return reduce(DataFrame.unionByName, found).select(*EVENTS.names)

    def _events(self, wanted: Wanted) -> DataFrame:
        """All events of the batches that may have one of these."""
        folders = [
            f"{folder_of(EVENTS_TABLE, day)}/{batch}"
            for day, hours in wanted.items()
            for batch in self.batches(day)
            if hours is None or may_have(batch, hours)
        ]
        partitions = [StructField("day", DateType()), StructField("batch", StringType())]
        return self.read(EVENTS_TABLE, folders, StructType([*EVENTS.fields, *partitions]))

    def count(self, days: Sequence[date]) -> dict[date, int]:
        """The attempts among the events of some days, by day; one that is in several batches counts in each."""
        rows = self._events(whole(days)).where(is_attempt()).groupBy("day").count().collect()
        return {day: int(count) for day, count in rows}

    def read(self, table: str, folders: Sequence[str], schema: StructType) -> DataFrame:
        """The rows in some folders of a table of plain Parquet."""
        if not folders:
            return self.spark.createDataFrame([], schema)
        reader = self.spark.read.schema(schema).option("basePath", self.files.url(table))
        return reader.parquet(*map(self.files.url, folders))

    # --- writing

    def write(self, table: str, rows: DataFrame, *, by_hour: bool = False, most_rows: int = 0) -> Fresh:
        """Writes rows with a column ``ts``, by its day, to where nobody reads them yet.

        Args:
            by_hour: with a folder for each hour in that of a day.
            most_rows: of a file; 0 = any number.
        """
        folder = f"{table}/{_FRESH}{uuid.uuid4().hex}"
        moment = F.col("ts" if "ts" in rows.columns else "hour")
        placed = rows.withColumn("day", F.coalesce(day_of(moment), F.lit(NO_DAY)))
        if by_hour:
            hour = F.coalesce(F.pmod(hour_number(moment), F.lit(24)), F.lit(0))
            placed = placed.withColumn("hour", hour.cast("int"))
        writer = placed.write.mode("error").option("maxRecordsPerFile", most_rows)
        writer.partitionBy(*(["day", "hour"] if by_hour else ["day"])).parquet(self.files.url(folder))
        return Fresh(folder, _days_in(name[4:] for name in self.files.names(folder) if name.startswith("day=")))

    def put(self, table: str, fresh: Fresh, days: Iterable[date], below: Callable[[date], str] | None = None) -> None:
        """Moves what was written into the place of what is there; a day of which nothing was written goes.

        Args:
            below: the folder below that of a day that is replaced; None = the whole day.
        """
        for day in days:
            target = folder_of(table, day) if below is None else f"{folder_of(table, day)}/{below(day)}"
            self._exchange(table, f"{fresh.folder}/day={day}", target, "day")
        self.files.delete(fresh.folder)

    def put_hours(self, table: str, fresh: Fresh, wanted: Wanted) -> None:
        """The same of what was written by hour: whole days are exchanged at once, hours one by one."""
        for day, hours in wanted.items():
            if hours is None:
                self._exchange(table, f"{fresh.folder}/day={day}", folder_of(table, day), "day")
                continue
            for hour in sorted(hours):
                source = f"{fresh.folder}/day={day}/{_HOUR}{hour}"
                self._exchange(table, source, f"{folder_of(table, day)}/{_HOUR}{hour}", "hour")
            self._leave_no_empty(table, day)
        self.files.delete(fresh.folder)

    def _exchange(self, table: str, source: str, target: str, what: str) -> None:
        """Puts ``source`` into the place of ``target``; either may be missing."""
        is_new = self._is_there(source)
        if self._is_there(target):
            old = f"{table}/{_OLD}{uuid.uuid4().hex}"
            self.files.move(target, old)
            self.step(f"{table}: {what} taken out")
            if is_new:
                self.files.move(source, target)
            self.files.delete(old)
        elif is_new:
            self.files.move(source, target)
        self.step(f"{table}: {what} put")

    def _is_there(self, folder: str) -> bool:
        parent, _, name = folder.rpartition("/")
        return name in self.files.names(parent)

    def drop(self, table: str, wanted: Wanted) -> None:
        """Deletes days, or hours of them, of a table of plain Parquet."""
        for day, hours in wanted.items():
            if hours is None:
                if self._is_there(folder_of(table, day)):
                    gone = f"{table}/{_OLD}{uuid.uuid4().hex}"
                    self.files.move(folder_of(table, day), gone)  # a death while it is deleted leaves no half day
                    self.files.delete(gone)
                continue
            for hour in hours:
                self.files.delete(f"{folder_of(table, day)}/{_HOUR}{hour}")
            self._leave_no_empty(table, day)

    def _leave_no_empty(self, table: str, day: date) -> None:
        if not self.files.names(folder_of(table, day)):
            self.files.delete(folder_of(table, day))

    def folders(self, table: str, wanted: Wanted) -> list[str]:
        """The folders that a table of plain Parquet has of these days and hours."""
        found = []
        there = set(self.days(table))
        for day in (day for day in wanted if day in there):
            home, hours = folder_of(table, day), wanted[day]
            if hours is None:
                found.append(home)
            else:
                kept = set(self.files.names(home))
                found += [f"{home}/{_HOUR}{hour}" for hour in sorted(hours) if f"{_HOUR}{hour}" in kept]
        return found

    def is_by_hour(self, table: str, day: date) -> bool:
        """Whether a day of a table is there, and all of it lies in folders of hours."""
        names = [name for name in self.files.names(folder_of(table, day)) if is_data(name)]
        return bool(names) and all(name.startswith(_HOUR) for name in names)

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


def batch_name(name: str, hours: Collection[int] | None) -> str:
    """The folder of a batch in that of a day, which tells the hours that it has events of, if they are known."""
    return f"batch={name}" + (f"-h{min(hours)}-{max(hours)}" if hours else "")


def may_have(batch: str, hours: Collection[int]) -> bool:
    """Whether a batch may have events of one of these hours, as its folder's name says."""
    said = _HOURS.search(batch)
    return said is None or any(int(said[1]) <= hour <= int(said[2]) for hour in hours)


def _days_in(texts: Iterable[str]) -> list[date]:
    found = []
    for text in texts:
        try:
            found.append(date.fromisoformat(text))
        except ValueError:
            continue  # a file of somebody else, or of the file system
    return sorted(found)
