"""Selection of the hours and days to compute again: hours that received events, or whole days.

A day is one of UTC, and its hours are numbered from 0 to 23.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

#: hours by day; None = the whole day, including rows without a time
DayHours = Mapping[date, frozenset[int] | None]
_EPOCH: Final = date(1970, 1, 1)
_HOURS: Final = 24
_HOUR_S: Final = 3600


def whole(days: Iterable[date]) -> DayHours:
    """Return all hours of some days."""
    return dict.fromkeys(days)


def hour_number(moment: Column) -> Column:
    """Return the hour of a timestamp, counted from the beginning of 1970 in UTC; null stays null."""
    return F.floor(F.unix_seconds(moment) / _HOUR_S)


def lies_in(moment: Column, selected: DayHours) -> Column:
    """Return a column that is true for timestamps in one of the hours.

    Expressed as ranges, which a reader of Parquet compares with the statistics of a file before reading it.
    """
    ranges = [
        (moment >= F.timestamp_seconds(F.lit(first * _HOUR_S))) & (moment < F.timestamp_seconds(F.lit(end * _HOUR_S)))
        for first, end in _stretches(selected)
    ]
    return reduce(or_, ranges, F.lit(False))


def _stretches(selected: DayHours) -> Iterator[tuple[int, int]]:
    """Yield the first hour, and the hour after the last one, of each gapless range of hours."""
    numbers = sorted(
        (day - _EPOCH).days * _HOURS + hour
        for day, hours in selected.items()
        for hour in (range(_HOURS) if hours is None else hours)
    )
    first = None
    for at, number in enumerate(numbers):
        first = number if first is None else first
        if at + 1 == len(numbers) or numbers[at + 1] != number + 1:
            yield first, number + 1
            first = None


def parts(days: Sequence[date], rows: Mapping[date, int], most_days: int, most_rows: int) -> Iterator[list[date]]:
    """Yield the days in portions of at least one day, each as large as the limits allow.

    Args:
        rows: number of rows by day; a missing day has none.
    """
    part: list[date] = []
    total = 0
    for day in days:
        more = rows.get(day, 0)
        if part and (len(part) == most_days or total + more > most_rows):
            yield part
            part, total = [], 0
        part.append(day)
        total += more
    if part:
        yield part
