"""Histograms of milliseconds as the history has them: they can be added, and percentiles be read off.

A histogram is a list of 32 counts: those of 0 ms first, then for i = 1 … 30 those from 2^(i-1) to below 2^i ms, then
all longer ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["BUCKETS", "add", "add_all", "bounds_of", "empty", "quantile"]

#: counts of a histogram
BUCKETS: Final = 32


def empty() -> list[int]:
    """One without a single count."""
    return [0] * BUCKETS


def bounds_of(place: int) -> tuple[int, int | None]:
    """From which length on, and below which one, a count lies in this place, ms; None = there is no upper bound."""
    if place == 0:
        return 0, 1
    return 1 << (place - 1), (1 << place if place < BUCKETS - 1 else None)


def add(total: list[int], counts: Sequence[int]) -> None:
    """Adds one to another; what is no histogram (an hour without runs has an empty list) adds nothing."""
    add_all(total, (counts,))


def add_all(total: list[int], many: Iterable[Sequence[int] | None]) -> None:
    """The same of many at once, which takes a fraction of the time."""
    whole = [counts for counts in many if counts and len(counts) == BUCKETS]
    if whole:
        total[:] = map(sum, zip(total, *whole, strict=True))


def quantile(counts: Sequence[int], q: float, most: int | None = None) -> float | None:
    """The length, ms, that the part ``q`` (0 … 1) of them does not exceed; None when there are none.

    Inside a bucket they are taken to lie evenly, so that the error is less than the factor 2.

    Args:
        most: the longest of them, if it is known: nothing is said to be longer.
    """
    total = sum(counts)
    if total <= 0:
        return None
    rank, upto = q * total, 0
    for place, count in enumerate(counts):
        upto += count
        if count and upto >= rank:
            low, high = bounds_of(place)
            if place == 0:
                return 0.0
            if high is None:
                high = low if most is None else max(low, most)
            found = low + (high - low) * max(0.0, rank - (upto - count)) / count
            return found if most is None else min(found, float(most))
    return None
