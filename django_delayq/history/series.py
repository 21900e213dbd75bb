"""Series of the charts: the hours of a period summed by time and by task.

The percentiles of one task in one hour are exact, computed by the pipeline from all its attempts. Percentiles over
several rows are estimated from their summed histograms (:func:`quantile`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db.models import QuerySet

from ..core.outcomes import COUNTED, AttemptOutcome
from ..models.history import HourlyStat
from ..outbox.rows import chunks
from .periods import Period, SeriesQuery, from_row

COUNTS: Final = (
    "runs",
    *COUNTED,
    "buried",
    "retries",
    "sla_missed",
    "timed",
    "lateness_sum_ms",
    "duration_sum_ms",
)
#: outcomes counted as failures
FAILURES: Final = (
    AttemptOutcome.FAILED,
    AttemptOutcome.TIMEOUT,
    AttemptOutcome.CRASHED,
    AttemptOutcome.LOST,
    AttemptOutcome.BURIED,
)
_KEY: Final = ("hour", "queue", "task")
_HISTOGRAMS: Final = ("lateness_histogram", "duration_histogram")
_LONGEST: Final = ("lateness_max_ms", "duration_max_ms")
_EXACT: Final = (
    "lateness_p50_ms",
    "lateness_p95_ms",
    "lateness_p99_ms",
    "duration_p50_ms",
    "duration_p95_ms",
    "duration_p99_ms",
)
#: columns that are read, in this order
COLUMNS: Final = (*_KEY, *COUNTS, *_HISTOGRAMS, *_LONGEST, *_EXACT)
_FIRST, _BEHIND = len(_KEY), len(_KEY) + len(COUNTS)
_EXACT_AT: Final = _BEHIND + len(_HISTOGRAMS) + len(_LONGEST)
#: rows that are read at a time
_CHUNK: Final = 2_000


# -- histograms of milliseconds: of 0 ms first, then for i = 1 … 30 from 2^(i-1) to below 2^i, then of all longer ones

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


def add_counts(total: list[int], *many: Sequence[int] | None) -> None:
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


# -- sums ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SeriesSum:
    """Sum of several rows of the history."""

    counts: list[int] = field(default_factory=lambda: [0] * len(COUNTS))
    lateness: list[int] = field(default_factory=empty)
    duration: list[int] = field(default_factory=empty)
    #: the longest of each, ms
    lateness_max: int | None = None
    duration_max: int | None = None
    rows: int = 0
    _exact: Sequence[Any] = ()

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add one or more rows with the values of :data:`COLUMNS`. Many at once take a fraction of the time."""
        columns = list(zip(*rows, strict=True))
        self.counts[:] = map(int.__add__, self.counts, map(sum, columns[_FIRST:_BEHIND]))
        add_counts(self.lateness, *columns[_BEHIND])
        add_counts(self.duration, *columns[_BEHIND + 1])
        self.lateness_max = _longest(self.lateness_max, *columns[_BEHIND + 2])
        self.duration_max = _longest(self.duration_max, *columns[_BEHIND + 3])
        self.rows += len(rows)
        self._exact = rows[0][_EXACT_AT:] if self.rows == 1 else ()

    def __getitem__(self, name: str) -> int:
        """Return a count of :data:`COUNTS`."""
        return self.counts[COUNTS.index(name)]

    @property
    def failures(self) -> int:
        """Number of failed attempts (:data:`FAILURES`)."""
        return sum(self[name] for name in FAILURES)

    @property
    def failure_rate(self) -> float | None:
        """Fraction of failed attempts, 0 … 1; None if there were no attempts."""
        return self.failures / self["runs"] if self["runs"] else None

    def lateness_ms(self, percent: int) -> float | None:
        """Return a percentile (50, 95, 99) of the lateness, ms; None if no attempt began."""
        return self._percentile(f"lateness_p{percent}_ms", percent, self.lateness, self.lateness_max)

    def duration_ms(self, percent: int) -> float | None:
        """Return a percentile (50, 95, 99) of the duration of attempts, ms; None if no attempt began."""
        return self._percentile(f"duration_p{percent}_ms", percent, self.duration, self.duration_max)

    def _percentile(self, column: str, percent: int, counts: Sequence[int], most: int | None) -> float | None:
        if self._exact:
            exact = self._exact[_EXACT.index(column)]
            return None if exact is None else float(exact)
        return quantile(counts, percent / 100, most)


def _longest(*lengths: int | None) -> int | None:
    return max((length for length in lengths if length is not None), default=None)


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums of a period.

    Attributes:
        slots: for each slot of the period (:attr:`Period.slots`).
        tasks: for each (queue, task).
        total: over all rows.
    """

    period: Period
    slots: list[SeriesSum]
    tasks: dict[tuple[str, str], SeriesSum]
    total: SeriesSum

    def by_failures(self) -> list[tuple[tuple[str, str], SeriesSum]]:
        """Return the tasks with failures, most failures first."""
        failing = [(name, tally) for name, tally in self.tasks.items() if tally.failures]
        return sorted(failing, key=lambda one: (-one[1].failures, one[0]))

    def per_hour(self, place: int) -> float:
        """Return the attempts per hour in a slot; the last slot may be shorter."""
        begin = self.period.slots[place]
        hours = min(self.period.step, round((self.period.end - begin).total_seconds() / 3600))
        return self.slots[place]["runs"] / hours


def added(rows: Iterable[Sequence[Any]], period: Period) -> Summary:
    """Return the sums of rows, given as values of :data:`COLUMNS`, whose hours lie in the period."""
    slots = [SeriesSum() for _slot in period.slots]
    tasks: defaultdict[tuple[str, str], SeriesSum] = defaultdict(SeriesSum)
    total = SeriesSum()
    places: dict[datetime, int] = {}  # cached: each hour has many rows
    for some in chunks(rows, _CHUNK):
        by_place: defaultdict[int, list[Sequence[Any]]] = defaultdict(list)
        by_task: defaultdict[tuple[str, str], list[Sequence[Any]]] = defaultdict(list)
        for row in some:
            hour = row[0]
            place = places.get(hour)
            if place is None:
                place = places[hour] = period.slot_of(from_row(hour))
            by_place[place].append(row)
            by_task[row[1], row[2]].append(row)
        for place, those in by_place.items():
            slots[place].add(those)
        for name, those in by_task.items():
            tasks[name].add(those)
        total.add(some)
    return Summary(period, slots, dict(tasks), total)


def summary(query: SeriesQuery, period: Period, table: QuerySet[HourlyStat] | None = None) -> Summary:
    """Return the sums of the rows that match a filter; one query.

    Args:
        query: the filter.
        period: the period of the filter.
        table: base queryset; None = all rows.
    """
    rows = query.rows(HourlyStat._default_manager.all() if table is None else table)
    return added(rows.order_by().values_list(*COLUMNS).iterator(_CHUNK), period)


def known_queues() -> list[str]:
    """Return all queues in the history, sorted."""
    return list(HourlyStat._default_manager.order_by("queue").values_list("queue", flat=True).distinct())
