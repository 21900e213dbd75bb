"""Tables of the history, written and read by Spark.

Spark's tasks write Parquet into a new folder of the table, ``write=<id>/day=2030-01-31/hour=7/``. The driver then makes
these files part of a version (:mod:`.versions`), by their names and sizes only.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
from deltalake import Schema
from deltalake.transaction import AddAction
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DateType, IntegerType, StringType, StructField, StructType

from .day_hours import DayHours, hour_number
from .quality import REASON
from .schemas import EVENTS
from .store import Store, is_data
from .transforms import HOURS, day_of
from .versions import Versions, partition_values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: day of events without a time
NO_DAY: Final = date(1970, 1, 1)
#: columns of the table of attempts
ATTEMPTS: Final = StructType(
    [
        *(field for field in EVENTS.fields if field.name not in ("jobs", "created")),
        StructField("sla_missed", BooleanType()),
    ]
)
_QUARANTINE: Final = StructType([*ATTEMPTS.fields, StructField(REASON, StringType())])

#: called with the name of each completed step; tests make one fail
Step = Callable[[str], None]


def ignore(*_: object) -> None:
    """Do nothing: the default of a callback."""


@dataclass(frozen=True, slots=True)
class Form:
    """Form of a table: its columns, and how it is partitioned by time."""

    columns: StructType
    #: the column with the time of a row
    moment: str = "ts"
    by_hour: bool = True

    @property
    def by(self) -> list[str]:
        """Names of the columns by which the table is partitioned."""
        return ["day", "hour"] if self.by_hour else ["day"]

    def placed(self) -> dict[str, Column]:
        """Return the values of the partitions of a row."""
        moment = F.col(self.moment)
        day = F.coalesce(day_of(moment), F.lit(NO_DAY))
        hour = F.coalesce(F.pmod(hour_number(moment), F.lit(24)), F.lit(0)).cast("int")
        return {"day": day, "hour": hour} if self.by_hour else {"day": day}

    @property
    def schema(self) -> StructType:
        """All columns, which may be null: another version may not have written them."""
        partitions = [StructField("day", DateType()), StructField("hour", IntegerType())]
        fields = [*self.columns.fields, *partitions[: len(self.by)]]
        return StructType([StructField(field.name, field.dataType) for field in fields])


#: by name, the raw table first
FORMS: Final = {
    "events": Form(EVENTS),
    "attempts": Form(ATTEMPTS),
    "hours": Form(HOURS, "hour", by_hour=False),
    "quarantine": Form(_QUARANTINE),
}


class Table(Versions):
    """Table of a history.

    Args:
        name: one of :data:`FORMS`.
        step: called with the name of each completed step.
    """

    def __init__(self, store: Store, name: str, step: Step = ignore) -> None:
        super().__init__(store, name)
        self.form = FORMS[name]
        self._step = step

    def read(self, spark: SparkSession, selected: DayHours | None = None) -> DataFrame:
        """Return the rows of the given days and hours, or all rows; ``day`` and ``hour`` are columns.

        Columns that an older version did not write are null. Those of a newer version are included.
        """
        table = self.latest()
        stored = None if table is None else StructType.fromJson(json.loads(table.schema().to_json()))
        schema = self._with_own(stored) if stored else self.form.schema
        names = [self.store.url(f"{self.name}/{file.path}") for file in self.files(selected)]
        if not names:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema.add("write", StringType())).option("basePath", self.store.url(self.name))
        return reader.parquet(*names).drop("write")

    def _with_own(self, stored: StructType) -> StructType:
        """Return the columns of the table, and those of this version that it does not have yet."""
        return StructType([*stored.fields, *(one for one in self.form.schema.fields if one.name not in stored.names)])

    def write(self, rows: DataFrame) -> list[AddAction]:
        """Write rows to new files, which no version has yet.

        Args:
            rows: the columns of the table; those of its partitions too, or neither of them.

        Returns:
            The files, for :meth:`append` or :meth:`replace`.
        """
        self.prepare(Schema.from_json(self.form.schema.json()), self.form.by)
        folder = f"write={uuid.uuid4().hex}"
        placed = rows if "day" in rows.columns else rows.withColumns(self.form.placed())
        placed.write.partitionBy(*self.form.by).parquet(self.store.url(f"{self.name}/{folder}"))
        self._step(f"{self.name}: files written")
        return self._added(folder)

    def _added(self, folder: str) -> list[AddAction]:
        added = []
        for info in self.store.below(f"{self.name}/{folder}"):
            if info.is_file and is_data(path := info.path.removeprefix(f"{self.name}/")):
                rows = pq.read_metadata(self.store.files.open_input_file(info.path)).num_rows
                stats = json.dumps({"numRecords": rows})
                now = int(time.time() * 1000)
                added.append(AddAction(path, info.size, partition_values(path), now, True, stats))
        return added

    def replace(self, files: list[AddAction], selected: DayHours, seen: int, *, data_change: bool = True) -> None:
        super().replace(files, selected, seen, data_change=data_change)
        self._step(f"{self.name}: replaced")


def tables_of(store: Store, step: Step = ignore) -> dict[str, Table]:
    """Return the tables of a history by name."""
    return {name: Table(store, name, step) for name in FORMS}


def days_of(files: Sequence[AddAction]) -> dict[date, set[int]]:
    """Return the days and hours of written files."""
    days: dict[date, set[int]] = {}
    for file in files:
        hours = days.setdefault(date.fromisoformat(str(file.partition_values["day"])), set())
        hours.add(int(file.partition_values.get("hour") or 0))
    return days


def read(spark: SparkSession, table: str) -> DataFrame:
    """Return the rows of a table of a history, for a Spark without a reader for Delta tables.

    Args:
        spark: any session. The rows are those of the latest version, even if the table changes meanwhile.
        table: path or URL of the table, like ``/srv/history/attempts``.
    """
    root, _, name = table.rstrip("/").rpartition("/")
    return Table(Store(root or "."), name).read(spark)
