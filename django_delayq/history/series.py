"""Series of the charts: the hours of a period, summed by time and by task.

The percentiles of one task in one hour are exact, computed by the pipeline from all its attempts. Percentiles over
several rows are estimated from their summed histograms (:func:`.figures.quantile`).

Without ``USE_TZ`` databases store naive datetimes. Those of the history are then UTC too, not local time: at the end of
daylight saving time two local hours would have the same name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from functools import cache
from typing import Any, Final

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from ..core.figures import quantile
from ..core.outcomes import COUNTED, AttemptOutcome
from ..models.history import HourlyStat
from ..outbox.rows import chunks

# -- periods ---------------------------------------------------------------------------------------------------------

HOUR: Final = timedelta(hours=1)
#: default period
USUAL: Final = "24h"
_SPANS: Final = {"24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
#: names of periods that end now
NAMED: Final = ("today", *_SPANS)
#: longest period of one query
LONGEST: Final = timedelta(days=3 * 366)
#: maximum number of chart slots; ``_STEPS``: possible hours per slot
MOST_SLOTS: Final = 170
_STEPS: Final = (1, 2, 3, 6, 12, 24, 48, 72, 168)


def to_row(moment: datetime) -> datetime:
    """Return an aware moment as the tables of the history store it."""
    there = moment.astimezone(UTC)
    return there if settings.USE_TZ else there.replace(tzinfo=None)


def from_row(moment: datetime) -> datetime:
    """Return a moment of those tables as an aware datetime in UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def floor_hour(moment: datetime) -> datetime:
    """Return the start of the UTC hour that contains an aware moment."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


@dataclass(frozen=True, slots=True)
class Period:
    """Period from ``start`` to before ``end``, both full hours, aware.

    Raises:
        ValueError: it is empty, or longer than :data:`LONGEST`.
    """

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise ValueError("the period ends before it begins")
        if self.end - self.start > LONGEST + timedelta(days=1):
            raise ValueError(f"the period is longer than {LONGEST.days} days; choose a shorter one")

    @classmethod
    def between(cls, start: datetime, end: datetime) -> Period:
        """Return the period of all hours that lie between two aware moments, wholly or in part.

        Raises:
            ValueError: see :class:`Period`; or a moment is out of range.
        """
        if start >= end:
            raise ValueError("the period ends before it begins")
        try:
            first, last = floor_hour(start), floor_hour(end)
            return cls(first, last if last == end else last + HOUR)
        except OverflowError:
            raise ValueError("no calendar has this moment") from None

    @property
    def hours(self) -> int:
        """Number of hours in the period."""
        return (self.end - self.start) // HOUR

    @property
    def step(self) -> int:
        """Hours per chart slot."""
        return next((step for step in _STEPS if self.hours <= step * MOST_SLOTS), _STEPS[-1])

    @property
    def slots(self) -> list[datetime]:
        """Start of each slot; the last slot may be shorter than the others."""
        step = self.step
        return [self.start + HOUR * place for place in range(0, self.hours, step)]

    def slot_of(self, hour: datetime) -> int:
        """Return the index of the slot that contains an hour."""
        return (hour - self.start) // HOUR // self.step


def named(name: str, now: datetime | None = None) -> Period:
    """Return a period of :data:`NAMED`. It ends with the current hour.

    Raises:
        ValueError: there is no such period.
    """
    now = datetime.now(UTC) if now is None else now
    end = floor_hour(now) + HOUR
    if name == "today":
        local = timezone.localtime(now)
        midnight = timezone.make_aware(datetime.combine(local.date(), time()), timezone.get_current_timezone())
        return Period(floor_hour(midnight), end)
    if name not in _SPANS:
        raise ValueError(f"there is no period {name!r}; choose one of: {', '.join(NAMED)}")
    return Period(end - _SPANS[name], end)


@dataclass(frozen=True, slots=True)
class SeriesQuery:
    """Filter for rows of the history.

    Attributes:
        queue: of this queue only; "" = of all.
        task: of this task only; "" = of all.
        period: None = of all times.
        queues: of no other queues than these; None = of all.
    """

    queue: str = ""
    task: str = ""
    period: Period | None = None
    queues: frozenset[str] | None = None

    def rows(self, table: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of :class:`HourlyStat` that match the filter."""
        if self.queue:
            table = table.filter(queue=self.queue)
        if self.queues is not None:
            table = table.filter(queue__in=sorted(self.queues))
        if self.task:
            table = table.filter(task=self.task)
        if self.period is not None:
            table = table.filter(hour__gte=to_row(self.period.start), hour__lt=to_row(self.period.end))
        return table


# -- columns ---------------------------------------------------------------------------------------------------------

COUNTS: Final = ("runs", *COUNTED, "buried", "retries", "sla_missed", "timed", "lateness_sum_ms", "duration_sum_ms")
#: outcomes counted as failures
FAILURES: Final = (
    AttemptOutcome.FAILED,
    AttemptOutcome.TIMEOUT,
    AttemptOutcome.CRASHED,
    AttemptOutcome.LOST,
    AttemptOutcome.BURIED,
)
KEY: Final = ("hour", "queue", "task")
HISTOGRAMS: Final = ("lateness_histogram", "duration_histogram")
_LONGEST: Final = ("lateness_max_ms", "duration_max_ms")
_EXACT: Final = tuple(f"{name}_p{percent}_ms" for name in ("lateness", "duration") for percent in (50, 95, 99))
#: columns that are read, in this order
COLUMNS: Final = (*KEY, *COUNTS, *HISTOGRAMS, *_LONGEST, *_EXACT)
_FIRST, _BEHIND = len(KEY), len(KEY) + len(COUNTS)
_EXACT_AT: Final = _BEHIND + len(HISTOGRAMS) + len(_LONGEST)
#: rows that are read at a time
_CHUNK: Final = 2_000


# -- histograms of milliseconds: of 0 ms first, then for i = 1 … 30 from 2^(i-1) to below 2^i, then of all longer ones

#: number of counts in a histogram, and the upper bounds of the buckets but the last, exclusive
BUCKETS: Final = 32
BOUNDS: Final = tuple(1 << place for place in range(BUCKETS - 1))


def empty() -> list[int]:
    """Return a histogram without counts."""
    return [0] * BUCKETS


def add_counts(total: list[int], *many: Sequence[int] | None) -> None:
    """Add histograms to ``total``; many at once take a fraction of the time.

    A list of another length adds nothing: an hour without attempts has an empty one.
    """
    whole = [counts for counts in many if counts and len(counts) == BUCKETS]
    if whole:
        total[:] = map(sum, zip(total, *whole, strict=True))


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
        length = quantile(counts, BOUNDS, percent / 100)
        return length if length is None or most is None else min(length, float(most))


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
        hours = min(self.period.step, (self.period.end - self.period.slots[place]) // HOUR)
        return self.slots[place]["runs"] / hours


def added(rows: Iterable[Sequence[Any]], period: Period) -> Summary:
    """Return the sums of rows, given as values of :data:`COLUMNS`, whose hours lie in the period."""
    slots = [SeriesSum() for _slot in period.slots]
    tasks: defaultdict[tuple[str, str], SeriesSum] = defaultdict(SeriesSum)
    total = SeriesSum()
    place_of = cache(lambda hour: period.slot_of(from_row(hour)))  # each hour has many rows
    for some in chunks(rows, _CHUNK):
        by_place: defaultdict[int, list[Sequence[Any]]] = defaultdict(list)
        by_task: defaultdict[tuple[str, str], list[Sequence[Any]]] = defaultdict(list)
        for row in some:
            by_place[place_of(row[0])].append(row)
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
