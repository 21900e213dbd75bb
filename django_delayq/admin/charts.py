"""Charts as tables. ``charts.js`` draws such a table with uPlot; without a script the table is all there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..core.figures import DepthPoint
from .formatting import grouped, local_of

#: span of a chart over time → (minutes, minutes between two rows)
SPAN_MINUTES: Final = {"hour": (60, 1), "day": (1440, 10)}
#: states whose numbers are drawn, in the order of their colours
PLACES_DRAWN: Final = ("delayed", "ready", "reserved", "failed", "morgue")
#: steps without a sample after which a line has a gap
_MISSING: Final = 2.5
#: texts, each with the number that is drawn; see :func:`number`
Cells = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Row:
    """Row of a chart's table. Its texts are made of numbers and moments, so that they need no escaping.

    Attributes:
        label: time or place of the row.
        cells: (text, number that is drawn).
        brief: label on the axis; "" = ``label``.
        x: place on the axis, s; "" = rows are placed one after the other.
        until: place up to which a line leads on to the next row.
    """

    label: str
    cells: Cells
    brief: str = ""
    x: str = ""
    until: str = ""

    @property
    def html(self) -> SafeString:
        """Row of the table. The template of a loop takes five times as long."""
        place = f' data-x="{self.x}" data-until="{self.until}"' if self.x else ""
        brief = f' data-brief="{self.brief}"' if self.brief else ""
        cells = "".join(f'<td class="dq-number" data-number="{number}">{text}</td>' for text, number in self.cells)
        return SafeString(f'<tr{place}{brief}><th scope="row">{self.label}</th>{cells}</tr>')


@dataclass(frozen=True, slots=True)
class Chart:
    """Chart and its table.

    Attributes:
        name: its id, unique within the page.
        title: what it shows.
        note: unit or scale, beside the title.
        head: (name of a column, number of its colour), where 0 = the column is not drawn.
        summary: its content in a sentence.
        kind: lines or bars.
        log: unit of a logarithmic scale: "ms" or "jobs"; "" = a linear scale.
    """

    name: str
    title: str
    note: str
    head: Sequence[tuple[str, int]]
    rows: Sequence[Row]
    summary: str = ""
    kind: str = "bars"
    log: str = ""


def number(value: float | None) -> str:
    """Return a number for a script, whatever the language; "" if there is none."""
    return "" if value is None else f"{value:.6g}"


def depth_chart(rows: Sequence[Row]) -> Chart:
    """Return the chart of the numbers of jobs by state."""
    titles = (_("Time"), _("delayed"), _("ready"), _("reserved"), _("failed"), _("in the morgue"))
    summary = "" if rows else _("No samples yet: a running dispatcher takes one a minute.")
    head = [(title, place) for place, title in enumerate(titles)]
    return Chart("dq-depth", _("Depth"), _("jobs, log scale"), head, rows, summary, kind="lines", log="jobs")


def depth_cells(counts: Any) -> Cells:
    """Return the cells of a row of :func:`depth_chart` from anything that has the counts as attributes."""
    return [(grouped(getattr(counts, place)), number(getattr(counts, place))) for place in PLACES_DRAWN]


def depth_rows(
    points: Sequence[DepthPoint], cells: Callable[[DepthPoint], Cells] = depth_cells, step: int = 1
) -> list[Row]:
    """Return a row for each ``step``-th minute, the newest first."""
    chosen = [point for point in reversed(points) if point.at_ms // 60_000 % step == 0]
    return [timed_row(point.at_ms, cells(point), _MISSING * step * 60) for point in chosen]


def timed_row(at_ms: float, cells: Cells, seconds: float) -> Row:
    """Return a row of a chart over time, whose line leads on for so many seconds."""
    at = local_of(at_ms)
    x = at.replace(tzinfo=UTC).timestamp()  # charts show the wall clock, too
    return Row(f"{at:%H:%M:%S}", cells, x=f"{x:.3f}", until=f"{x + seconds:.3f}")
