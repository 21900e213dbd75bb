"""The history: what became of jobs, in charts that are drawn on the server, and what the next day brings."""

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
from ..history.names import known_tasks
from ..history.paging import Page, page
from ..history.series import summary
from ..models.history import HourlyStat
from .history_asked import Asked
from .history_picture import charts, failing, foretold, rates, rows_of, tiles
from .redis_pages import RedisPages

__all__ = ["HourlyStatAdmin"]

#: hours on a page of the table
LIMIT: Final = 50
PERIODS: Final = {
    "today": gettext_lazy("today"),
    "24h": gettext_lazy("24 hours"),
    "7d": gettext_lazy("7 days"),
    "30d": gettext_lazy("30 days"),
}
#: head of the table of hours: (name, whether it is a number)
COLUMNS: Final = (
    (gettext_lazy("Hour"), False),
    (gettext_lazy("Queue"), False),
    (gettext_lazy("Task"), False),
    (gettext_lazy("Runs"), True),
    (gettext_lazy("Succeeded"), True),
    (gettext_lazy("Failed"), True),
    (gettext_lazy("Retries"), True),
    (gettext_lazy("Too late"), True),
    (gettext_lazy("Lateness p50"), True),
    (gettext_lazy("p99"), True),
    (gettext_lazy("Length p50"), True),
    (gettext_lazy("p99"), True),
)


class HourlyStatAdmin(RedisPages):
    """One page over the table of hours; it shows the past also when Redis does not answer."""

    def pages(self) -> list[URLPattern]:
        """The page, and its hours as a file."""
        return [self.page("", self.page_view, "changelist"), self.page("hours.csv", self.file_view, "file")]

    def page_view(self, request: HttpRequest) -> HttpResponse:
        """Charts, tables, and the next day."""
        asked = Asked.of(request.GET)
        found = summary(asked.wish, asked.period)
        names = known_tasks()
        listed = self.listed(request, asked)
        context = {
            "asked": asked,
            "found": found,
            "periods": [(name, label, self.link(asked, period=name)) for name, label in PERIODS.items()],
            "queues": _with(sorted({queue for queue, _task in names}), asked.queue),
            "tasks": _with(sorted({task for queue, task in names if task and asked.queue in ("", queue)}), asked.task),
            "tiles": tiles(found.total),
            "charts": charts(found),
            "rates": rates(found, asked),
            "failing": failing(found, asked),
            "forecast": self.ahead(asked),
            "columns": COLUMNS,
            "rows": rows_of(listed.rows),
            "newer_url": f"?{asked.query(before=listed.newer)}" if listed.newer else "",
            "older_url": f"?{asked.query(after=listed.older)}" if listed.older else "",
            "file_url": f"{self.url('file')}?{asked.query()}",
        }
        return self.render(request, "history", capfirst(str(self.opts.verbose_name_plural)), context)

    def file_view(self, request: HttpRequest) -> Any:
        """The hours of the page as CSV."""
        asked = Asked.of(request.GET)
        if asked.problem:
            return HttpResponseBadRequest(asked.problem, content_type="text/plain; charset=utf-8")
        return csvfile.response(request, asked.wish.rows(HourlyStat._default_manager.all()))

    def ahead(self, asked: Asked) -> dict[str, Any]:
        """The forecast; where Redis does not answer, that."""
        try:
            broker = connections.hurried_broker(connections.PATIENCE)
            queues = [one for one in broker.queues() if asked.queue in ("", one.name)]
            return foretold(forecast(broker, queues))
        except (QueueUnavailable, Misconfigured, RedisError) as error:
            return {"down": str(error)}

    def listed(self, request: HttpRequest, asked: Asked) -> Page:
        """A page of the table; the first one where the address names none."""
        rows = asked.wish.rows(HourlyStat._default_manager.all())
        try:
            return page(rows, LIMIT, after=request.GET.get("after", ""), before=request.GET.get("before", ""))
        except ValueError:
            return page(rows, LIMIT)

    def link(self, asked: Asked, **other: str) -> str:
        """The page with another named period."""
        query = asked.query(**{"from": "", "to": "", **other})
        return f"?{query}" if query else self.url("changelist")


def _with(names: list[str], chosen: str) -> list[str]:
    """With the name that was chosen, also where it is not among them."""
    return names if not chosen or chosen in names else sorted([*names, chosen])
