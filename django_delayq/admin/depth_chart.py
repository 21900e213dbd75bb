"""Charts over time from the samples that a dispatcher keeps in Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from django.utils.translation import gettext as _

from ..core.figures import DepthPoint
from .charts import Chart, Row, number
from .formatting import clock, grouped, wall_seconds

#: span of a chart → (minutes, minutes between two rows)
SPAN_MINUTES: Final = {"hour": (60, 1), "day": (1440, 10)}
#: seconds that the charts of the dashboard show
HISTORY_SECONDS: Final = 3600
#: states whose numbers are drawn, in the order of their colours
PLACES_DRAWN: Final = ("delayed", "ready", "reserved", "failed", "morgue")
#: steps without a sample after which a line has a gap
_MISSING: Final = 2.5
Cells = Sequence[tuple[str, str]]


def depth_chart(rows: Sequence[Row], *, keep_s: int = HISTORY_SECONDS) -> Chart:
    """Return the chart of the numbers of jobs by state."""
    titles = (_("delayed"), _("ready"), _("reserved"), _("failed"), _("in the morgue"))
    head = ((_("Time"), 0), *((title, place + 1) for place, title in enumerate(titles)))
    summary = "" if rows else _("No samples yet: a running dispatcher takes one a minute.")
    return Chart(
        "dq-depth", _("Depth"), _("jobs, log scale"), head, rows, summary, kind="lines", log="jobs", keep_s=keep_s
    )


def depth_cells(counts: Any) -> Cells:
    """Return the cells of a row of :func:`depth_chart` from anything that has the counts as attributes."""
    return [(grouped(getattr(counts, place)), number(getattr(counts, place))) for place in PLACES_DRAWN]


def rows_of(
    points: Sequence[DepthPoint], cells: Callable[[DepthPoint], Cells] = depth_cells, step: int = 1
) -> list[Row]:
    """Return a row for each ``step``-th minute, the newest first."""
    chosen = [point for point in points if point.at_ms // 60_000 % step == 0]
    return [
        Row(clock(point.at_ms), cells(point), x=f"{x:.3f}", until=f"{x + _MISSING * step * 60:.3f}")
        for point, x in ((point, wall_seconds(point.at_ms)) for point in reversed(chosen))
    ]
