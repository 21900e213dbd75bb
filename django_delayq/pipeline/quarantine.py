"""Quarantine: rows that are not valid jobs, stored as Parquet with the reason as text.

Each task of a bulk load writes one file, whose name a second attempt at the task reuses, so that no row is stored
twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from .columns import Bad
from .errors import PipelineError

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

REASON: Final = "reason"
_STAMP: Final = "delayq-"


def file_system(folder: str) -> tuple[Any, str]:
    """Return the file system of a folder, and the folder's path in it.

    It is Arrow's file system, not Spark's: credentials of a store (for S3: AWS_ACCESS_KEY_ID and the like) are read
    from the environment.

    Raises:
        PipelineError: no file system opens it.
    """
    try:
        if "://" in folder or folder.startswith("file:"):
            scheme, _, rest = folder.partition("://")
            uri = f"s3://{rest}" if scheme == "s3a" else folder  # the scheme that Hadoop uses
            return fs.FileSystem.from_uri(uri)  # type: ignore[no-any-return]
        return fs.LocalFileSystem(), os.path.abspath(folder)
    except (pa.ArrowException, OSError) as error:
        raise PipelineError(
            f"the quarantine {folder[:200]!r} cannot be opened: {error}. Give a folder that every machine "
            "of the cluster can write to"
        ) from error


def stem(run_id: str) -> str:
    """Return the common prefix of the file names of a bulk load."""
    return _STAMP + hashlib.sha256(run_id.encode()).hexdigest()[:16]


class Quarantine:
    """Writer for the faulty rows of one task.

    Args:
        part: index of the task within the write.
        attempt: a number unique among the attempts at the task.
    """

    def __init__(self, folder: str, run_id: str, part: int, attempt: int) -> None:
        self._system, root = file_system(folder)
        self._target = f"{root}/{stem(run_id)}-{part:05d}.parquet"
        self._fresh = f"{root}/.{stem(run_id)}-{part:05d}.{attempt}"
        self._root = root
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0

    def add(self, batch: pa.RecordBatch, bad: Bad) -> None:
        """Write the rows to the quarantine."""
        table = pa.Table.from_batches([batch]).take(pa.array(sorted(bad), pa.int64()))
        table = table.append_column(REASON, pa.array([bad[row] for row in sorted(bad)], pa.string()))
        if self._writer is None:
            self._system.create_dir(self._root, recursive=True)
            self._writer = pq.ParquetWriter(self._fresh, table.schema, filesystem=self._system)
        self._writer.write_table(table)
        self.rows += len(bad)

    def close(self, *, keep: bool) -> None:
        """Publish the file under its final name, or delete it."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        with contextlib.suppress(OSError) if not keep else contextlib.nullcontext():
            writer.close()
            if keep:
                self._system.move(self._fresh, self._target)
            else:
                self._system.delete_file(self._fresh)


def _rows_of(folder: str, run_id: str) -> Dataset:
    """Return the rows of a bulk load in the quarantine."""
    from pyarrow import dataset as ds  # imports pandas, which Spark's workers do without

    system, root = file_system(folder)
    files = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    return ds.dataset(
        sorted(info.path for info in files if info.base_name.startswith(stem(run_id))),
        filesystem=system,
        format="parquet",
    )


def count_rows(folder: str, run_id: str) -> int:
    """Return the number of rows of a bulk load in the quarantine."""
    return int(_rows_of(folder, run_id).count_rows())


def reasons(folder: str, run_id: str, most: int) -> list[tuple[str, str]]:
    """Return id and reason of the first quarantined rows of a bulk load, at most ``most`` of them."""
    rows = _rows_of(folder, run_id).head(most, columns=["id", REASON]).to_pylist()
    return [(str(row["id"]), row[REASON]) for row in rows]


def texts_of(batch: pa.RecordBatch, rows: list[int]) -> list[str]:
    """Return the ids of the rows as texts for messages."""
    column = pc.take(batch.column("id"), pa.array(rows, pa.int64()))
    try:
        return [repr(one)[:80] for one in column.to_pylist()]
    except UnicodeDecodeError:
        return [repr(one)[:80] for one in column.cast(pa.large_binary()).to_pylist()]


@contextlib.contextmanager
def temporary_folder(parent: str, name: str) -> Iterator[str]:
    """Yield a folder inside ``parent`` for rows of one bulk load, and delete it with its contents at the end.

    Raises:
        PipelineError: no installed file system opens ``parent``.
    """
    folder = f"{parent.rstrip('/')}/{name}"
    system, path = file_system(folder)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            system.delete_dir(path)
