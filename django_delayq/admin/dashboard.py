"""Dashboard with live numbers of all queues. The page is complete without a script, which only swaps its parts."""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.text import capfirst
from redis.exceptions import RedisError

from .. import connections
from ..core.errors import Misconfigured, QueueUnavailable
from .charts import LEVELS
from .dashboard_query import DashboardQuery
from .dashboard_rates import HEADER, change_since
from .dashboard_snapshots import SNAPSHOTS
from .dashboard_urls import DashboardUrls
from .dashboard_view import DashboardView, tiles
from .redis_pages import RedisPages

PARTS: Final = "django_delayq/admin/dashboard_parts.html"


class DashboardAdmin(RedisPages):
    """Page of :class:`Dashboard`, and its parts for the script."""

    def pages(self) -> list[URLPattern]:
        """Return the URLs of the page and of its parts."""
        return [self.page("", self.page_view, "changelist"), self.page("parts/", self.parts_view, "parts")]

    def page_view(self, request: HttpRequest) -> HttpResponse:
        """Render the page. It is rendered without Redis, too, so that it recovers by itself."""
        return self._respond(request, live=False)

    def parts_view(self, request: HttpRequest) -> HttpResponse:
        """Render the parts that change; with ``all`` also the expensive ones: backlog, shards and outbox."""
        return self._respond(request, live=True)

    def _respond(self, request: HttpRequest, *, live: bool) -> HttpResponse:
        query, urls = DashboardQuery.of(request.GET), DashboardUrls(self, request)
        view, error = None, ""
        try:
            broker = connections.hurried_broker()
            source = SNAPSHOTS.latest(broker, query.span if "all" in request.GET or not live else "")
        except (QueueUnavailable, Misconfigured, RedisError) as failure:
            error = str(failure)
        else:
            change = change_since(request.headers.get(HEADER, ""), source.snapshot) or source.change
            view = DashboardView(source, query, urls, change)
        context: dict[str, Any] = {
            "live": live,
            "query": query,
            "view": view,
            "error": error,
            "tiles": tiles(view, urls),
            "may_pause": urls.may_pause,
            "levels": range(LEVELS + 1),
            "parts_url": self.url("parts"),
        }
        status = 503 if error else 200
        if live:
            response: HttpResponse = TemplateResponse(request, PARTS, context, status=status)
        else:
            title = capfirst(str(self.opts.verbose_name))
            response = self.render(request, "dashboard", title, context, status=status)
        if error:
            response["Retry-After"] = "5"
        return response
