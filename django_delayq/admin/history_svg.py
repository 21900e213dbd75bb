"""Charts drawn on the server: SVG without scripts or styles of its own, so that any policy of a site lets it through.

A plot is as wide as there is room, so its shapes are drawn in a box of 1000 × its height that is stretched; what is
written stands beside it, in drawings that are not. Colours are classes (history.css), which follow the admin's theme.
Every text goes through ``format_html``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from .dashboard_data import level
from .dashboard_words import millis

__all__ = ["Drawing", "Mark", "bars", "heat", "lines", "logarithmic", "round_up", "share", "short"]

WIDTH: Final = 1000
HEIGHT: Final = 150
#: of a row of a heat map
ROW: Final = 15
#: marks below a plot
MOST_MARKS: Final = 5
#: part of the width behind which none begins, because it would not be all in sight
_LAST_MARK: Final = 0.88
#: part of the room of a bar that it fills
_FILLED: Final = 0.86
#: of the longest lateness that is told apart: 12 days
_LARGEST_POWER: Final = 9


@dataclass(frozen=True, slots=True)
class Mark:
    """A piece of the period: what stands below it, and what is told of it in full."""

    brief: str
    full: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """The three drawings of a chart: what stands on its left, the plot, and what stands below it."""

    left: SafeString
    plot: SafeString
    below: SafeString


def bars(
    name: str, title: str, said: str, marks: Sequence[Mark], values: Sequence[Sequence[float]], told: Sequence[str]
) -> Drawing:
    """Bars in which several numbers are piled up, the first at the bottom.

    Args:
        name: of the chart, no other one of the page has it.
        title: what it shows.
        said: what there is to see, in a sentence, for who does not see it.
        values: of each piece of the period.
        told: of each piece, what is said when it is pointed at.
    """
    top = round_up(max((sum(one) for one in values), default=0))
    room = WIDTH / max(1, len(values))
    groups = []
    for place, (some, words) in enumerate(zip(values, told, strict=True)):
        shapes, upto = [], 0.0
        for series, number in enumerate(some, 1):
            height = HEIGHT * number / top
            upto += height
            if number:
                shapes.append(
                    (
                        series,
                        f"{place * room:.2f}",
                        f"{HEIGHT - upto:.2f}",
                        f"{room * _FILLED:.2f}",
                        f"{max(height, 0.8):.2f}",
                    )
                )
        drawn = format_html_join("", '<rect class="dq-b{}" x="{}" y="{}" width="{}" height="{}"/>', shapes)
        groups.append((words, _column(place, room), drawn))
    ticks = [(short(part * top), HEIGHT - HEIGHT * part) for part in (0.0, 0.5, 1.0)]
    return _drawing(name, title, said, groups, ticks, marks)


def lines(
    name: str,
    title: str,
    said: str,
    marks: Sequence[Mark],
    series: Sequence[Sequence[float | None]],
    told: Sequence[str],
) -> Drawing:
    """Lines of lengths of time, ms, by logarithm. Where there is no value they have a gap."""
    top = max((value for one in series for value in one if value), default=0.0)
    power = min(_LARGEST_POWER, max(2, math.ceil(math.log10(max(1.0, top)))))
    room = WIDTH / max(1, len(marks))
    paths = [(number, _path(values, room, power)) for number, values in enumerate(series, 1)]
    drawn = format_html_join("", '<path class="dq-l{}" d="{}"/>', paths)
    groups = [(words, _column(place, room), "") for place, words in enumerate(told)]
    step = 1 if power <= 4 else 2
    ticks = [(millis(10**at), HEIGHT * (1 - logarithmic(10**at, power))) for at in range(power, 0, -step)]
    return _drawing(name, title, said, groups, [("0", float(HEIGHT)), *ticks], marks, drawn)


def heat(name: str, title: str, said: str, marks: Sequence[Mark], rows: Sequence[tuple[str, Sequence[int]]]) -> Drawing:
    """A map of numbers: a row for each name, the first at the bottom, coloured from nothing to the most."""
    most = max((number for _name, numbers in rows for number in numbers), default=0)
    room, height = WIDTH / max(1, len(marks)), ROW * len(rows)
    cells = [
        (
            level(number, most),
            f"{place * room:.2f}",
            height - ROW * (row + 1),
            f"{room * 0.94:.2f}",
            ROW - 1,
            f"{marks[place].full}, {label}: {number}",
        )
        for row, (label, numbers) in enumerate(rows)
        for place, number in enumerate(numbers)
        if number
    ]
    drawn = format_html_join(
        "", '<rect class="dq-k{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>', cells
    )
    ticks = [(label, height - ROW * (row + 0.5)) for row, (label, _numbers) in enumerate(rows)]
    return _drawing(name, title, said, (), ticks, marks, drawn, height=height, grid=False)


def share(part: float) -> SafeString:
    """A bar for a cell of a table, filled to a part (0 … 1)."""
    bar = '<rect class="dq-b1" width="{}%" height="100%"/>'
    return format_html(
        f'<svg class="dq-share" aria-hidden="true" focusable="false">{bar}</svg>',
        f"{100 * min(1.0, max(0.0, part)):.1f}",
    )


def short(number: float) -> str:
    """A number as it stands at an axis: 1.5 k, 20 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def round_up(number: float) -> float:
    """1, 2 or 5 times a power of ten, at or above a number; at least 2, so that its half is a whole number."""
    power = 10.0 ** math.floor(math.log10(max(number, 1.0)))
    return max(2.0, next(step * power for step in (1, 2, 5, 10) if step * power >= number * 0.9999))


