"""Versions of a Delta table: which files are live, and changes of them. Needs no Spark, and never reads a row.

A change is one commit: it adds files that lie in the table's folder already, and removes others. It is complete or not
there, wherever a process dies. No file is renamed or written to again. Each commit has a transaction, a name and a
number that the log keeps:

* Appended files carry the name of their source. A source's number that is in already is not committed again.
* Replaced files carry :data:`REPLACE`. Its number is the one that was seen before the new files were computed, plus 1.
  If another process has replaced files since, the commit is refused.

Two commits at the same time with the same name conflict, so one of them is refused. Others are both made.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from .errors import PipelineError
from .store import Store

if TYPE_CHECKING:
    from .day_hours import DayHours

#: hours for which replaced files are kept for readers that still use them, and files of no version for their writer
KEEP_HOURS: Final = 24
REPLACE: Final = "delayq.replace"
#: A stream makes 1,440 versions a day. A checkpoint of the log bounds what a reader opens; older entries are deleted.
_CONFIGURATION: Final = {
    "delta.checkpointInterval": "50",
    "delta.enableExpiredLogCleanup": "true",
    "delta.logRetentionDuration": f"interval {KEEP_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {KEEP_HOURS} hours",
}


@dataclass(frozen=True, slots=True)
class LiveFile:
    """File of the latest version of a table."""

    #: relative to the table
    path: str
    bytes: int
    day: date
    #: None in a table without a partition for each hour
    hour: int | None

    def lies_in(self, selected: DayHours) -> bool:
        """Return True if the file is of one of these days and hours."""
        hours = selected.get(self.day, frozenset())
        return hours is None or self.hour in hours


class Versions:
    """Delta table with a partition for each day, or for each day and hour."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name

    # --- what is there

    def files(self, selected: DayHours | None = None) -> list[LiveFile]:
        """Return the live files, those of some days and hours or all of them."""
        table = self.latest()
        return [] if table is None else list(_live(table, selected))

    def days(self) -> list[date]:
        """Return the days of the table, in order."""
        return sorted({file.day for file in self.files()})

    def latest(self) -> DeltaTable | None:
        """Return the latest version; None if there is no table yet."""
        uri = self.store.uri(self.name)
        return DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None

    def has(self, source: str, number: int) -> bool:
        """Return True if this number of a source has been appended."""
        return self._number(source) >= number

    def replaced(self) -> int:
        """Return the number of the latest replacement, to be passed to :meth:`replace`."""
        return max(self._number(REPLACE), 0)

    def _number(self, transaction: str) -> int:
        table = self.latest()
        return -1 if table is None else _number_in(table, transaction)

    # --- changes

    def prepare(self, schema: Schema, by: Iterable[str]) -> DeltaTable:
        """Return the latest version, with at least the columns of ``schema``. The table is created if necessary."""
        uri = self.store.uri(self.name)
        table = self.latest() or DeltaTable.create(uri, schema, "ignore", list(by), configuration=_CONFIGURATION)
        present = {field.name for field in table.schema().fields}
        missing = [field for field in schema.fields if field.name not in present]
        if missing:
            table.alter.add_columns(missing)
        return table

    def append(self, files: list[AddAction], source: str, number: int) -> None:
        """Add files, unless this number of the source is in already."""
        table = self.latest()
        if table is None:
            raise PipelineError(f"The table {self.store.url(self.name)} is missing: run again")
        if files and _number_in(table, source) < number:
            self._commit(table, files, source, number)

    def replace(self, files: list[AddAction], selected: DayHours, seen: int, *, data_change: bool = True) -> None:
        """Replace the files of these days and hours, all at once.

        Args:
            selected: the days and hours; those without a new file leave the table.
            seen: the result of :meth:`replaced` from before the new files were computed.
            data_change: False: the new files have the same rows as the old ones.

        Raises:
            PipelineError: another process has replaced files since ``seen``.
        """
        table = self.latest()
        if table is None:
            return
        if max(_number_in(table, REPLACE), 0) != seen:
            raise self._is_changed()
        old = list(_live(table, selected))
        if not files and not old:
            return
        for file in files:
            file.data_change = data_change
        self._commit(table, [*(_removed(file, data_change) for file in old), *files], REPLACE, seen + 1)

    def _commit(self, table: DeltaTable, actions: list[Any], transaction: str, number: int) -> None:
        properties = CommitProperties(app_transactions=[Transaction(transaction, number)])
        by = table.metadata().partition_columns
        try:
            table.create_write_transaction(actions, "append", table.schema(), by, commit_properties=properties)
        except CommitFailedError as error:
            raise self._is_changed() from error

    def _is_changed(self) -> PipelineError:
        return PipelineError(
            f"Another process has changed {self.store.url(self.name)}: wait for its end, or stop it, then run again"
        )

    # --- deletion

    def purge(self, day: date) -> None:
        """Remove a day from the table, and all of its files from the disk, those that were replaced before included."""
        self.replace([], {day: None}, self.replaced())
        table = self.latest()
        removed = [] if table is None else table.vacuum(0, dry_run=True, enforce_retention_duration=False)
        for path in removed:
            if f"/day={day}/" in path:
                self.store.delete(f"{self.name}/{path}")

    def vacuum(self) -> None:
        """Delete files that were replaced, or that no version refers to, :data:`KEEP_HOURS` after that."""
        table = self.latest()
        if table is None:
            return
        table.vacuum(KEEP_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        if self.store.folder is not None:  # an object store has no folders
            for folder, _, _ in os.walk(self.store.folder / self.name, topdown=False):
                with contextlib.suppress(OSError):  # it is not empty
                    os.rmdir(folder)


def _number_in(table: DeltaTable, transaction: str) -> int:
    number = table.transaction_version(transaction)
    return -1 if number is None else number


def _live(table: DeltaTable, selected: DayHours | None) -> Iterator[LiveFile]:
    columns = ["path", "size_bytes", "partition"]
    for row in pa.table(table.get_add_actions()).select(columns).to_pylist():
        file = LiveFile(row["path"], row["size_bytes"], row["partition"]["day"], row["partition"].get("hour"))
        if selected is None or file.lies_in(selected):
            yield file


def _removed(file: LiveFile, data_change: bool) -> RemoveAction:
    return RemoveAction(file.path, data_change, int(time.time() * 1000), file.bytes, partition_values(file.path))


def partition_values(path: str) -> dict[str, str | None]:
    """Return the values of a file's partitions, from its path in the table."""
    pairs = (part.partition("=") for part in path.split("/")[1:-1])
    return {name: value for name, _, value in pairs}
