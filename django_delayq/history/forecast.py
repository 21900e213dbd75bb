"""What the next day brings: how much falls due in each hour, and when it will be done if workers go on as they did.

What falls due is counted in Redis now. The pace is that of each queue's busiest hour of the last week: how much workers
can do is not known before they had as much to do, so it may be better than what is said here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from django.db.models import Sum

from ..models.history import HourlyStat
from .moments import HOUR, floor_hour, to_row

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue

__all__ = ["HOURS", "WEEK", "Forecast", "Pace", "QueueForecast", "forecast", "paces", "predict"]

#: hours that are looked ahead
HOURS: Final = 24
#: of the history that a pace is taken from
WEEK: Final = timedelta(days=7)
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a queue's jobs were run.

    Attributes:
        per_hour: runs that began in its busiest full hour.
        mean_ms: mean length of a run, ms.
    """

    per_hour: int
    mean_ms: float


@dataclass(frozen=True, slots=True)
class QueueForecast:
    """One queue, or all of them together.

    Attributes:
        due: jobs that are due already and wait.
        hours: jobs that fall due in each of the next hours.
        later: jobs that fall due after that.
        pace: None where nothing of it ran in the last week.
        behind: jobs that will be due and not done at the end of each hour; empty without a pace.
        drained_s: seconds until nothing that is due waits any more, 0 if nothing does; None where it is not known, or
            not within those hours.
        work_s: what is due and what falls due, in seconds of one thread; of all queues together, of those whose pace is
            known. None without a pace.
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
    """All queues.

    Attributes:
        now: of Redis's clock, aware.
        total: their sums. All are done when the last of them is.
    """

    now: datetime
    queues: tuple[QueueForecast, ...]
    total: QueueForecast

    @property
    def begins(self) -> list[datetime]:
        """When each hour begins."""
        return [self.now + HOUR * place for place in range(HOURS)]


def forecast(broker: Broker, queues: Sequence[Queue] | None = None, *, using: str | None = None) -> Forecast:
    """Looks into Redis (one round trip for each of its nodes) and into the history (one query).

    Args:
        broker: one that does not wait for long, where a person waits.
        queues: None = all.
        using: alias of the database; None = the one that the project's routers name.

    Raises:
        QueueUnavailable, Misconfigured: Redis cannot be asked.
    """
    asked = broker.queues() if queues is None else queues
    horizon = [_HOUR_MS * (place + 1) for place in range(HOURS)]
    counts = broker.inspector.all_counts(horizon=horizon, queues=asked)
    now_ms = max((one.now_ms for one in counts), default=0.0) or broker.now_ms()
    known = paces(using=using)
    found = [predict(one.queue, one.backlog, known.get(one.queue)) for one in counts]
    return Forecast(datetime.fromtimestamp(now_ms / 1000, UTC), tuple(found), _together(found))


def paces(now: datetime | None = None, *, using: str | None = None) -> dict[str, Pace]:
    """The pace of each queue that the history of the last week knows. The hour that goes on is not full, and left out.

    Args:
        now: aware; None = now.
    """
    end = floor_hour(datetime.now(UTC) if now is None else now)
    table = HourlyStat._default_manager.all() if using is None else HourlyStat._default_manager.using(using)
    rows = table.filter(hour__gte=to_row(end - WEEK), hour__lt=to_row(end), timed__gt=0).order_by()
    sums = rows.values("queue", "hour").annotate(began=Sum("timed"), spent=Sum("duration_sum_ms"))
    most: dict[str, int] = {}
    total: dict[str, list[int]] = {}
    for queue, began, spent in sums.values_list("queue", "began", "spent").iterator():
        most[queue] = max(most.get(queue, 0), int(began))
        both = total.setdefault(queue, [0, 0])
        both[0] += int(began)
        both[1] += int(spent)
    return {queue: Pace(most[queue], spent / began) for queue, (began, spent) in total.items()}


def predict(queue: str, backlog: Sequence[int], pace: Pace | None) -> QueueForecast:
    """What becomes of a queue; within an hour jobs are taken to fall due evenly.

    Args:
        backlog: due now, then in each of the next hours, then later.
    """
    due, *coming, later = backlog
    hours = tuple(coming) or (0,) * HOURS
    if pace is None:
        return QueueForecast(queue, due, hours, later, None, (), 0.0 if not due else None)
    behind, drained_s = _run_down(due, hours, pace.per_hour)
    work_s = (due + sum(hours)) * pace.mean_ms / 1000
    return QueueForecast(queue, due, hours, later, pace, behind, drained_s, work_s)


def _run_down(due: int, hours: Iterable[int], per_hour: int) -> tuple[tuple[float, ...], float | None]:
    """How much is left at the end of each hour, and after how many seconds nothing was left for the first time."""
    left, drained_s = float(due), 0.0 if not due else None
    behind = []
    for place, falls_due in enumerate(hours):
        change = falls_due - per_hour
        if drained_s is None and left + change <= 0:
            drained_s = (place + left / -change) * 3600
        left = max(0.0, left + change)
        behind.append(left)
    return tuple(behind), drained_s


def _together(found: Sequence[QueueForecast]) -> QueueForecast:
    """All queues, which have workers of their own: the slowest of them says when all is done."""
    hours = tuple(map(sum, zip(*(one.hours for one in found), strict=True))) or (0,) * HOURS
    behind = tuple(map(sum, zip(*(one.behind for one in found if one.behind), strict=True)))
    times = [one.drained_s for one in found]
    known = [one.pace for one in found if one.pace is not None]
    work = [one.work_s for one in found if one.work_s is not None]
    return QueueForecast(
        "",
        sum(one.due for one in found),
        hours,
        sum(one.later for one in found),
        _pace_of_all(known),
        behind,
        None if None in times else max(filter(None, times), default=0.0),
        sum(work) if work else None,
    )


def _pace_of_all(known: Sequence[Pace]) -> Pace | None:
    per_hour = sum(one.per_hour for one in known)
    return Pace(per_hour, sum(one.per_hour * one.mean_ms for one in known) / per_hour) if per_hour else None
