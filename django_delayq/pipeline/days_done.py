"""How far a work over many days is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DaysDone:
    """Where a backfill, a compaction or a purge stands."""

    #: days that are done, and days in all; of a purge a day of each table is one
    days: int
    of_days: int
    #: attempts of them, as they lie among the events; None = nobody counts
    rows: int | None = None
    of_rows: int | None = None


#: is told at the beginning, and after each portion of the days
OnDays = Callable[[DaysDone], object]


def nobody(done: DaysDone) -> None:
    """Nobody wants to know."""
