"""The tables that are computed from the events; a day is always written whole, in the place of what was there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql.types import BooleanType, DateType, StringType, StructField, StructType

from .lake import Lake, folder_of
from .quality import REASON
from .schemas import EVENTS
from .transforms import HOURS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: the columns of the table of attempts
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
    """One of the computed tables."""

    def replace(self, rows: DataFrame, days: Sequence[date]) -> None:
        """Makes ``rows`` all that the table has of these days."""
        ...

    def read(self, days: Sequence[date]) -> DataFrame:
        """The rows of some days, without opening files of others."""
        ...

    def days(self) -> list[date]:
        """The days that there are, in order."""
        ...

    def drop(self, days: Iterable[date]) -> None:
        """Deletes days."""
        ...

    def size(self, day: date) -> tuple[int, int]:
        """Bytes and files of a day."""
        ...

    def tidy(self) -> None:
        """Deletes what no reader needs any more."""
        ...


class ParquetTable:
    """Plain Parquet, a folder for each day."""

    def __init__(self, lake: Lake, name: str) -> None:
        self._lake = lake
        self._name = name
        self._schema = _SCHEMAS[name]

    def replace(self, rows: DataFrame, days: Sequence[date]) -> None:
        self._lake.put(self._name, self._lake.write(self._name, rows), days)

    def read(self, days: Sequence[date]) -> DataFrame:
        there = set(self.days())
        folders = [folder_of(self._name, day) for day in days if day in there]
        schema = StructType([*self._schema.fields, StructField("day", DateType())])
        return self._lake.read(self._name, folders, schema).select(*self._schema.names)

    def days(self) -> list[date]:
        return self._lake.days(self._name)

    def drop(self, days: Iterable[date]) -> None:
        self._lake.drop(self._name, days)

    def size(self, day: date) -> tuple[int, int]:
        return self._lake.files.size(folder_of(self._name, day))

    def tidy(self) -> None:
        """Nothing is ever left over."""


def table_of(lake: Lake, name: str, form: str) -> Table:
    """A computed table in the form that is wanted; the quarantine is always plain.

    Args:
        form: "parquet" or "delta".
    """
    if form == "delta" and name != "quarantine":
        from .delta import DeltaFormTable

        return DeltaFormTable(lake, name, _SCHEMAS[name])
    return ParquetTable(lake, name)
