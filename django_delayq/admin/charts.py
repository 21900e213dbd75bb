"""Charts as tables. ``charts.js`` draws such a table with uPlot; without a script the table is all there is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

#: colours of a heat map, besides that of zero
LEVELS: Final = 8


@dataclass(frozen=True, slots=True)
class Row:
    """Row of a chart's table.

    Attributes:
        label: time or place of the row.
        cells: (text, number that is drawn, see :func:`number`).
        brief: label on the axis; "" = ``label``.
        x: place on the axis, s; "" = rows are placed one after the other.
        until: place up to which a line leads on to the next row.
    """

    label: str
    cells: Sequence[tuple[str, str]]
    brief: str = ""
    x: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Table whose cells are coloured by their numbers.

    Attributes:
        rows: (name, cells), where a cell is (text, level, full text).
        marks: (label, number of columns that it spans) below the columns.
    """

    rows: Sequence[tuple[str, Sequence[tuple[str, int, str]]]]
    marks: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """Chart and its table.

    Attributes:
        name: its id, unique within the page.
        title: what it shows.
        note: unit or scale, beside the title.
        head: (name of a column, number of its colour), where 0 = the column is not drawn.
        summary: its content in a sentence.
        kind: lines, bars, or "" if a heat map takes the place of the drawing.
        log: unit of a logarithmic scale: "ms" or "jobs"; "" = a linear scale.
        keep_s: seconds for which rows stay when newer ones arrive; 0 = rows are replaced.
    """

    name: str
    title: str
    note: str
    head: Sequence[tuple[str, int]]
    rows: Sequence[Row]
    summary: str = ""
    kind: str = "bars"
    log: str = ""
    keep_s: int = 0
    heat: HeatMap | None = field(default=None)


def number(value: float | None) -> str:
    """Return a number for a script, whatever the language; "" if there is none."""
    return "" if value is None else f"{value:.6g}"


def level(value: int, most: int) -> int:
    """Return the colour of a number, 0 (zero) to ``LEVELS`` (the maximum).

    Scaled by the square root, so that 5 is visible beside 500,000.
    """
    return math.ceil(LEVELS * math.sqrt(value / max(value, most))) if value > 0 else 0
