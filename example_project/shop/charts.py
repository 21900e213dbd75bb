"""History as a page with charts, which any browser opens from the disk.

There are two views: by the hour, as in the admin, from Django's tables; and by the second, from the attempts that are
stored in the history's Delta table, as any tool that reads such tables could compute it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from django.contrib.staticfiles import finders
from django.template.loader import render_to_string

from django_delayq.admin.charts import Chart, Row, number
from django_delayq.admin.formatting import grouped, millis
from django_delayq.admin.history_charts import charts, heat_map
from django_delayq.history import histograms
from django_delayq.history.series import Summary

from .seconds import Pieces

#: files of the package that draw the charts
FILES = ("vendor/uPlot.iife.min.js", "vendor/uPlot.min.css", "charts.js", "dashboard.css", "vendor/uPlot.LICENSE")


def by_the_hour(found: Summary) -> list[Chart]:
    """Return the charts of the admin's page."""
    return [replace(chart, name=chart.name.replace("dq-", "hours-")) for chart in charts(found)]


def by_the_second(found: Pieces, task: str) -> list[Chart]:
    """Return throughput, lateness and lateness map of one task, at the finest useful resolution."""
    times = [f"{begin:%H:%M:%S}" for begin in found.begins]
    note = f"{task}, in steps of {found.seconds} s"
    runs = [
        Row(time, [_per_second(good + bad, found), _per_second(bad, found)])
        for time, good, bad in zip(times, found.good, found.bad, strict=True)
    ]
    late = [
        Row(time, [(millis(value), number(value)) for value in values])
        for time, *values in zip(times, found.p50, found.p99, strict=True)
    ]
    names = [_band(place) for place in range(found.highest + 1)]
    counts = [[slot[place] for slot in found.lateness] for place in range(found.highest + 1)]
    slots = [Row(time, [(grouped(row[at]), "") for row in counts]) for at, time in enumerate(times)]
    total = f"{grouped(sum(found.good))} runs succeeded, {grouped(sum(found.bad))} failed."
    head = (("Time", 0), ("Runs per second", 1), ("Failed per second", 2))
    return [
        Chart("seconds-throughput", "Throughput", note, head, runs, total),
        Chart(
            "seconds-lateness", "Lateness", note, (("Time", 0), ("p50", 1), ("p99", 2)), late, kind="lines", log=True
        ),
        Chart(
            "seconds-map",
            "Lateness map",
            note,
            [("Time", 0), *((name, 0) for name in names)],
            slots,
            kind="",
            heat=heat_map(names, counts, [(time, time) for time in times]),
        ),
    ]


def write(folder: Path, title: str, table: str, drawn: Sequence[Chart]) -> list[Path]:
    """Write ``index.html`` with a table and the charts, and the files that draw them; return the page and the files."""
    folder.mkdir(parents=True, exist_ok=True)
    page, files = folder / "index.html", [folder / Path(name).name for name in FILES]
    for name, file in zip(FILES, files, strict=True):
        shutil.copyfile(finders.find(f"django_delayq/{name}"), file)
    page.write_text(render_to_string("shop/history.html", {"title": title, "table": table, "charts": drawn}), "utf-8")
    return [page, *files]


def _per_second(count: int, found: Pieces) -> tuple[str, str]:
    return f"{count / found.seconds:.1f}", number(count / found.seconds)


def _band(place: int) -> str:
    _low, high = histograms.bounds_of(place)
    return "longer" if high is None else f"< {millis(high)}"
