"""Progress bar of work over many days: backfill, compact, purge."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import common

if TYPE_CHECKING:
    from ...history.records import Record
    from ...pipeline.days_done import DaysDone, OnDays


@contextlib.contextmanager
def following_days(command: common.Desk, what: str, options: Mapping[str, Any], kept: Record) -> Iterator[OnDays]:
    """Yield a callback that shows the progress and updates the run's row.

    If rows are not counted, the bar counts days.
    """
    bar = common.progress(command, what, options)

    def told(done: DaysDone) -> None:
        if done.rows is None:
            bar.unit = "days"
            bar.update(done.days, done.of_days)
            return
        bar.what = f"{what}, {done.days:,} of {done.of_days:,} days"
        bar.update(done.rows, done.of_rows)
        kept.progress(rows=done.rows, total=done.of_rows)

    try:
        yield told
    finally:
        bar.end()
