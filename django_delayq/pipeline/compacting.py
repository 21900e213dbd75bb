"""Compaction of the small batches of a day into one. Readers of this package see each event exactly once meanwhile.

Two notes determine which batches these readers use. Other tools that read the folders ignore the notes.

1. The note ``began`` names the new batch. From then on readers skip this batch, and it is written.
2. The note ``done`` names the old batches. From then on readers skip these instead, and they are deleted.
3. Both notes are deleted.

If the process dies in step 1, the next pipeline run undoes the compaction; if in step 2 or 3, it completes it.
"""

from __future__ import annotations

import json
import logging
import uuid
from datetime import date
from typing import TYPE_CHECKING

from .lake import COMPACT, COMPACTING, EVENTS_TABLE, Lake, folder_of
from .transforms import KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


def compact(lake: Lake, day: date) -> bool:
    """Merge the batches of a day into one, without duplicate events.

    Returns:
        False if the day has fewer than two batches.
    """
    old = lake.batches(day)
    if len(old) < 2:
        return False
    new = f"batch={COMPACT}{uuid.uuid4().hex[:8]}"
    home = folder_of(EVENTS_TABLE, day)
    lake.files.write(f"{COMPACTING}/{day}.began", json.dumps({"new": new}))
    lake.step("compact: began")
    rows = _all_columns(lake, [f"{home}/{name}" for name in old]).dropDuplicates(list(KEY))
    # One file ordered by time compresses best and is the best form for reading a day.
    rows.coalesce(1).sortWithinPartitions("ts").write.mode("overwrite").parquet(lake.files.url(f"{home}/{new}"))
    lake.step("compact: written")
    lake.files.write(f"{COMPACTING}/{day}.done", json.dumps({"new": new, "old": old}))
    lake.step("compact: done")
    _finish(lake, day, old)
    return True


def _all_columns(lake: Lake, folders: list[str]) -> DataFrame:
    """Return the rows with the columns of all writers, including columns that this version does not know."""
    return lake.spark.read.option("mergeSchema", "true").parquet(*map(lake.files.url, folders))


def _finish(lake: Lake, day: date, old: list[str]) -> None:
    for name in old:
        lake.files.delete(f"{folder_of(EVENTS_TABLE, day)}/{name}")
        lake.step("compact: old batch deleted")
    # In this order, because without "done" the new batch is read only if "began" is gone.
    lake.files.delete(f"{COMPACTING}/{day}.began")
    lake.step("compact: note of the beginning deleted")
    lake.files.delete(f"{COMPACTING}/{day}.done")


def recover(lake: Lake) -> None:
    """Undo or complete compactions that were interrupted."""
    for day in sorted({name.rpartition(".")[0] for name in lake.files.names(COMPACTING)}):
        try:
            when = date.fromisoformat(day)
        except ValueError:
            continue
        done, began = lake.note_of(when, "done"), lake.note_of(when, "began")
        if done is not None:
            log.info("%s: the compaction that was cut off is carried on", when)
            _finish(lake, when, done["old"])
        elif began is not None:
            log.info("%s: the compaction that was cut off is undone", when)
            lake.files.delete(f"{folder_of(EVENTS_TABLE, when)}/{began['new']}")
            lake.files.delete(f"{COMPACTING}/{when}.began")
