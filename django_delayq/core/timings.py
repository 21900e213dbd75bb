"""Counters of finished attempts, kept in one hash per deployment: lateness, duration and a few counts.

Processes count in memory (:mod:`.tally`) and add to the hash at most once a second. The name of a field states what it
counts, so that a release with other bounds can still read it:

    l<bound>:<queue>            starts at most this many ms late, and later than the bound before
    r<bound>:<queue>\\0<task>    attempts that took at most this long, and longer than the bound before
    s<bound>:<script>           observed calls of a script that took this long, as the caller measured
    …sum:…                      sum of all of them, ms
    c:<name>\\0<label>           a count
    v:<name>                    <value> <ms>: a level, and when it was measured

The last bucket has the bound "inf". Empty buckets have no field.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, TypeAlias, TypeVar

#: upper bounds, ms; larger values go into one extra bucket
BUCKETS_MS: Final = (
    1,
    2,
    5,
    10,
    25,
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    30_000,
    60_000,
    300_000,
    1_800_000,
)
#: maximum number of fields in the hash; new fields beyond it are left out
MOST_FIELDS: Final = 50_000

_BOUNDS: Final = (*(b"%d" % bound for bound in BUCKETS_MS), b"inf")
_NONE: Final = (0,) * len(_BOUNDS)
K = TypeVar("K", str, tuple[str, str])
#: counts of the buckets followed by the sum in ms, while they are collected
Cells: TypeAlias = list[Any]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Histogram of durations.

    Args:
        counts: one for each of ``BUCKETS_MS``, and one for larger values.
        sum_ms: sum of all durations.
    """

    counts: tuple[int, ...] = _NONE
    sum_ms: int = 0

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def quantile(self, q: float) -> float | None:
        """Return the duration, ms, that the share ``q`` (0 … 1) does not exceed; None if the histogram is empty.

        Durations are assumed to be spread evenly inside a bucket. Values above the last bound count as that bound.
        """
        total = self.count
        if not total:
            return None
        rank = q * total
        for place, (count, upto) in enumerate(zip(self.counts, accumulate(self.counts), strict=True)):
            if count and upto >= rank:
                if place == len(BUCKETS_MS):
                    break
                low = BUCKETS_MS[place - 1] if place else 0
                return low + (BUCKETS_MS[place] - low) * max(0.0, rank - (upto - count)) / count
        return float(BUCKETS_MS[-1])

    def since(self, before: Histogram | None) -> Histogram:
        """Return the durations added since ``before``, or all of them if Redis lost data (a count became smaller)."""
        if before is None or any(now < then for now, then in zip(self.counts, before.counts, strict=True)):
            return self
        counts = tuple([now - then for now, then in zip(self.counts, before.counts, strict=True)])
        return Histogram(counts, max(0, self.sum_ms - before.sum_ms))

    def __add__(self, other: Histogram) -> Histogram:
        counts = tuple([one + more for one, more in zip(self.counts, other.counts, strict=True)])
        return Histogram(counts, self.sum_ms + other.sum_ms)


