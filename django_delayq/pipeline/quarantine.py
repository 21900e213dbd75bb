"""Rows that are no jobs, put aside as Parquet with the reason in words.

A file for each task of a run, under a name that a second try of the task uses again, so that no row lies there twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from .cells import Bad
from .errors import PipelineError

REASON: Final = "reason"
_STAMP: Final = "delayq-"


def file_system(folder: str) -> tuple[Any, str]:
    """What opens a folder, and the folder's path in it.

    It is Arrow's, not Spark's: what opens a store (of S3: AWS_ACCESS_KEY_ID and the like) is in the environment.

    Raises:
        PipelineError: nothing here does.
    """
    try:
        if "://" in folder or folder.startswith("file:"):
            scheme, _, rest = folder.partition("://")
            uri = f"s3://{rest}" if scheme == "s3a" else folder  # as Hadoop calls it
            return fs.FileSystem.from_uri(uri)  # type: ignore[no-any-return]
        return fs.LocalFileSystem(), os.path.abspath(folder)
    except (pa.ArrowException, OSError) as error:
        raise PipelineError(
            f"nothing can be put aside in {folder[:200]!r}: {error}. Give a folder that every machine "
            "of the cluster can write to"
        ) from error


def stem(run_id: str) -> str:
    """How the names of a run's files begin."""
    return _STAMP + hashlib.sha256(run_id.encode()).hexdigest()[:16]


class Quarantine:
    """The bad rows of one task.

    Args:
        folder: a path or a URL.
        run_id: of the run.
        part: the task's place among those of the write.
        attempt: something that no other try of the task has.
    """

    def __init__(self, folder: str, run_id: str, part: int, attempt: int) -> None:
        self._system, root = file_system(folder)
        self._target = f"{root}/{stem(run_id)}-{part:05d}.parquet"
        self._fresh = f"{root}/.{stem(run_id)}-{part:05d}.{attempt}"
        self._root = root
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0

    def add(self, batch: pa.RecordBatch, bad: Bad) -> None:
        """Puts the rows aside."""
        table = pa.Table.from_batches([batch]).take(pa.array(sorted(bad), pa.int64()))
        table = table.append_column(REASON, pa.array([bad[row] for row in sorted(bad)], pa.string()))
        if self._writer is None:
            self._system.create_dir(self._root, recursive=True)
            self._writer = pq.ParquetWriter(self._fresh, table.schema, filesystem=self._system)
        self._writer.write_table(table)
        self.rows += len(bad)

    def close(self, *, keep: bool) -> None:
        """Makes the file that is seen, or leaves none."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        with contextlib.suppress(OSError) if not keep else contextlib.nullcontext():
            writer.close()
            if keep:
                self._system.move(self._fresh, self._target)
            else:
                self._system.delete_file(self._fresh)


def put_aside(folder: str, run_id: str) -> int:
    """How many rows of a run lie there."""
    system, root = file_system(folder)
    found = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    names = [info.path for info in found if info.base_name.startswith(stem(run_id))]
    return sum(pq.ParquetFile(system.open_input_file(name)).metadata.num_rows for name in names)


def texts_of(batch: pa.RecordBatch, rows: list[int]) -> list[str]:
    """What the rows are known by, for messages."""
    column = pc.take(batch.column("id"), pa.array(rows, pa.int64()))
    try:
        return [repr(one)[:80] for one in column.to_pylist()]
    except UnicodeDecodeError:
        return [repr(one)[:80] for one in column.cast(pa.large_binary()).to_pylist()]
