"""Folders of the history: their layout, and the replacement of one folder by another.

    root/events/day=2030-01-31/batch=<query>-<number>-h7-8/*.parquet   events that were read, of the hours 7 to 8
    root/attempts/day=2030-01-31/hour=7/*.parquet                      the attempts among them, without duplicates
    root/hours/day=2030-01-31/*.parquet                                metrics by hour, queue and task
    root/quarantine/day=2030-01-31/hour=7/*.parquet                    attempts that cannot be counted, with the reason
    root/_checkpoints/<consumer>                                       Spark's position in the streams (:mod:`.landing`)
    root/_pending_days/2030-01-31                                      this day's metrics are not complete everywhere
    root/_compacting/2030-01-31.began, .done                           compaction of its batches (:mod:`.compacting`)
    root/_closed_before                                                days before this one have lost events by age

Folders that are read are never written to: Spark writes into a folder whose name begins with ``_fresh``, which readers
skip, and its days or hours are then moved to their final places.
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
#: prefix of the name of a batch that a compaction has written
COMPACT: Final = "compact-"
_FRESH: Final = "_fresh-"
_OLD: Final = "_old-"
#: prefix of the name of an hour's folder
_HOUR: Final = "hour="
#: end of the name of a batch: its first and last hour
_HOURS: Final = re.compile(r"-h(\d{1,2})-(\d{1,2})$")
#: day of events without a time
NO_DAY: Final = date(1970, 1, 1)

#: called with the name of each completed step; tests make one fail
Step = Callable[[str], None]


def no_step(name: str) -> None:
    """Ignore a completed step."""


class Lake:
    """Folders of one history.

    Args:
        root: a path, or a URL that Spark can write to.
        spark: the session; may be None if only folders are listed, and the root is a path.
        step: called with the name of each completed step.
    """

    def __init__(self, root: str, spark: SparkSession | None = None, step: Step = no_step) -> None:
        self.files = files_at(root, spark)
        self.step = step
        self._spark = spark

    @property
    def spark(self) -> SparkSession:
        """Session of Spark.

        Raises:
            PipelineError: the lake has no session.
        """
        if self._spark is None:
            raise PipelineError("Reading and writing the history needs a session of Spark")
        return self._spark

    # --- contents

    def days(self, table: str) -> list[date]:
        """Return the days of a table of plain Parquet, in order."""
        return _days_in(name[4:] for name in self.files.names(table) if name.startswith("day="))

    def batches(self, day: date) -> list[str]:
        """Return the folders that together hold the events of a day, also during a compaction."""
        there = [name for name in self.files.names(folder_of(EVENTS_TABLE, day)) if is_data(name)]
        done = self.note_of(day, "done")
        if done is not None:
            return [name for name in there if name not in done["old"]]
        began = self.note_of(day, "began")
        return there if began is None else [name for name in there if name != began["new"]]

    def note_of(self, day: date, state: str) -> dict[str, Any] | None:
        """Return a compaction's note about a day, ``began`` or ``done``; None if there is none."""
        text = self.files.read(f"{COMPACTING}/{day}.{state}")
        found: dict[str, Any] | None = None if text is None else json.loads(text)
        return found

    # --- reading

    def events(self, wanted: Wanted) -> DataFrame:
        """Return the events of some days or hours, with the columns of ``schemas.EVENTS``; other days are not read.

        An event may be in several batches, after a checkpoint was lost or if a pipeline run allowed losses. Columns
        that an older writer did not have are null, additional columns of a newer writer are ignored.
        """
        days = [day for day, hours in wanted.items() if hours is None]
        partly = {day: hours for day, hours in wanted.items() if hours is not None}
        found = [self._events(whole(days))] if days or not partly else []
        if partly:
            found.append(self._events(partly).where(lies_in(F.col("ts"), partly)))
        return reduce(DataFrame.unionByName, found).select(*EVENTS.names)

    def _events(self, wanted: Wanted) -> DataFrame:
        """Return all events of the batches that may hold one of the wanted hours."""
        folders = [
            f"{folder_of(EVENTS_TABLE, day)}/{batch}"
            for day, hours in wanted.items()
            for batch in self.batches(day)
            if hours is None or may_have(batch, hours)
        ]
        partitions = [StructField("day", DateType()), StructField("batch", StringType())]
        return self.read(EVENTS_TABLE, folders, StructType([*EVENTS.fields, *partitions]))

    def count(self, days: Sequence[date]) -> dict[date, int]:
        """Return the number of attempts by day; an attempt that is in several batches counts in each."""
        rows = self._events(whole(days)).where(is_attempt()).groupBy("day").count().collect()
        return {day: int(count) for day, count in rows}

    def read(self, table: str, folders: Sequence[str], schema: StructType) -> DataFrame:
        """Return the rows in some folders of a table of plain Parquet."""
        if not folders:
            return self.spark.createDataFrame([], schema)
        reader = self.spark.read.schema(schema).option("basePath", self.files.url(table))
        return reader.parquet(*map(self.files.url, folders))

    # --- writing

    def write(self, table: str, rows: DataFrame, *, by_hour: bool = False, most_rows: int = 0) -> Fresh:
        """Write rows, by the day of their column ``ts`` (or ``hour``), to a new folder that readers skip.

        Args:
            table: name of the table.
            rows: the rows.
            by_hour: create a folder for each hour in the folder of a day.
            most_rows: maximum number of rows of a file; 0 = no limit.
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
        """Replace days by the written ones; a day for which nothing was written is deleted.

        Args:
            table: name of the table.
            fresh: the written folder.
            days: the days to replace.
            below: returns the folder to replace within that of a day; None = the whole day.
        """
        for day in days:
            target = folder_of(table, day) if below is None else f"{folder_of(table, day)}/{below(day)}"
            self._exchange(table, f"{fresh.folder}/day={day}", target, "day")
        self.files.delete(fresh.folder)

    def put_hours(self, table: str, fresh: Fresh, wanted: Wanted) -> None:
        """Replace days and hours by those written by hour: whole days at once, hours one by one."""
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
        """Move ``source`` to the place of ``target``; either may be missing."""
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
        """Delete days, or hours of them, from a table of plain Parquet."""
        for day, hours in wanted.items():
            if hours is None:
                if self._is_there(folder_of(table, day)):
                    gone = f"{table}/{_OLD}{uuid.uuid4().hex}"
                    self.files.move(
                        folder_of(table, day), gone
                    )  # so that an interrupted deletion leaves no incomplete day
                    self.files.delete(gone)
                continue
            for hour in hours:
                self.files.delete(f"{folder_of(table, day)}/{_HOUR}{hour}")
            self._leave_no_empty(table, day)

    def _leave_no_empty(self, table: str, day: date) -> None:
        if not self.files.names(folder_of(table, day)):
            self.files.delete(folder_of(table, day))

    def folders(self, table: str, wanted: Wanted) -> list[str]:
        """Return the existing folders of these days and hours in a table of plain Parquet."""
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
        """Return True if a day of a table exists and all its data are in folders of hours."""
        names = [name for name in self.files.names(folder_of(table, day)) if is_data(name)]
        return bool(names) and all(name.startswith(_HOUR) for name in names)

    def sweep(self) -> None:
        """Delete the incomplete folders of pipeline runs that died. No other process may be changing the lake."""
        for table in TABLES:
            for name in self.files.names(table):
                if name.startswith((_FRESH, _OLD)):
                    self.files.delete(f"{table}/{name}")

    # --- notes

    def pending(self) -> list[date]:
        """Return the days whose metrics must be computed or published again."""
        return _days_in(self.files.names(PENDING))

    def note_pending(self, days: Iterable[date]) -> None:
        """Mark days as pending, before anything of them is changed."""
        for day in days:
            self.files.write(f"{PENDING}/{day}", "")

    def settle(self, days: Iterable[date]) -> None:
        """Remove the pending marks of days whose metrics are complete everywhere."""
        for day in days:
            self.files.delete(f"{PENDING}/{day}")

    def closed_before(self) -> date:
        """Return the first day that may be computed again; earlier days have lost events by age."""
        text = self.files.read(CLOSED)
        return date.min if text is None else date.fromisoformat(text.strip())

    def close_before(self, day: date) -> None:
        """Close the days before this one; a closed day is never reopened."""
        if day > self.closed_before():
            self.files.write(CLOSED, f"{day}\n")


class Fresh:
    """Written folder that was not moved to its place yet."""

    def __init__(self, folder: str, days: list[date]) -> None:
        self.folder = folder
        self.days = days


def folder_of(table: str, day: date) -> str:
    """Return the folder of a day."""
    return f"{table}/day={day}"


def batch_name(name: str, hours: Collection[int] | None) -> str:
    """Return the name of a batch's folder in that of a day; it includes the hours of its events if they are known."""
    return f"batch={name}" + (f"-h{min(hours)}-{max(hours)}" if hours else "")


def may_have(batch: str, hours: Collection[int]) -> bool:
    """Return True if a batch may have events of one of these hours, by the name of its folder."""
    said = _HOURS.search(batch)
    return said is None or any(int(said[1]) <= hour <= int(said[2]) for hour in hours)


def _days_in(texts: Iterable[str]) -> list[date]:
    found = []
    for text in texts:
        try:
            found.append(date.fromisoformat(text))
        except ValueError:
            continue  # a foreign file, or one of the file system
    return sorted(found)
