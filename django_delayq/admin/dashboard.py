"""Dashboard with live numbers of all queues. The page is complete without JavaScript, which only updates it."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from django.contrib.admin.sites import AdminSite
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy
from redis.exceptions import RedisError

from .. import connections
from ..core.errors import Misconfigured, QueueUnavailable
from ..models import Dashboard
from .dashboard_data import COLUMNS, HEATS, LEVELS, PLACES, DashboardQuery, answer, wish_of
from .dashboard_picture import PAUSED, Picture, tiles, zone_ms
from .dashboard_snapshots import LOOKS, SPANS
from .dashboard_urls import Addresses
from .redis_pages import RedisPages

__all__ = ["DashboardAdmin", "register"]

COLUMN_NAMES: Final = {
    "name": gettext_lazy("Queue"),
    "delayed": gettext_lazy("Delayed"),
    "ready": gettext_lazy("Ready"),
    "reserved": gettext_lazy("Reserved"),
    "gated": gettext_lazy("Gated"),
    "failed": gettext_lazy("Failed"),
    "morgue": gettext_lazy("Morgue"),
    "lag": gettext_lazy("Lag"),
    "done": gettext_lazy("Done/s"),
}
SPAN_NAMES: Final = {"hour": gettext_lazy("in the next hour"), "day": gettext_lazy("in the next day")}
#: texts used by dashboard.js
WORDS: Final = {
    "live": gettext_lazy("live"),
    "slow": gettext_lazy("live, every %1, because a look takes %2"),
    "frozen": gettext_lazy("frozen"),
    "freeze": gettext_lazy("Freeze"),
    "go-on": gettext_lazy("Go on"),
    "redis-gone": gettext_lazy("Redis does not answer; asked again in %s"),
    "site-gone": gettext_lazy("the site does not answer; asked again in %s"),
    "signed-out": gettext_lazy("you are signed out; reload the page to sign in"),
    "forbidden": gettext_lazy("you may not see this any more"),
    "as-of": gettext_lazy("as Redis had it at %s"),
    "as-of-ago": gettext_lazy("as of %s ago"),
    "as-of-now": gettext_lazy("as of now"),
    "pause": gettext_lazy("Pause"),
    "resume": gettext_lazy("Resume"),
    "refused": gettext_lazy("refused"),
    "busy": gettext_lazy("%1 of %2 busy"),
    "heard": gettext_lazy("heard of %s ago"),
    "for": gettext_lazy("for %s"),
    "lease": gettext_lazy("lease: %s"),
    "epoch": gettext_lazy("epoch %s"),
    "shard": gettext_lazy("shard %s"),
    "time": gettext_lazy("Time"),
    "due-column": gettext_lazy("Due"),
    "jobs-column": gettext_lazy("Jobs"),
    "now": gettext_lazy("now"),
    "due": gettext_lazy("due now"),
    "later": gettext_lazy("later"),
    "hour": gettext_lazy("in the next hour"),
    "day": gettext_lazy("in the next day"),
    "min": gettext_lazy("min"),
    "h": gettext_lazy("h"),
    "walk": gettext_lazy("walk with the arrow keys to read values"),
    "waiting-for-two": gettext_lazy("The first points come with the second answer."),
    **{f"paused-{direction}": name for direction, name in PAUSED.items()},
    **{f"heat-{name}": label for name, label in HEATS.items()},
}


class DashboardAdmin(RedisPages):
    """Page of :class:`Dashboard` and its data endpoint."""

    def pages(self) -> list[URLPattern]:
        """Return the URLs of the page and its data."""
        return [self.page("", self.page_view, "changelist"), self.page("data/", self.data_view, "data")]

    def page_view(self, request: HttpRequest) -> HttpResponse:
        """Render the page. It is rendered without Redis, too, so that it recovers by itself."""
        wish, urls = wish_of(request), Addresses(self, request)
        picture, down = None, ""
        try:
            look = LOOKS.look(connections.hurried_broker(connections.PATIENCE), wish.span)
        except (QueueUnavailable, Misconfigured, RedisError) as error:
            down = str(error)
        else:
            picture = Picture(answer(look, wish, ids=urls.see_jobs), wish, look.change, urls)
        context = {
            "wish": wish,
            "picture": picture,
            "down": down,
            "tiles": tiles(picture, urls),
            "places": PLACES,
            "columns": [self.column(wish, name) for name in COLUMNS],
            "spans": [(name, SPAN_NAMES[name], self.link(wish, span=name)) for name in SPANS],
            "heats": [(name, label, self.link(wish, heat=name)) for name, label in HEATS.items()],
            "levels": range(LEVELS + 1),
            "words": WORDS.items(),
            "zone_ms": zone_ms(),
            "data_url": self.url("data"),
            **urls.patterns,
        }
        title = capfirst(str(self.opts.verbose_name))
        response = self.render(request, "dashboard", title, context, status=503 if down else 200)
        if down:
            response["Retry-After"] = "5"
        return response

    def data_view(self, request: HttpRequest) -> HttpResponse:
        """Return the numbers as JSON; with ``all`` also the expensive ones: backlog, shards and outbox."""
        wish = wish_of(request)
        try:
            look = LOOKS.look(
                connections.hurried_broker(connections.PATIENCE), wish.span if "all" in request.GET else ""
            )
        except (QueueUnavailable, Misconfigured, RedisError) as error:
            return JsonResponse({"error": str(error)}, status=503)
        ids = Addresses(self, request).see_jobs
        return JsonResponse({**answer(look, wish, ids=ids), "zone_ms": zone_ms()})

    # -- the page with another wish ----------------------------------------------------------------------------------

    def link(self, wish: DashboardQuery, **other: Any) -> str:
        """Return the URL of the page with changed query parameters."""
        words = {
            "q": wish.text,
            "sort": wish.sort,
            "down": int(wish.reverse) if wish.sort else "",
            "span": wish.span,
            "heat": wish.heat,
            **other,
        }
        usual = {"span": "hour", "heat": "ready"}
        given = {name: value for name, value in words.items() if value != "" and value != usual.get(name)}
        return f"?{urlencode(given)}" if given else self.url("changelist")

    def column(self, wish: DashboardQuery, name: str) -> tuple[str, str, str, str]:
        """Return (name, label, URL that sorts by it, current sort direction) of a column."""
        mine = wish.sort == name
        down = not wish.reverse if mine else name != "name"
        order = ("descending" if wish.reverse else "ascending") if mine else ""
        return name, str(COLUMN_NAMES[name]), self.link(wish, sort=name, down=int(down)), order


def register(site: AdminSite) -> None:
    """Register this page with a site."""
    site.register(Dashboard, DashboardAdmin)
