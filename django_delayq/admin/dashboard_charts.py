"""Charts of the dashboard. Those over time begin with the last hour; each response adds a row of its moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _

from .charts import Chart, Row, number
from .dashboard_query import SPAN_NAMES
from .dashboard_snapshots import SPANS, DashboardSnapshot
from .depth_chart import HISTORY_SECONDS, depth_cells, depth_chart, rows_of
from .formatting import clock, grouped, millis, rate, wall_seconds

if TYPE_CHECKING:
    from ..status import Rates
    from .depth_chart import Cells

#: intervals without a response after which a line has a gap
MISSING_RESPONSES: Final = 3


@dataclass(frozen=True, slots=True)
class DashboardCharts:
    """Charts of one response.

    Attributes:
        source: the snapshot.
        change: rates and lateness since an earlier snapshot; without one there is no row of this moment.
    """

    source: DashboardSnapshot
    change: Rates | None

    @property
    def throughput(self) -> Chart:
        """Chart of the rates."""
        rates = self.change
        now = _rates(rates.done, rates.failing, rates.scheduled) if rates else ()
        before = rows_of(self.source.depths, lambda point: _rates(point.done, point.failing, point.scheduled))
        head = ((_("Time"), 0), (_("done"), 1), (_("failing"), 2), (_("scheduled"), 3))
        rows = [*self._now(now), *before]
        note = _("jobs per second")
        return Chart("dq-throughput", _("Throughput"), note, head, rows, kind="lines", keep_s=HISTORY_SECONDS)

    @property
    def lateness(self) -> Chart:
        """Chart of the lateness."""
        now = _late(*lateness_of(self.change)) if self.change else ()
        rows = [*self._now(now), *rows_of(self.source.depths, lambda point: _late(point.p50_ms, point.p99_ms))]
        head, note = ((_("Time"), 0), ("p50", 1), ("p99", 2)), _("start after due time, log scale")
        return Chart("dq-lateness", _("Lateness"), note, head, rows, kind="lines", log="ms", keep_s=HISTORY_SECONDS)

    @property
    def depth(self) -> Chart:
        """Chart of the numbers of jobs by state."""
        now = depth_cells(self.source.snapshot.totals)
        return depth_chart([*self._now(now), *rows_of(self.source.depths)])

    def _now(self, cells: Cells) -> list[Row]:
        """Return the row of this moment, if there are values for it."""
        now_ms = self.source.snapshot.now_ms
        x = wall_seconds(now_ms)
        until = x + MISSING_RESPONSES * self.source.next_ms / 1000
        return [Row(clock(now_ms), cells, x=f"{x:.3f}", until=f"{until:.3f}")] if cells else []

    @property
    def backlog(self) -> Chart:
        """Chart of what falls due: in each minute or hour of the span."""
        span = self.source.span
        bars, _step = SPANS[span]
        due, *bins, later = self.source.snapshot.backlog or (0,) * (bars + 2)
        unit = _("min") if span == "hour" else _("h")
        rows = [
            Row(f"{place}–{place + 1} {unit}", [(grouped(count), str(count))], brief=f"{place} {unit}")
            for place, count in enumerate(bins)
        ]
        text = _("due now %(due)s · %(span)s %(soon)s · later %(later)s · as of %(time)s")
        numbers = {"due": grouped(due), "soon": grouped(sum(bins)), "later": grouped(later)}
        summary = text % {**numbers, "span": SPAN_NAMES[span], "time": clock(self.source.snapshot.now_ms)}
        return Chart("dq-backlog", _("Falls due"), "", ((_("Due"), 0), (_("Jobs"), 1)), rows, summary)


def lateness_of(change: Rates | None) -> tuple[float | None, float | None]:
    """Return p50 and p99 of the lateness, ms."""
    return (change.lateness.quantile(0.5), change.lateness.quantile(0.99)) if change else (None, None)


def _rates(*values: float | None) -> Cells:
    return [(rate(value), number(value)) for value in values]


def _late(*values: float | None) -> Cells:
    return [(millis(value), number(value)) for value in values]
