"""Figures of finished runs: how late jobs began, how long they ran, and a few counts; one hash for a deployment.

Processes count in memory (:mod:`.tally`) and add to the hash at most once a second. A field says in its name what it
counts, so that another release with other bounds still reads it:

    l<bound>:<queue>            starts that were at most so many ms late, and later than the bound before
    r<bound>:<queue>\\0<task>    runs that took so long
    s<bound>:<script>           calls of a script for which somebody waited so long
    …sum:…                      of all of them together, ms
    c:<name>\\0<label>           a count
    v:<name>                    <value> <ms>: a level, and when it was measured

The last bucket has the bound "inf". Buckets in which nothing lies have no field.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, TypeAlias, TypeVar

#: upper bounds, ms; what is above the last one lies in one bucket more
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
#: fields that the hash has at most; what is new beyond them is left out
MOST_FIELDS: Final = 50_000

_BOUNDS: Final = (*(b"%d" % bound for bound in BUCKETS_MS), b"inf")
_NONE: Final = (0,) * len(_BOUNDS)
K = TypeVar("K", str, tuple[str, str])
#: counts of the buckets, and the sum in ms behind them, while they grow
Cells: TypeAlias = list[Any]


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many of some lengths of time lie in which bucket.

    Args:
        counts: one for each of ``BUCKETS_MS``, and one for what is above.
        sum_ms: all of them together.
    """

    counts: tuple[int, ...] = _NONE
    sum_ms: int = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def quantile(self, q: float) -> float | None:
        """The length, ms, that the part ``q`` (0 … 1) of them does not exceed; None when there are none.

        Inside a bucket they are taken to lie evenly. What is above the last bound counts as that bound.
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
        """What came in after ``before`` was read. Counts that went back were lost with Redis: then all of it."""
        if before is None or any(now < then for now, then in zip(self.counts, before.counts, strict=True)):
            return self
        counts = tuple([now - then for now, then in zip(self.counts, before.counts, strict=True)])
        return Histogram(counts, max(0, self.sum_ms - before.sum_ms))

    def __add__(self, other: Histogram) -> Histogram:
        counts = tuple([one + more for one, more in zip(self.counts, other.counts, strict=True)])
        return Histogram(counts, self.sum_ms + other.sum_ms)


@dataclass(frozen=True, slots=True)
class Level:
    """A number that is measured now and then, not counted: ``at_ms`` is when, Unix ms on Redis's clock."""

    value: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What is kept of finished runs, or what is to be added to it.

    Attributes:
        lateness: by queue, how long after its due time each attempt began, ms; never below 0.
        run: by queue and task, how long each attempt took, ms.
        script: by name of the script, how long callers waited; only where somebody observes them.
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
        """The same, but for what speaks of a queue."""
        lateness = {name: found for name, found in self.lateness.items() if name != queue}
        run = {name: found for name, found in self.run.items() if name[0] != queue}
        return Figures(lateness, run, self.script, self.counts, self.levels)


def _united(one: Mapping[K, Histogram], other: Mapping[K, Histogram]) -> dict[K, Histogram]:
    found = dict(one)
    for name, more in other.items():
        found[name] = found[name] + more if name in found else more
    return found


# -- while they grow -------------------------------------------------------------------------------------------------


def new_cells() -> Cells:
    """Nothing counted yet."""
    return [0] * (len(_BOUNDS) + 1)


def fill(cells: Cells, values: list[int] | list[float]) -> None:
    """Counts lengths of time, ms; ``values`` are not empty, and sorted afterwards. Negative ones count as 0.

    A fetch loop comes here with 40,000 of them in a second, so nothing is done for each of them in Python.
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
    """What was counted. A sum of parts of milliseconds becomes a whole one here: up or down by chance, as likely as its
    part is large. A process that waits 0.3 ms in a second would else be told to have waited for nothing all day."""
    whole = int(cells[-1])
    return Histogram(tuple(cells[:-1]), whole + (random.random() < cells[-1] - whole))


# -- as fields of the hash -------------------------------------------------------------------------------------------


def to_fields(figures: Figures) -> list[tuple[bytes, int]]:
    """What is to be added to which fields; levels are not added."""
    found: list[tuple[bytes, int]] = []
    for queue, histogram in figures.lateness.items():
        found += _to_fields(b"l", queue.encode(), histogram)
    for (queue, task), histogram in figures.run.items():
        found += _to_fields(b"r", _pair(queue, task), histogram)
    for script, histogram in figures.script.items():
        found += _to_fields(b"s", script.encode(), histogram)
    return found + [(b"c:" + _pair(*name), count) for name, count in figures.counts.items() if count]


def _to_fields(kind: bytes, name: bytes, histogram: Histogram) -> Iterator[tuple[bytes, int]]:
    for bound, count in zip((*_BOUNDS, b"sum"), (*histogram.counts, histogram.sum_ms), strict=True):
        if count:
            yield b"%b%b:%b" % (kind, bound, name), count


def level_field(name: str) -> bytes:
    """The field of a level."""
    return b"v:" + name.encode()


def _pair(one: str, other: str) -> bytes:
    return one.encode() + b"\0" + other.encode()


def speaks_of(stored: bytes, queue: str) -> bool:
    """Whether a field is about this queue."""
    head, _, name = stored.partition(b":")
    return head[:1] in (b"l", b"r") and name.partition(b"\0")[0] == queue.encode()


def from_fields(stored: Mapping[bytes, bytes]) -> Figures:
    """The hash, read. Fields that say nothing to this release are left out."""
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
    """The cell of a bound; that of another release lies where all of its bucket fits in."""
    place = _PLACES.get(bound)
    return bisect_left(BUCKETS_MS, int(bound)) if place is None else place


def _unpair(name: bytes) -> tuple[str, str]:
    one, _, other = name.partition(b"\0")
    return one.decode(), other.decode()
