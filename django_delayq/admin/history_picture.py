"""View model of the history page: texts and drawings for its template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..history import histograms
from ..history.forecast import Forecast, QueueForecast
from ..history.moments import HOUR, from_row
from ..history.series import FAILURES, SeriesSum, Summary
from ..models.history import HourlyStat
from .dashboard_texts import grouped, millis
from .history_query import HistoryQuery
from .history_svg import Drawing, Mark, bars, heat, lines, share
from .words import duration

__all__ = ["Chart", "charts", "failing", "foretold", "rates", "rows_of", "tiles"]

#: maximum number of tasks in a table
MOST_TASKS: Final = 10
#: minimum number of attempts for a task's failure rate to be meaningful
LEAST_RUNS: Final = 5
#: minimum number of rows in the lateness map; each covers two histogram buckets
LEAST_ROWS: Final = 6
_NOTHING: Final = "–"


@dataclass(frozen=True, slots=True)
class Chart:
    """Chart with the same data as a table.

    Attributes:
        legend: (class of a colour, name).
    """

    name: str
    title: str
    note: str
    drawing: Drawing
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    legend: Sequence[tuple[str, str]] = field(default=())


def local(moment: datetime) -> datetime:
    """Return the moment in the reader's time zone."""
    return timezone.localtime(moment, timezone.get_current_timezone())


def time_of(moment: datetime, pattern: str = "Y-m-d H:i") -> str:
    """Return a moment as text."""
    return date_format(local(moment), pattern)


def percent(part: float | None) -> str:
    """Return a fraction as a percentage."""
    if part is None:
        return _NOTHING
    return f"{100 * part:.1f} %" if 0 < part < 0.0995 else f"{100 * part:.0f} %"


def charts(found: Summary) -> list[Chart]:
    """Return the charts of throughput and lateness, and the lateness map."""
    slots = found.period.slots
    step = timedelta(hours=found.period.step)
    pattern = "H:i" if found.period.hours <= 48 else "j M"
    marks = [Mark(time_of(slot, pattern), _span(slot, min(slot + step, found.period.end))) for slot in slots]
    return [_throughput(found, marks), _lateness(found, marks), _heat(found, marks)]


def _span(start: datetime, end: datetime) -> str:
    """Return a span as text: “2026-11-20 14:00–15:00”; beyond a day with both dates."""
    if end - start > timedelta(days=1):
        return f"{time_of(start)} – {time_of(end)}"
    return f"{time_of(start)}–{time_of(end, 'H:i')}"


def _throughput(found: Summary, marks: Sequence[Mark]) -> Chart:
    values, rows, told = [], [], []
    for place, (mark, tally) in enumerate(zip(marks, found.slots, strict=True)):
        per_hour = found.per_hour(place)
        bad = per_hour * (tally.failure_rate or 0.0)
        values.append((bad, per_hour - bad))
        rows.append((mark.full, grouped(tally["runs"]), grouped(tally["succeeded"]), grouped(tally.failures)))
        words = _("%(when)s: %(runs)s runs, %(bad)s of them failed")
        told.append(words % {"when": mark.full, "runs": grouped(tally["runs"]), "bad": grouped(tally.failures)})
    said = _("%(runs)s runs in all, %(bad)s of them failed.")
    drawing = bars(
        "dq-throughput",
        _("Throughput, runs per hour"),
        said % {"runs": grouped(found.total["runs"]), "bad": grouped(found.total.failures)},
        marks,
        values,
        told,
    )
    return Chart(
        "dq-throughput",
        _("Throughput"),
        _("runs per hour"),
        drawing,
        (_("Time"), _("Runs"), _("Succeeded"), _("Failed")),
        rows,
        (("dq-b2", _("not failed")), ("dq-b1", _("failed"))),
    )


def _lateness(found: Summary, marks: Sequence[Mark]) -> Chart:
    both = [(tally.lateness_ms(50), tally.lateness_ms(99)) for tally in found.slots]
    told = [f"{mark.full}: p50 {millis(p50)}, p99 {millis(p99)}" for mark, (p50, p99) in zip(marks, both, strict=True)]
    said = _("Over the whole period p50 is %(p50)s and p99 %(p99)s.") % {
        "p50": millis(found.total.lateness_ms(50)),
        "p99": millis(found.total.lateness_ms(99)),
    }
    drawing = lines(
        "dq-lateness",
        _("Lateness, p50 and p99"),
        said,
        marks,
        ([p50 for p50, _p99 in both], [p99 for _p50, p99 in both]),
        told,
    )
    rows = [
        (mark.full, millis(p50), millis(p99), grouped(tally["sla_missed"]))
        for mark, (p50, p99), tally in zip(marks, both, found.slots, strict=True)
    ]
    return Chart(
        "dq-lateness",
        _("Lateness"),
        _("start after due time, log scale"),
        drawing,
        (_("Time"), "p50", "p99", _("Too late")),
        rows,
        (("dq-l1", "p50"), ("dq-l2", "p99")),
    )


def _heat(found: Summary, marks: Sequence[Mark]) -> Chart:
    bands = _bands(found.total.lateness)
    numbers = [[sum(tally.lateness[2 * band : 2 * band + 2]) for tally in found.slots] for band in range(bands)]
    names = [_band(band) for band in range(bands)]
    most = max(range(bands), key=lambda band: sum(numbers[band]))
    said = _("Most runs began this late: %(band)s.") % {"band": names[most]} if found.total["timed"] else ""
    drawing = heat("dq-heat", _("Map of lateness"), said, marks, list(zip(names, numbers, strict=True)))
    rows = [(mark.full, *(grouped(row[place]) for row in numbers)) for place, mark in enumerate(marks)]
    return Chart("dq-heat", _("Map of lateness"), _("how many runs began how late"), drawing, (_("Time"), *names), rows)


