"""History as files: each chart a self-contained SVG, and a page with all of them.

There are two views: by the hour, as in the admin, from Django's tables; and by the second, from the attempts that are
stored in the history's Delta table, as any tool that reads such tables could compute it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from django_delayq.admin.history_picture import charts
from django_delayq.admin.history_svg import HEIGHT, Drawing, Mark, bars, heat, lines
from django_delayq.history import histograms
from django_delayq.history.series import Summary

from .seconds import Pieces

WIDTH = 1000
HEAD = 44
FOOT = 26
LEFT = 90
STYLE = """
text{font-family:system-ui,sans-serif;font-size:11px;fill:#475569}.title{font-size:15px;font-weight:600;fill:#0f172a}
.dq-grid{stroke:#cbd5e1;stroke-width:1;vector-effect:non-scaling-stroke}path{vector-effect:non-scaling-stroke}
.dq-touch{fill:transparent}.dq-piece:hover .dq-touch{fill:#0f172a;fill-opacity:.08}
.dq-b1{fill:#c2410c}.dq-b2{fill:#1668a8;fill-opacity:.75}
.dq-l1,.dq-l2{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.dq-l1{stroke:#1668a8}.dq-l2{stroke:#c2410c;stroke-dasharray:6 4}
"""
#: opacities of the eight colours of a heat map
HEAT = (14, 25, 36, 48, 60, 73, 86, 100)


@dataclass(frozen=True)
class Picture:
    """Chart: its file, title and drawing."""

    name: str
    title: str
    legend: Sequence[tuple[str, str]]
    drawing: Drawing

    def svg(self) -> SafeString:
        """Return the chart as one self-contained drawing."""
        plot = str(self.drawing.plot)
        height = int(_number("height", plot, HEIGHT))
        own = _number("width", str(self.drawing.left), LEFT)
        style = STYLE + "".join(f".dq-k{n}{{fill:rgb(22 104 168/{part}%)}}" for n, part in enumerate(HEAT, 1))
        parts = (  # positions of the three drawings
            (LEFT - own, HEAD, own, height, self.drawing.left),
            (LEFT, HEAD, WIDTH - LEFT - 12, height, self.drawing.plot),
            (LEFT, HEAD + height + 2, WIDTH - LEFT - 12, 18, self.drawing.below),
        )
        placed = format_html_join("", '<svg x="{}" y="{}" width="{}" height="{}">{}</svg>', parts)
        tall = HEAD + height + FOOT
        return format_html(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}"><style>{2}</style>'
            '<rect width="{0}" height="{1}" fill="#fff"/><text class="title" x="12" y="24">{3}</text>{4}{5}</svg>',
            WIDTH,
            tall,
            mark_safe(style),  # noqa: S308
            self.title,
            self._colours(),
            placed,
        )

    def _colours(self) -> SafeString:
        room = 110
        start = WIDTH - 12 - room * len(self.legend)
        some = [
            (start + room * place, colour, start + room * place + 16, name)
            for place, (colour, name) in enumerate(self.legend)
        ]
        shape = '<path class="{1}" d="M{0} 20h12" stroke-width="6"/><text x="{2}" y="24">{3}</text>'
        block = '<rect class="{1}" x="{0}" y="14" width="12" height="10"/><text x="{2}" y="24">{3}</text>'
        return format_html_join("", block if self.legend and "dq-b" in self.legend[0][0] else shape, some)


def by_the_hour(found: Summary) -> list[Picture]:
    """Return the charts of the admin's page."""
    return [
        Picture(chart.name.replace("dq-", "hours-"), f"{chart.title} ({chart.note})", chart.legend, chart.drawing)
        for chart in charts(found)
    ]


def by_the_second(found: Pieces, task: str) -> list[Picture]:
    """Return throughput, lateness and lateness map of one task, at the finest useful resolution."""
    marks = [Mark(f"{begin:%H:%M:%S}", f"{begin:%H:%M:%S}") for begin in found.begins]
    every = f"{found.seconds} s"
    told = [
        f"{mark.full}: {good + bad} runs, {bad} failed"
        for mark, good, bad in zip(marks, found.good, found.bad, strict=True)
    ]
    pace = [(bad / found.seconds, good / found.seconds) for good, bad in zip(found.good, found.bad, strict=True)]
    said = f"{sum(found.good)} runs succeeded, {sum(found.bad)} failed."
    runs = bars("s-runs", "Throughput", said, marks, pace, told)
    late = [
        f"{mark.full}: p50 {p50} ms, p99 {p99} ms" for mark, p50, p99 in zip(marks, found.p50, found.p99, strict=True)
    ]
    lateness = lines("s-late", "Lateness, p50 and p99", "How late runs began.", marks, (found.p50, found.p99), late)
    names = [_band(place) for place in range(found.highest + 1)]
    counts = [[slot[place] for slot in found.lateness] for place in range(found.highest + 1)]
    rows = list(zip(names, counts, strict=True))
    drawn = heat("s-map", "Map of lateness", "How many runs began how late.", marks, rows)
    return [
        Picture(
            "seconds-throughput",
            f"{task}: runs per second (each bar {every})",
            (("dq-b2", "not failed"), ("dq-b1", "failed")),
            runs,
        ),
        Picture(
            "seconds-lateness",
            f"{task}: start after due time, log scale (each point {every})",
            (("dq-l1", "p50"), ("dq-l2", "p99")),
            lateness,
        ),
        Picture("seconds-map", f"{task}: how many runs began how late", (), drawn),
    ]


def write(folder: Path, title: str, table: str, pictures: Sequence[Picture]) -> list[Path]:
    """Write all pictures, and ``index.html`` with them and a table; return the files, the page first."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for picture in pictures:
        files.append(folder / f"{picture.name}.svg")
        files[-1].write_text(str(picture.svg()), encoding="utf-8")
    page = folder / "index.html"
    drawn = format_html_join("\n", "<figure>{}</figure>", ((picture.svg(),) for picture in pictures))
    page.write_text(
        format_html(
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>{0}</title>'
            "<style>body{{font-family:system-ui,sans-serif;max-width:1020px;margin:24px auto}}figure{{margin:0 0 8px}}"
            "pre{{overflow:auto}}figure>svg{{max-width:100%;height:auto}}</style><h1>{0}</h1><pre>{1}</pre>{2}</html>",
            title,
            table,
            drawn,
        ),
        encoding="utf-8",
    )
    return [page, *files]


def _band(place: int) -> str:
    _low, high = histograms.bounds_of(place)
    if high is None:
        return "longer"
    return f"< {high} ms" if high < 1000 else f"< {high / 1000:.3g} s"


def _number(name: str, text: str, default: float) -> float:
    found = re.search(rf'^<svg[^>]* {name}="([\d.]+)"', text)
    return float(found[1]) if found else default
