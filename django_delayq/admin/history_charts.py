"""Charts of the history page: throughput, lateness, and the lateness map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from django.utils.translation import gettext as _

from ..history import series
from ..history.series import Summary
from .charts import Chart, HeatMap, Row, level, number
from .formatting import grouped, local_text, millis

#: minimum number of rows in the lateness map; each covers two histogram buckets
LEAST_ROWS: Final = 6
#: maximum number of labels below the lateness map
MOST_MARKS: Final = 5
#: short label and full text of a slot
Mark: TypeAlias = tuple[str, str]


def charts(overview: Summary) -> list[Chart]:
    """Return the charts of throughput and lateness, and the lateness map."""
    slots = overview.period.slots
    step = timedelta(hours=overview.period.step)
    pattern = "H:i" if overview.period.hours <= 48 else "j M"
    marks = [(local_text(slot, pattern), _span(slot, min(slot + step, overview.period.end))) for slot in slots]
    return [_throughput(overview, marks), _lateness(overview, marks), _heat(overview, marks)]


def _span(start: datetime, end: datetime) -> str:
    """Return a span as text: “2026-11-20 14:00–15:00”; beyond a day with both dates."""
    if end - start > timedelta(days=1):
        return f"{local_text(start)} – {local_text(end)}"
    return f"{local_text(start)}–{local_text(end, 'H:i')}"


def _throughput(overview: Summary, marks: Sequence[Mark]) -> Chart:
    rows = []
    for place, ((brief, full), total) in enumerate(zip(marks, overview.slots, strict=True)):
        per_hour = overview.per_hour(place)
        cells = [
            (grouped(total["runs"]), number(per_hour)),
            (grouped(total["succeeded"]), ""),
            (grouped(total.failures), number(per_hour * (total.failure_rate or 0.0))),
        ]
        rows.append(Row(full, cells, brief))
    text = _("%(attempts)s attempts in all, %(failed)s of them failed.")
    summary = text % {"attempts": grouped(overview.total["runs"]), "failed": grouped(overview.total.failures)}
    head = ((_("Time"), 0), (_("Attempts"), 1), (_("Succeeded"), 0), (_("Failed"), 2))
    return Chart("dq-throughput", _("Throughput"), _("attempts per hour"), head, rows, summary)


def _lateness(overview: Summary, marks: Sequence[Mark]) -> Chart:
    rows = []
    for (brief, full), total in zip(marks, overview.slots, strict=True):
        lateness = [total.lateness_ms(percentile) for percentile in (50, 99)]
        cells = [(millis(value), number(value)) for value in lateness]
        rows.append(Row(full, [*cells, (grouped(total["sla_missed"]), "")], brief))
    summary = _("Over the whole period p50 is %(p50)s and p99 %(p99)s.") % {
        "p50": millis(overview.total.lateness_ms(50)),
        "p99": millis(overview.total.lateness_ms(99)),
    }
    head = ((_("Time"), 0), ("p50", 1), ("p99", 2), (_("Too late"), 0))
    note = _("start after due time, log scale")
    return Chart("dq-lateness", _("Lateness"), note, head, rows, summary, kind="lines", log="ms")


def _heat(overview: Summary, marks: Sequence[Mark]) -> Chart:
    numbers = [[sum(total.lateness[2 * band : 2 * band + 2]) for total in overview.slots] for band in _bands(overview)]
    names = [_band(band) for band in _bands(overview)]
    place = max(range(len(names)), key=lambda place: sum(numbers[place]))
    summary = (
        _("Most attempts started this late: %(band)s.") % {"band": names[place]} if overview.total["timed"] else ""
    )
    rows = [
        Row(full, [(grouped(row[place]), "") for row in numbers], brief) for place, (brief, full) in enumerate(marks)
    ]
    return Chart(
        "dq-lateness-map",
        _("Lateness map"),
        _("attempts by hour and lateness"),
        [(_("Time"), 0), *((name, 0) for name in names)],
        rows,
        summary,
        kind="",
        heat=heat_map(names, numbers, marks),
    )


def heat_map(names: Sequence[str], numbers: Sequence[Sequence[int]], marks: Sequence[Mark]) -> HeatMap:
    """Return the rows of the map, the longest lateness at the top."""
    most = max((count for row in numbers for count in row), default=0)
    rows = [
        (name, [(str(n), level(n, most), f"{full}, {name}: {n}") for n, (_brief, full) in zip(row, marks, strict=True)])
        for name, row in zip(names, numbers, strict=True)
    ]
    step = max(1, math.ceil(len(marks) / MOST_MARKS))
    spans = [(marks[at][0], min(step, len(marks) - at)) for at in range(0, len(marks), step)]
    return HeatMap(rows[::-1], spans)


def _bands(overview: Summary) -> range:
    """Return the rows of the map: up to the one with the latest attempt."""
    last = max((place for place, count in enumerate(overview.total.lateness) if count), default=0)
    return range(max(LEAST_ROWS, last // 2 + 1))


def _band(band: int) -> str:
    high = series.bounds_of(2 * band + 1)[1]
    return _("longer") if high is None else f"< {millis(high)}"