def logarithmic(ms: float, power: int) -> float:
    """How high a length stands, 0 … 1, where 10^power stands at the top."""
    return min(1.0, math.log10(1 + max(0.0, ms)) / math.log10(1 + 10.0**power))


# -- parts -----------------------------------------------------------------------------------------------------------


def _drawing(
    name: str,
    title: str,
    said: str,
    groups: Iterable[tuple[str, SafeString, object]],
    ticks: Sequence[tuple[str, float]],
    marks: Sequence[Mark],
    more: object = "",
    *,
    height: int = HEIGHT,
    grid: bool = True,
) -> Drawing:
    across = format_html_join(
        "",
        '<line class="dq-grid" x1="0" x2="1000" y1="{0}" y2="{0}"/>',
        ((f"{y:.2f}",) for _text, y in ticks) if grid else (),
    )
    piled = format_html_join("", '<g class="dq-piece"><title>{}</title>{}{}</g>', groups)
    plot = format_html(
        '<svg class="dq-drawn" role="img" aria-labelledby="{0}-t {0}-d" viewBox="0 0 {1} {2}" height="{2}" '
        'preserveAspectRatio="none" focusable="false"><title id="{0}-t">{3}</title><desc id="{0}-d">{4}</desc>'
        "{5}{6}{7}</svg>",
        name,
        WIDTH,
        height,
        title,
        said,
        across,
        piled,
        more,
    )
    return Drawing(_left(ticks, height), plot, _below(marks))


def _left(ticks: Sequence[tuple[str, float]], height: int) -> SafeString:
    wide = max((len(text) for text, _y in ticks), default=0)
    width = 14 + 7 * max(4, wide)
    texts = [(width - 6, f"{min(height - 2.0, max(9.0, y + 4)):.1f}", text) for text, y in ticks]
    drawn = format_html_join("", '<text x="{}" y="{}" text-anchor="end">{}</text>', texts)
    return format_html(
        '<svg class="dq-written" aria-hidden="true" focusable="false" width="{}" height="{}">{}</svg>',
        width,
        height,
        drawn,
    )


def _below(marks: Sequence[Mark]) -> SafeString:
    every = max(1, math.ceil(len(marks) / MOST_MARKS))
    places = [place for place in range(0, len(marks), every) if place <= _LAST_MARK * len(marks)]
    texts = [(f"{100 * place / len(marks):.2f}", marks[place].brief) for place in places]
    drawn = format_html_join("", '<text x="{}%" y="13">{}</text>', texts)
    return format_html(
        '<svg class="dq-written dq-below" aria-hidden="true" focusable="false" height="18">{}</svg>', drawn
    )


def _column(place: int, room: float) -> SafeString:
    """The whole of a piece: what is pointed at."""
    return format_html(
        '<rect class="dq-touch" x="{}" y="0" width="{}" height="{}"/>', f"{place * room:.2f}", f"{room:.2f}", HEIGHT
    )


def _path(values: Sequence[float | None], room: float, power: int) -> str:
    """Through all values; a value between two gaps is a dot."""
    words, drawing = [], False
    for place, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        x, y = (place + 0.5) * room, HEIGHT * (1 - logarithmic(value, power))
        lonely = not drawing and (place + 1 == len(values) or values[place + 1] is None)
        words.append(f"{'L' if drawing else 'M'}{x:.2f} {y:.2f}{'h0.1' if lonely else ''}")
        drawing = True
    return "".join(words)
