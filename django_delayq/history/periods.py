"""Which part of the history somebody looks at, and into how many pieces its charts are divided."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final

from django.db.models import QuerySet
from django.utils import timezone

from .moments import HOUR, floor_hour, to_row

__all__ = ["LONGEST", "NAMED", "USUAL", "Period", "Wish", "named"]

#: the period that is shown unless somebody wants another one
USUAL: Final = "24h"
_SPANS: Final = {"24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
#: names of periods that end now
NAMED: Final = ("today", *_SPANS)
#: of one look
LONGEST: Final = timedelta(days=3 * 366)
#: pieces of a chart, and the hours that a piece may have
MOST_SLOTS: Final = 170
_STEPS: Final = (1, 2, 3, 6, 12, 24, 48, 72, 168)


@dataclass(frozen=True, slots=True)
class Period:
    """From ``start`` to before ``end``, both full hours, aware.

    Raises:
        ValueError: it is empty, or longer than :data:`LONGEST`.
    """

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise ValueError("the period ends before it begins")
        if self.end - self.start > LONGEST + timedelta(days=1):
            raise ValueError(f"the period is longer than {LONGEST.days} days; look at it in parts")

    @classmethod
    def between(cls, start: datetime, end: datetime) -> Period:
        """All hours that lie between two aware moments, in part or as a whole.

        Raises:
            ValueError: see :class:`Period`; or the moments are beyond what a calendar has.
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
        """How many hours it has."""
        return (self.end - self.start) // HOUR

    @property
    def step(self) -> int:
        """Hours of one piece of its charts."""
        return next((step for step in _STEPS if self.hours <= step * MOST_SLOTS), _STEPS[-1])

    @property
    def slots(self) -> list[datetime]:
        """When its pieces begin; the last of them may be shorter than the others."""
        step = self.step
        return [self.start + HOUR * place for place in range(0, self.hours, step)]

    def slot_of(self, hour: datetime) -> int:
        """The piece that an hour lies in."""
        return (hour - self.start) // HOUR // self.step


def named(name: str, now: datetime | None = None) -> Period:
    """A period of :data:`NAMED`. It ends with the hour that goes on now.

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
        raise ValueError(f"there is no period {name!r}; known are: {', '.join(NAMED)}")
    return Period(end - _SPANS[name], end)


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants to see of the history.

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
        """The rows of :class:`HourlyStat` that it means."""
        if self.queue:
            table = table.filter(queue=self.queue)
        if self.queues is not None:
            table = table.filter(queue__in=sorted(self.queues))
        if self.task:
            table = table.filter(task=self.task)
        if self.period is not None:
            table = table.filter(hour__gte=to_row(self.period.start), hour__lt=to_row(self.period.end))
        return table
