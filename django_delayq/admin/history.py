"""Admin page of the history: charts drawn on the server, tables, and the forecast for the next day."""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy
from redis.exceptions import RedisError

from .. import connections
from ..core.errors import Misconfigured, QueueUnavailable
from ..history import csvfile
from ..history.forecast import forecast
from ..history.rows import HOURS
from ..history.series import known_tasks, summary
from ..models.history import HourlyStat
from ..models.keyset import Page
from .history_charts import charts
from .history_query import HistoryQuery
from .history_view import failing, forecast_panel, rates, rows_of, tiles
from .redis_pages import RedisPages

#: hours per page of the table
LIMIT: Final = 50
PERIODS: Final = {
    "today": gettext_lazy("today"),
    "24h": gettext_lazy("24 hours"),
    "7d": gettext_lazy("7 days"),
    "30d": gettext_lazy("30 days"),
}
#: head of the table of hours: (name, is a number)
COLUMNS: Final = (
    (gettext_lazy("Hour"), False),
    (gettext_lazy("Queue"), False),
    (gettext_lazy("Task"), False),
    (gettext_lazy("Attempts"), True),
    (gettext_lazy("Succeeded"), True),
    (gettext_lazy("Failed"), True),
    (gettext_lazy("Retries"), True),
    (gettext_lazy("Too late"), True),
    (gettext_lazy("Lateness p50"), True),
    (gettext_lazy("p99"), True),
    (gettext_lazy("Duration p50"), True),
    (gettext_lazy("p99"), True),
)


class HourlyStatAdmin(RedisPages):
    """Page over the table of hours. It shows the past even if Redis is unavailable."""

    def pages(self) -> list[URLPattern]:
        """Return the URLs of the page and its CSV file."""
        return [self.page("", self.page_view, "changelist"), self.page("hours.csv", self.file_view, "file")]

    def page_view(self, request: HttpRequest) -> HttpResponse:
        """Render charts, tables and the forecast."""
        query = HistoryQuery.of(request.GET)
        overview = summary(query.series, query.period)
        names = known_tasks()
        listed = self.listed(request, query)
        context = {
            "query": query,
            "overview": overview,
            "periods": [(name, label, self.link(query, period=name)) for name, label in PERIODS.items()],
            "queues": _with(sorted({queue for queue, _task in names}), query.queue),
            "tasks": _with(sorted({task for queue, task in names if task and query.queue in ("", queue)}), query.task),
            "tiles": tiles(overview.total),
            "charts": charts(overview),
            "rates": rates(overview, query),
            "failing": failing(overview, query),
            "forecast": self.ahead(query),
            "columns": COLUMNS,
            "rows": rows_of(listed.rows),
            "newer_url": f"?{query.urlencode(before=listed.before)}" if listed.before else "",
            "older_url": f"?{query.urlencode(after=listed.after)}" if listed.after else "",
            "file_url": f"{self.url('file')}?{query.urlencode()}",
        }
        return self.render(request, "history", capfirst(str(self.opts.verbose_name_plural)), context)

    def file_view(self, request: HttpRequest) -> Any:
        """Return the hours of the page as CSV."""
        query = HistoryQuery.of(request.GET)
        if query.problem:
            return HttpResponseBadRequest(query.problem, content_type="text/plain; charset=utf-8")
        return csvfile.response(request, query.series.rows(HourlyStat._default_manager.all()))

    def ahead(self, query: HistoryQuery) -> dict[str, Any]:
        """Return the forecast, or the error if Redis is unavailable."""
        try:
            broker = connections.hurried_broker()
            queues = [one for one in broker.queues() if query.queue in ("", one.name)]
            return forecast_panel(forecast(broker, queues))
        except (QueueUnavailable, Misconfigured, RedisError) as error:
            return {"down": str(error)}

    def listed(self, request: HttpRequest, query: HistoryQuery) -> Page[HourlyStat]:
        """Return a page of the table; the first one if the URL names none."""
        rows = query.series.rows(HourlyStat._default_manager.all())
        try:
            return HOURS.page(rows, LIMIT, after=request.GET.get("after", ""), before=request.GET.get("before", ""))
        except ValueError:
            return HOURS.page(rows, LIMIT)

    def link(self, query: HistoryQuery, **other: str) -> str:
        """Return the URL of the page with another named period."""
        parameters = query.urlencode(**{"from": "", "to": "", **other})
        return f"?{parameters}" if parameters else self.url("changelist")


def _with(names: list[str], chosen: str) -> list[str]:
    """Return the names, including the chosen one if it is missing."""
    return names if not chosen or chosen in names else sorted([*names, chosen])
