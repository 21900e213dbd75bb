"""Temporary quarantine folders, used only to report the rejected rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow.parquet as pq
from pyarrow import fs

from .quarantine import REASON, file_system, stem


@contextmanager
def folder(scratch: str | None, name: str) -> Iterator[str]:
    """Yield a folder for a quarantine and delete it with its contents at the end.

    Args:
        scratch: parent folder; None = a temporary folder of this machine.
        name: name of the folder inside ``scratch``.

    Raises:
        PipelineError: no installed file system opens ``scratch``.
    """
    if scratch is None:
        with tempfile.TemporaryDirectory(prefix="delayq-", ignore_cleanup_errors=True) as found:
            yield found
        return
    where = f"{scratch.rstrip('/')}/{name}"
    system, path = file_system(where)
    try:
        yield where
    finally:
        with suppress(OSError):
            system.delete_dir(path)


def reasons(where: str, run_id: str, most: int) -> list[tuple[str | None, str]]:
    """Return id and reason of the first quarantined rows of a bulk load, at most ``most`` of them."""
    system, root = file_system(where)
    files = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    found: list[tuple[str | None, str]] = []
    for path in sorted(info.path for info in files if info.base_name.startswith(stem(run_id))):
        table = pq.read_table(path, columns=["id", REASON], filesystem=system).slice(0, most - len(found))
        ids = [None if row is None else str(row) for row in table.column("id").to_pylist()]
        found += zip(ids, table.column(REASON).to_pylist(), strict=True)
        if len(found) >= most:
            break
    return found
