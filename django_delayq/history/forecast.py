"""Forecast for the next day: jobs due in each hour, and when they will be done at the workers' past pace.

Due jobs are counted in Redis now. The pace is that of each queue's busiest hour of the last week: the capacity of
workers shows only under load, so the true pace may be higher.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from django.db.models import Sum

from ..core.times import datetime_of
from ..models.history import HourlyStat
from .series import HOUR, floor_hour, to_row

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue

#: hours in a forecast
HOURS: Final = 24
#: part of the history from which the pace is computed
WEEK: Final = timedelta(days=7)
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Pace:
    """Pace at which a queue's jobs were run.

    Attributes:
        per_hour: attempts that began in its busiest full hour.
        mean_ms: mean duration of an attempt, ms.
    """

    per_hour: int
    mean_ms: float


@dataclass(frozen=True, slots=True)
class QueueForecast:
    """Forecast for one queue, or for all of them together.

    Attributes:
        due: jobs that are due already and wait.
        hours: jobs that fall due in each of the next hours.
        later: jobs that fall due after that.
        pace: None if no attempt ran in the last week, and for all queues together.
        behind: jobs that will be due and not done at the end of each hour; empty if no pace is known.
        drained_s: seconds until no due job waits any more, 0 if none does; None if unknown, or not within those hours.
        work_s: work of the due jobs and those falling due in these hours, in seconds of one thread; None without a
            pace.
    """

    queue: str
    due: int
    hours: tuple[int, ...]
    later: int
    pace: Pace | None
    behind: tuple[float, ...]
    drained_s: float | None
    work_s: float | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast for all queues.

    Attributes:
        now: time of Redis's clock, aware.
        total: sums over the queues. ``drained_s`` is that of the slowest queue.
    """

    now: datetime
    queues: tuple[QueueForecast, ...]
    total: QueueForecast

    @property
    def begins(self) -> list[datetime]:
        """Start of each hour."""
        return [self.now + HOUR * place for place in range(HOURS)]


def forecast(broker: Broker, queues: Sequence[Queue] | None = None) -> Forecast:
    """Return a forecast from Redis (one round trip for each of its nodes) and the history (one query).

    Args:
        broker: use one with short timeouts where a person waits.
        queues: None = all.

    Raises:
        QueueUnavailable, Misconfigured: Redis cannot be queried.
    """
    chosen = broker.queues() if queues is None else queues
    horizon = [_HOUR_MS * (place + 1) for place in range(HOURS)]
    counts = broker.inspector.all_counts(horizon=horizon, queues=chosen)
    now_ms = max((one.now_ms for one in counts), default=0.0) or broker.now_ms()
    by_queue = paces()
    forecasts = [predict(one.queue, one.backlog, by_queue.get(one.queue)) for one in counts]
    return Forecast(datetime_of(now_ms), tuple(forecasts), _together(forecasts))


def paces(now: datetime | None = None) -> dict[str, Pace]:
    """Return the pace of each queue in last week's history. The current hour is incomplete and left out.

    Args:
        now: aware; None = now.
    """
    end = floor_hour(datetime.now(UTC) if now is None else now)
    rows = HourlyStat._default_manager.filter(hour__gte=to_row(end - WEEK), hour__lt=to_row(end), timed__gt=0)
    by_hour = rows.order_by().values("queue", "hour")
    sums = by_hour.annotate(began=Sum("timed"), spent=Sum("duration_sum_ms"))
    found: dict[str, Pace] = {}
    for queue, hours in groupby(sums.order_by("queue").values_list("queue", "began", "spent"), key=itemgetter(0)):
        began, spent = zip(*((int(began), int(spent)) for _queue, began, spent in hours), strict=True)
        found[queue] = Pace(max(began), sum(spent) / sum(began))
    return found


def predict(queue: str, backlog: Sequence[int], pace: Pace | None) -> QueueForecast:
    """Return the forecast for one queue. Within an hour jobs are assumed to fall due evenly.

    Args:
        queue: name of the queue.
        backlog: due now, then in each of the next hours, then later.
        pace: None = unknown.
    """
    due, *coming, later = backlog
    hours = tuple(coming) or (0,) * HOURS
    if pace is None:
        return QueueForecast(queue, due, hours, later, None, (), 0.0 if not due else None)
    behind, drained_s = _run_down(due, hours, pace.per_hour)
    work_s = (due + sum(hours)) * pace.mean_ms / 1000
    return QueueForecast(queue, due, hours, later, pace, behind, drained_s, work_s)


def _run_down(due: int, hours: Iterable[int], per_hour: int) -> tuple[tuple[float, ...], float | None]:
    """Return the backlog at the end of each hour, and the seconds until it was first empty (None = never)."""
    left, drained_s = float(due), 0.0 if not due else None
    behind = []
    for place, falls_due in enumerate(hours):
        change = falls_due - per_hour
        if drained_s is None and left + change <= 0:
            drained_s = (place + left / -change) * 3600
        left = max(0.0, left + change)
        behind.append(left)
    return tuple(behind), drained_s


def _together(forecasts: Sequence[QueueForecast]) -> QueueForecast:
    """Return the forecast for all queues. They have separate workers, so the slowest determines when all is done."""
    hours = tuple(map(sum, zip(*(one.hours for one in forecasts), strict=True))) or (0,) * HOURS
    behind = tuple(map(sum, zip(*(one.behind for one in forecasts if one.behind), strict=True)))
    due, later = (sum(getattr(one, name) for one in forecasts) for name in ("due", "later"))
    times = [one.drained_s for one in forecasts]
    drained_s = None if None in times else max(filter(None, times), default=0.0)
    return QueueForecast("", due, hours, later, None, behind, drained_s)