def _bands(counts: Sequence[int]) -> int:
    """Return the number of rows of the map: up to the one with the latest attempt."""
    last = max((place for place, count in enumerate(counts) if count), default=0)
    return max(LEAST_ROWS, last // 2 + 1)


def _band(band: int) -> str:
    high = histograms.bounds_of(2 * band + 1)[1]
    return _("longer") if high is None else f"< {millis(high)}"


# -- numbers and tables ----------------------------------------------------------------------------------------------


def tiles(total: SeriesSum) -> list[tuple[str, str, str]]:
    """Return (key, name, text) for the whole period."""
    return [
        ("runs", _("runs"), grouped(total["runs"])),
        ("succeeded", _("succeeded"), grouped(total["succeeded"])),
        ("failures", _("failed"), percent(total.failure_rate)),
        ("p50", _("lateness, p50"), millis(total.lateness_ms(50))),
        ("p99", _("lateness, p99"), millis(total.lateness_ms(99))),
        ("late", _("too late"), grouped(total["sla_missed"])),
        ("retries", _("retries"), grouped(total["retries"])),
        ("buried", _("into the morgue"), grouped(total["buried"])),
        ("took", _("length of a run, p50"), millis(total.duration_ms(50))),
        ("took99", _("length of a run, p99"), millis(total.duration_ms(99))),
    ]


def rates(found: Summary, asked: HistoryQuery) -> list[dict[str, Any]]:
    """Return the tasks with the highest failure rates."""
    some = found.by_failure_rate(LEAST_RUNS)[:MOST_TASKS]
    return [
        {
            **_named(name, asked),
            "share": share(tally.failure_rate or 0),
            "rate": percent(tally.failure_rate),
            "runs": grouped(tally["runs"]),
        }
        for name, tally in some
    ]


def failing(found: Summary, asked: HistoryQuery) -> list[dict[str, Any]]:
    """Return the tasks with most failures, by kind of failure."""
    some = found.by_failures()[:MOST_TASKS]
    return [
        {
            **_named(name, asked),
            "failures": grouped(tally.failures),
            "p99": millis(tally.duration_ms(99)),
            "kinds": [grouped(tally[kind]) for kind in FAILURES],
        }
        for name, tally in some
    ]


def _named(name: tuple[str, str], asked: HistoryQuery) -> dict[str, str]:
    queue, task = name
    return {"queue": queue, "task": task or _NOTHING, "url": f"?{asked.query(queue=queue, task=task)}"}


def rows_of(rows: Sequence[HourlyStat]) -> list[list[str]]:
    """Return the rows of the table of hours."""
    return [
        [
            time_of(from_row(row.hour)),
            row.queue,
            row.task or _NOTHING,
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


# -- what comes ------------------------------------------------------------------------------------------------------


def foretold(found: Forecast) -> dict[str, Any]:
    """Return the forecast panel."""
    total = found.total
    marks = [
        Mark(time_of(begin, "H:i"), f"{time_of(begin, 'H:i')}–{time_of(begin + HOUR, 'H:i')}") for begin in found.begins
    ]
    behind = total.behind or [None] * len(total.hours)
    rows = [
        (mark.full, grouped(count), _NOTHING if left is None else grouped(left))
        for mark, count, left in zip(marks, total.hours, behind, strict=True)
    ]
    said = _("%(due)s jobs are due now, %(soon)s fall due within 24 hours.") % {
        "due": grouped(total.due),
        "soon": grouped(sum(total.hours)),
    }
    told = [
        _("%(when)s: %(jobs)s jobs") % {"when": mark.full, "jobs": grouped(count)}
        for mark, count in zip(marks, total.hours, strict=True)
    ]
    drawing = bars(
        "dq-forecast",
        _("Falls due in the next 24 hours, jobs per hour"),
        said,
        marks,
        [(0, count) for count in total.hours],
        told,
    )
    chart = Chart(
        "dq-forecast",
        _("The next 24 hours"),
        _("jobs that fall due"),
        drawing,
        (_("Time"), _("Fall due"), _("Left at its end")),
        rows,
    )
    shown = [one for one in found.queues if one.due or any(one.hours)]
    return {
        "chart": chart,
        "said": said,
        "drained": _drained(total),
        "queues": list(map(_queue, shown)),
        "later": grouped(total.later),
    }


def _drained(total: QueueForecast) -> str:
    if not total.due:
        return _("Nothing that is due waits.")
    if total.drained_s is not None:
        words = _(
            "At the pace of each queue's busiest hour of the last week all that is due is done in about %(time)s."
        )
        return words % {"time": duration(max(1.0, total.drained_s))}
    if not total.behind:
        return _("When it will be done is not known: nothing ran in the last week that the history knows of.")
    return _(
        "When all of it will be done is not known: of a queue more falls due than was ever done in an hour of the "
        "last week, or the history knows no run of it."
    )


def _queue(one: QueueForecast) -> list[str | SafeString]:
    pace = one.pace
    drained = _NOTHING
    if one.drained_s is not None:
        drained = duration(one.drained_s) if one.drained_s else _("now")
    elif pace is not None:
        drained = _("not within 24 h")
    return [
        one.queue,
        grouped(one.due),
        grouped(sum(one.hours)),
        grouped(one.later),
        _NOTHING if pace is None else grouped(pace.per_hour),
        millis(None if pace is None else pace.mean_ms),
        _NOTHING if one.work_s is None else duration(one.work_s),
        drained,
    ]
