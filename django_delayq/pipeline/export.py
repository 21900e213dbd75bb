"""Export of a history as plain Parquet, for readers without Delta tables. Needs no Spark, and never reads a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Final

from pyarrow import fs

from .errors import PipelineError
from .quarantine import file_system
from .versions import LiveFile, Versions

#: empty file that is written last
COMPLETE: Final = "_SUCCESS"


@dataclass(frozen=True, slots=True)
class Exported:
    """Size of what was exported of a table: days, files and bytes."""

    days: int
    files: int
    bytes: int


def export(
    tables: Iterable[Versions],
    folder: str,
    first: date = date.min,
    last: date = date.max,
    *,
    on_file: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, Exported]:
    """Copy the files of the latest version of some tables to ``folder/<table>/day=2030-01-31/hour=7/``.

    The file ``_SUCCESS`` in the folder shows that the export is complete. After an error the folder is deleted.

    Args:
        folder: a new or empty folder: a path, or a URL of a store that Arrow opens.
        first, last: the days to copy.
        on_file: called with the number of copied files and that of all files.

    Returns:
        The copied files by name of the table.

    Raises:
        PipelineError: the folder is not empty, or no file system opens it.
    """
    system, home = file_system(folder)
    if system.get_file_info(fs.FileSelector(home, allow_not_found=True)):
        raise PipelineError(f"{folder} is not empty: give a new folder, so that it has the rows of one version only")
    chosen = {table: [file for file in table.files() if first <= file.day <= last] for table in tables}
    pairs = [(table, file) for table, files in chosen.items() for file in files]
    try:
        for done, (table, file) in enumerate(pairs):
            on_file(done, len(pairs))
            _copy(table, file, system, f"{home}/{table.name}/{file.path.partition('/')[2]}")
        system.create_dir(home, recursive=True)
        system.open_output_stream(f"{home}/{COMPLETE}").close()
        on_file(len(pairs), len(pairs))
    except BaseException:
        with suppress(OSError):
            system.delete_dir(home)
        raise
    return {table.name: _summary(files) for table, files in chosen.items()}


def _copy(table: Versions, file: LiveFile, system: fs.FileSystem, target: str) -> None:
    system.create_dir(target.rpartition("/")[0], recursive=True)
    source = f"{table.name}/{file.path}"
    fs.copy_files(source, target, source_filesystem=table.store.files, destination_filesystem=system)


def _summary(files: list[LiveFile]) -> Exported:
    return Exported(len({file.day for file in files}), len(files), sum(file.bytes for file in files))
