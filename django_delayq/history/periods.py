"""Hours of the history in UTC, periods of them, their division into chart slots, and row filters.

Without ``USE_TZ`` databases store naive datetimes. Those of the history are then UTC too, not local time: at the end of
daylight saving time two local hours would have the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

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


def begin_of(day: date) -> datetime:
    """Return the start of a UTC day."""
    return datetime.combine(day, time(), UTC)


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
