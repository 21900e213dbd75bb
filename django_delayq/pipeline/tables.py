"""Tables that are computed from the events. Writes replace whole days, or hours of them."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql.types import BooleanType, DateType, IntegerType, StringType, StructField, StructType

from .lake import Lake, folder_of
from .quality import REASON
from .schemas import EVENTS
from .transforms import HOURS
from .wanted import Wanted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: columns of the table of attempts
ATTEMPTS: Final = StructType(
    [
        *(field for field in EVENTS.fields if field.name not in ("jobs", "created")),
        StructField("sla_missed", BooleanType()),
    ]
)
_SCHEMAS: Final = {
    "attempts": ATTEMPTS,
    "hours": HOURS,
    "quarantine": StructType([*ATTEMPTS.fields, StructField(REASON, StringType())]),
}


class Table(Protocol):
    """Computed table."""

    def replace(self, rows: DataFrame, wanted: Wanted) -> None:
        """Replace these days and hours of the table by ``rows``."""
        ...

    def read(self, wanted: Wanted) -> DataFrame:
        """Return the rows of some days and hours, without opening files of others."""
        ...

    def days(self) -> list[date]:
        """Return the days of the table, in order."""
        ...

    def is_by_hour(self, day: date) -> bool:
        """Return True if the day exists and its hours can be replaced individually."""
        ...

    def drop(self, wanted: Wanted) -> None:
        """Delete days, or hours of them."""
        ...

    def size(self, day: date) -> tuple[int, int]:
        """Return the bytes and the number of files of a day."""
        ...

    def tidy(self) -> None:
        """Delete files that no reader needs any more."""
        ...


class ParquetTable:
    """Table of plain Parquet with a folder for each day.

    Args:
        lake: the lake.
        name: name of the table.
        by_hour: each day has a folder for each hour, so that hours can be replaced individually.
    """

    def __init__(self, lake: Lake, name: str, *, by_hour: bool) -> None:
        self._lake = lake
        self._name = name
        self._schema = _SCHEMAS[name]
        self._by_hour = by_hour

    def replace(self, rows: DataFrame, wanted: Wanted) -> None:
        fresh = self._lake.write(self._name, rows, by_hour=self._by_hour)
        if self._by_hour:
            self._lake.put_hours(self._name, fresh, wanted)
        else:
            self._lake.put(self._name, fresh, wanted)

    def read(self, wanted: Wanted) -> DataFrame:
        folders = self._lake.folders(self._name, wanted)
        partitions = [StructField("day", DateType())]
        if self._by_hour:
            partitions.append(StructField("hour", IntegerType()))
        return self._lake.read(self._name, folders, StructType([*self._schema.fields, *partitions])).select(
            *self._schema.names
        )

    def days(self) -> list[date]:
        return self._lake.days(self._name)

    def is_by_hour(self, day: date) -> bool:
        return self._by_hour and self._lake.is_by_hour(self._name, day)

    def drop(self, wanted: Wanted) -> None:
        self._lake.drop(self._name, wanted)

    def size(self, day: date) -> tuple[int, int]:
        return self._lake.files.size(folder_of(self._name, day))

    def tidy(self) -> None:
        """Do nothing, because replaced files are deleted at once."""


def table_of(lake: Lake, name: str, form: str) -> Table:
    """Return a computed table in the given format; the quarantine is always plain Parquet.

    Args:
        lake: the lake.
        name: name of the table.
        form: "parquet" or "delta".
    """
    if form == "delta" and name != "quarantine":
        from .delta import DeltaFormTable

        return DeltaFormTable(lake, name, _SCHEMAS[name])
    return ParquetTable(lake, name, by_hour=name != "hours")