@dataclass(frozen=True, slots=True)
class Level:
    """Number that is measured now and then, not counted: ``at_ms`` is when, Unix ms on Redis's clock."""

    value: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Counters of finished attempts, either as stored or as an increment to be added.

    Attributes:
        lateness: by queue, how long after its due time each attempt began, ms; never below 0.
        run: by queue and task, how long each attempt took, ms.
        script: by name of the script, how long callers waited; only where scripts are observed.
        counts: by name and label, e.g. ``("redis_error", "transient")``.
        levels: by name, e.g. ``fsck_violations``: found by the last check of the whole deployment.
    """

    lateness: Mapping[str, Histogram] = field(default_factory=dict)
    run: Mapping[tuple[str, str], Histogram] = field(default_factory=dict)
    script: Mapping[str, Histogram] = field(default_factory=dict)
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    levels: Mapping[str, Level] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.lateness or self.run or self.script or self.counts or self.levels)

    def __add__(self, other: Figures) -> Figures:
        counts = dict(self.counts)
        for name, count in other.counts.items():
            counts[name] = counts.get(name, 0) + count
        return Figures(
            _united(self.lateness, other.lateness),
            _united(self.run, other.run),
            _united(self.script, other.script),
            counts,
            {**self.levels, **other.levels},
        )

    def without(self, queue: str) -> Figures:
        """Return the same counters without those of a queue."""
        lateness = {name: histogram for name, histogram in self.lateness.items() if name != queue}
        run = {name: histogram for name, histogram in self.run.items() if name[0] != queue}
        return Figures(lateness, run, self.script, self.counts, self.levels)


def _united(one: Mapping[K, Histogram], other: Mapping[K, Histogram]) -> dict[K, Histogram]:
    united = dict(one)
    for name, more in other.items():
        united[name] = united[name] + more if name in united else more
    return united


# -- in memory -------------------------------------------------------------------------------------------------------


def new_cells() -> Cells:
    """Return the cells of a histogram without values."""
    return [0] * (len(_BOUNDS) + 1)


def fill(cells: Cells, values: list[int] | list[float]) -> None:
    """Count durations, ms; ``values`` must not be empty, and are sorted in place. Negative ones count as 0.

    A fetch loop passes 40,000 of them a second, so there is no Python loop over single values.
    """
    values.sort()
    if values[0] < 0:
        values = [max(0, value) for value in values]
    cells[-1] += sum(values)
    lowest, highest = bisect_left(BUCKETS_MS, values[0]), bisect_left(BUCKETS_MS, values[-1])
    before = 0
    for place in range(lowest, highest):
        upto = bisect_right(values, BUCKETS_MS[place], before)
        cells[place] += upto - before
        before = upto
    cells[highest] += len(values) - before


def histogram_of(cells: Cells) -> Histogram:
    """Return the counted durations as a histogram.

    A fractional sum is rounded to whole milliseconds at random, up with a probability equal to the fraction. Always
    rounding down would report no waiting at all for a process that waits 0.3 ms in each second.
    """
    whole = int(cells[-1])
    return Histogram(tuple(cells[:-1]), whole + (random.random() < cells[-1] - whole))


# -- fields of the hash ----------------------------------------------------------------------------------------------


def to_fields(figures: Figures) -> list[tuple[bytes, int]]:
    """Return the fields and their increments; levels are not added up and are left out."""
    increments: list[tuple[bytes, int]] = []
    for queue, histogram in figures.lateness.items():
        increments += _to_fields(b"l", queue.encode(), histogram)
    for (queue, task), histogram in figures.run.items():
        increments += _to_fields(b"r", _pair(queue, task), histogram)
    for script, histogram in figures.script.items():
        increments += _to_fields(b"s", script.encode(), histogram)
    return increments + [(b"c:" + _pair(*name), count) for name, count in figures.counts.items() if count]


def _to_fields(kind: bytes, name: bytes, histogram: Histogram) -> Iterator[tuple[bytes, int]]:
    for bound, count in zip((*_BOUNDS, b"sum"), (*histogram.counts, histogram.sum_ms), strict=True):
        if count:
            yield b"%b%b:%b" % (kind, bound, name), count


def level_field(name: str) -> bytes:
    """Return the field of the hash ``figures`` that stores a level: a measured value and its time."""
    return b"v:" + name.encode()


def _pair(one: str, other: str) -> bytes:
    return one.encode() + b"\0" + other.encode()


def speaks_of(stored: bytes, queue: str) -> bool:
    """Return True if a field belongs to this queue."""
    head, _, name = stored.partition(b":")
    return head[:1] in (b"l", b"r") and name.partition(b"\0")[0] == queue.encode()


def from_fields(stored: Mapping[bytes, bytes]) -> Figures:
    """Return the counters read from the hash. Fields that this release does not recognise are left out."""
    grown: dict[bytes, dict[bytes, Cells]] = {b"l": {}, b"r": {}, b"s": {}}
    counts: dict[tuple[str, str], int] = {}
    levels: dict[str, Level] = {}
    for name, value in stored.items():
        head, _, rest = name.partition(b":")
        cells_of = grown.get(head[:1])
        try:
            rest.decode()
            if cells_of is not None:
                place = _place(head[1:])
                cells_of.setdefault(rest, new_cells())[place] += int(value)
            elif head == b"c":
                counts[_unpair(rest)] = int(value)
            elif head == b"v":
                number, _, at = value.partition(b" ")
                levels[rest.decode()] = Level(int(number), int(at))
        except ValueError:
            continue
    return Figures(
        {name.decode(): histogram_of(cells) for name, cells in grown[b"l"].items()},
        {_unpair(name): histogram_of(cells) for name, cells in grown[b"r"].items()},
        {name.decode(): histogram_of(cells) for name, cells in grown[b"s"].items()},
        counts,
        levels,
    )


_PLACES: Final = {bound: place for place, bound in enumerate((*_BOUNDS, b"sum"))}


def _place(bound: bytes) -> int:
    """Return the cell of a bound; for a bound of another release, the first cell that covers its whole bucket."""
    place = _PLACES.get(bound)
    return bisect_left(BUCKETS_MS, int(bound)) if place is None else place


def _unpair(name: bytes) -> tuple[str, str]:
    one, _, other = name.partition(b"\0")
    return one.decode(), other.decode()
