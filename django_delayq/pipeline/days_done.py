"""Progress of an operation over many days."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DaysDone:
    """Progress of a backfill, a compaction or a purge."""

    #: days done, and days in all; a purge counts each day once per table
    days: int
    of_days: int
    #: number of attempts in them, as stored among the events; None = not counted
    rows: int | None = None
    of_rows: int | None = None


#: callback, called at the beginning and after each portion of days
OnDays = Callable[[DaysDone], object]


def nobody(done: DaysDone) -> None:
    """Ignore the progress."""
