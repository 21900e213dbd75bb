"""Histograms of milliseconds as stored in the history. They can be added, and percentiles estimated from them.

A histogram is a list of 32 counts: of 0 ms first, then for i = 1 … 30 from 2^(i-1) to below 2^i ms, then of all longer
ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: number of counts in a histogram
BUCKETS: Final = 32


def empty() -> list[int]:
    """Return a histogram without counts."""
    return [0] * BUCKETS


def bounds_of(place: int) -> tuple[int, int | None]:
    """Return the bounds of a bucket in ms: the lower is inclusive, the upper exclusive; None = no upper bound."""
    if place == 0:
        return 0, 1
    return 1 << (place - 1), (1 << place if place < BUCKETS - 1 else None)


def add(total: list[int], *many: Sequence[int] | None) -> None:
    """Add histograms to ``total``; many at once take a fraction of the time.

    A list of another length adds nothing: an hour without attempts has an empty one.
    """
    whole = [counts for counts in many if counts and len(counts) == BUCKETS]
    if whole:
        total[:] = map(sum, zip(total, *whole, strict=True))


def quantile(counts: Sequence[int], q: float, most: int | None = None) -> float | None:
    """Return the length in ms that a fraction ``q`` (0 … 1) does not exceed; None if there are no counts.

    Within a bucket an even distribution is assumed, so the error is below a factor of 2.

    Args:
        counts: the histogram.
        q: the fraction.
        most: the longest value, if known: an upper bound for the result.
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
            length = low + (high - low) * max(0.0, rank - (upto - count)) / count
            return length if most is None else min(length, float(most))
    return None
