"""View model of the history page: the texts of its totals, tables and forecast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.utils.translation import gettext as _

from ..history.forecast import Forecast, QueueForecast
from ..history.periods import HOUR, from_row
from ..history.series import FAILURES, SeriesSum, Summary
from ..models.history import HourlyStat
from .charts import Chart, Row, number
from .formatting import NOTHING, duration, grouped, local_text, millis, percent
from .history_query import HistoryQuery

#: maximum number of tasks in a table
MOST_TASKS: Final = 10
#: minimum number of attempts for a task's failure rate to be meaningful
LEAST_ATTEMPTS: Final = 5


# -- numbers and tables ----------------------------------------------------------------------------------------------


def tiles(total: SeriesSum) -> list[tuple[str, str, str]]:
    """Return (key, name, text) for the whole period."""
    return [
        ("runs", _("attempts"), grouped(total["runs"])),
        ("succeeded", _("succeeded"), grouped(total["succeeded"])),
        ("failures", _("failed"), percent(total.failure_rate)),
        ("p50", _("lateness, p50"), millis(total.lateness_ms(50))),
        ("p99", _("lateness, p99"), millis(total.lateness_ms(99))),
        ("late", _("too late"), grouped(total["sla_missed"])),
        ("retries", _("retries"), grouped(total["retries"])),
        ("buried", _("buried"), grouped(total["buried"])),
        ("took", _("duration, p50"), millis(total.duration_ms(50))),
        ("took99", _("duration, p99"), millis(total.duration_ms(99))),
    ]


def rates(overview: Summary, query: HistoryQuery) -> list[dict[str, Any]]:
    """Return the tasks with the highest failure rates."""
    worst = overview.by_failure_rate(LEAST_ATTEMPTS)[:MOST_TASKS]
    return [
        {
            **_named(name, query),
            "share": number(counters.failure_rate or 0),
            "rate": percent(counters.failure_rate),
            "attempts": grouped(counters["runs"]),
        }
        for name, counters in worst
    ]


def failing(overview: Summary, query: HistoryQuery) -> list[dict[str, Any]]:
    """Return the tasks with most failures, by kind of failure."""
    worst = overview.by_failures()[:MOST_TASKS]
    return [
        {
            **_named(name, query),
            "failures": grouped(counters.failures),
            "p99": millis(counters.duration_ms(99)),
            "kinds": [grouped(counters[kind]) for kind in FAILURES],
        }
        for name, counters in worst
    ]


def _named(name: tuple[str, str], query: HistoryQuery) -> dict[str, str]:
    queue, task = name
    return {"queue": queue, "task": task or NOTHING, "url": f"?{query.urlencode(queue=queue, task=task)}"}


def rows_of(rows: Sequence[HourlyStat]) -> list[list[str]]:
    """Return the rows of the table of hours."""
    return [
        [
            local_text(from_row(row.hour)),
            row.queue,
            row.task or NOTHING,
            grouped(row.runs),
            grouped(row.succeeded),
            grouped(sum(getattr(row, name) for name in FAILURES)),
            grouped(row.retries),
            grouped(row.sla_missed),
            millis(row.lateness_p50_ms),
            millis(row.lateness_p99_ms),
            millis(row.duration_p50_ms),
            millis(row.duration_p99_ms),
        ]
        for row in rows
    ]


# -- forecast --------------------------------------------------------------------------------------------------------


def forecast_panel(forecast: Forecast) -> dict[str, Any]:
    """Return the values of the panel that shows how many jobs fall due in each of the next hours."""
    total = forecast.total
    summary = _("Jobs due now: %(due)s. Due within 24 hours: %(soon)s.") % {
        "due": grouped(total.due),
        "soon": grouped(sum(total.hours)),
    }
    listed = [one for one in forecast.queues if one.due or any(one.hours)]
    return {
        "chart": _next_day(forecast),
        "summary": summary,
        "drained": _drained(total),
        "queues": list(map(_queue, listed)),
        "later": grouped(total.later),
    }


def _next_day(forecast: Forecast) -> Chart:
    total = forecast.total
    left = total.behind or [None] * len(total.hours)
    rows = [
        Row(
            f"{local_text(begin, 'H:i')}–{local_text(begin + HOUR, 'H:i')}",
            [(grouped(count), number(count)), (NOTHING if rest is None else grouped(rest), "")],
            local_text(begin, "H:i"),
        )
        for begin, count, rest in zip(forecast.begins, total.hours, left, strict=True)
    ]
    head = ((_("Time"), 0), (_("Fall due"), 1), (_("Left at the end"), 0))
    return Chart("dq-forecast", _("The next 24 hours"), _("jobs that fall due"), head, rows)


def _drained(total: QueueForecast) -> str:
    if not total.due:
        return _("No due jobs are waiting.")
    if total.drained_s is not None:
        text = _("At the pace of each queue's busiest hour of the last week, all due jobs are done in about %(time)s.")
        return text % {"time": duration(max(1.0, total.drained_s))}
    if not total.behind:
        return _("No estimate is possible: the history has no attempts from the last week.")
    return _(
        "No estimate is possible for all jobs: in one queue more jobs fall due than were done in any hour of "
        "the last week, or the history has no attempts of it."
    )


def _queue(one: QueueForecast) -> list[str]:
    pace = one.pace
    drained = NOTHING
    if one.drained_s is not None:
        drained = duration(one.drained_s) if one.drained_s else _("now")
    elif pace is not None:
        drained = _("not within 24 h")
    return [
        one.queue,
        grouped(one.due),
        grouped(sum(one.hours)),
        grouped(one.later),
        NOTHING if pace is None else grouped(pace.per_hour),
        millis(None if pace is None else pace.mean_ms),
        NOTHING if one.work_s is None else duration(one.work_s),
        drained,
    ]
