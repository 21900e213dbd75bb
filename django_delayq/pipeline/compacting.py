"""The many small batches of a day made one; readers of this package never miss an event meanwhile, nor see one twice.

What they take for the events of a day is decided by two notes, which others who read the folders do not know:

1. ``began`` names the new batch, which is passed over from then on; it is written.
2. ``done`` names the old batches, which are passed over from then on instead; they are deleted.
3. Both notes go.

A death in step 1 is undone by the next run, one in step 2 or 3 is carried on.
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
    """Makes the batches of a day one, each event in it once.

    Returns:
        False when there is nothing to do.
    """
    old = lake.batches(day)
    if len(old) < 2:
        return False
    new = f"batch={COMPACT}{uuid.uuid4().hex[:8]}"
    home = folder_of(EVENTS_TABLE, day)
    lake.files.write(f"{COMPACTING}/{day}.began", json.dumps({"new": new}))
    lake.step("compact: began")
    rows = _all_columns(lake, [f"{home}/{name}" for name in old]).dropDuplicates(list(KEY))
    # One file in the order of time compresses best, and is what a reader of a day wants.
    rows.coalesce(1).sortWithinPartitions("ts").write.mode("overwrite").parquet(lake.files.url(f"{home}/{new}"))
    lake.step("compact: written")
    lake.files.write(f"{COMPACTING}/{day}.done", json.dumps({"new": new, "old": old}))
    lake.step("compact: done")
    _finish(lake, day, old)
    return True


def _all_columns(lake: Lake, folders: list[str]) -> DataFrame:
    """The rows with the columns of every writer there was, also those that this version does not know."""
    return lake.spark.read.option("mergeSchema", "true").parquet(*map(lake.files.url, folders))


def _finish(lake: Lake, day: date, old: list[str]) -> None:
    for name in old:
        lake.files.delete(f"{folder_of(EVENTS_TABLE, day)}/{name}")
        lake.step("compact: old batch deleted")
    # In this order: without "done" the new batch counts only if there is no "began" either.
    lake.files.delete(f"{COMPACTING}/{day}.began")
    lake.step("compact: note of the beginning deleted")
    lake.files.delete(f"{COMPACTING}/{day}.done")


def recover(lake: Lake) -> None:
    """Undoes or carries on what a compaction left when it died."""
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
