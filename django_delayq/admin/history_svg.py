"""Charts drawn on the server: SVG without scripts or inline styles, so that it passes any content security policy.

A plot is as wide as its container: its shapes are drawn in a box of 1000 × its height, which is stretched. Texts stand
beside it in drawings that are not stretched. Colours are CSS classes (history.css), which follow the admin's theme.
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
from .dashboard_texts import millis

__all__ = ["Drawing", "Mark", "bars", "heat", "lines", "logarithmic", "round_up", "share", "short"]

WIDTH: Final = 1000
HEIGHT: Final = 150
#: height of a row of a heat map
ROW: Final = 15
#: maximum number of labels below a plot
MOST_MARKS: Final = 5
#: fraction of the width beyond which no label starts, because it would be cut off
_LAST_MARK: Final = 0.88
#: fraction of its slot that a bar fills
_FILLED: Final = 0.86
#: power of ten (ms) of the longest lateness on the scale: 12 days
_LARGEST_POWER: Final = 9


@dataclass(frozen=True, slots=True)
class Mark:
    """Label of a slot: the short text below the plot, and the full text."""

    brief: str
    full: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Three drawings of a chart: the labels on the left, the plot, and the labels below."""

    left: SafeString
    plot: SafeString
    below: SafeString


def bars(
    name: str, title: str, said: str, marks: Sequence[Mark], values: Sequence[Sequence[float]], told: Sequence[str]
) -> Drawing:
    """Return a chart of stacked bars, the first number at the bottom.

    Args:
        name: id of the chart, unique within the page.
        title: title of the chart.
        said: summary in a sentence, for screen readers.
        marks: labels of the slots.
        values: numbers of each slot.
        told: tooltip of each slot.
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
    """Return a line chart of durations in ms on a logarithmic scale. Missing values leave gaps."""
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
    """Return a heat map: a row for each name, the first at the bottom, coloured from zero to the maximum."""
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
    """Return a bar for a table cell, filled to a fraction (0 … 1)."""
    bar = '<rect class="dq-b1" width="{}%" height="100%"/>'
    return format_html(
        f'<svg class="dq-share" aria-hidden="true" focusable="false">{bar}</svg>',
        f"{100 * min(1.0, max(0.0, part)):.1f}",
    )


def short(number: float) -> str:
    """Return a number for an axis: 1.5 k, 20 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def round_up(number: float) -> float:
    """Round up to the next 1, 2 or 5 times a power of ten; at least 2, so that half of it is an integer."""
    power = 10.0 ** math.floor(math.log10(max(number, 1.0)))
    return max(2.0, next(step * power for step in (1, 2, 5, 10) if step * power >= number * 0.9999))


def logarithmic(ms: float, power: int) -> float:
    """Return the height of a duration, 0 … 1, where 10^power is at the top."""
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
    """Return the hover area of a slot."""
    return format_html(
        '<rect class="dq-touch" x="{}" y="0" width="{}" height="{}"/>', f"{place * room:.2f}", f"{room:.2f}", HEIGHT
    )


def _path(values: Sequence[float | None], room: float, power: int) -> str:
    """Return the path through all values; a value between two gaps is a dot."""
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
