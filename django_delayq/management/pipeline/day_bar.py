"""Progress bar of work over many days: backfill, compact, purge."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import common

if TYPE_CHECKING:
    from ...history.records import Record
    from ...pipeline.upkeep import DaysDone, OnDays


@contextlib.contextmanager
def following_days(command: common.Desk, what: str, kept: Record) -> Iterator[OnDays]:
    """Yield a callback that shows the progress and updates the run's row.

    If rows are not counted, the bar counts days.
    """
    with command.progress(what, unit="rows") as shown:

        def told(done: DaysDone) -> None:
            if done.rows is None:
                shown.unit = "days"
                shown.update(done.days, done.of_days)
                return
            shown.what = f"{what}, {done.days:,} of {done.of_days:,} days"
            shown.update(done.rows, done.of_rows)
            kept.progress(rows=done.rows, total=done.of_rows)

        yield told
