"""List of the job browser: one place of one queue or of all, with filters, and a search through all places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils.text import capfirst

from .. import connections
from ..core.errors import InvalidJob
from ..core.job_view import JobView
from .browse import LIMITS, PLACES, SEARCH_SECONDS, USUAL_LIMIT, BrowseQuery, Listing, browse, count_at, search
from .formatting import grouped, moment
from .job_view_model import JobViewModel
from .places import ORDER_NAMES, PLACE_MEANINGS, PLACE_NAMES
from .redis_pages import RedisPages


class LiveListPages(RedisPages):
    """List of live jobs and of the morgue, as they are in Redis."""

    def bulk_actions(self, request: HttpRequest, place: str) -> list[Any]:
        """Return the actions on jobs of a place that the user may use."""
        return []

    def list_view(self, request: HttpRequest) -> HttpResponse:
        """Render a page of jobs, or the results of a search."""
        broker = connections.broker()
        counts = broker.inspector.all_counts(partial=True)
        query = BrowseQuery.of(request.GET)
        try:
            listing = search(broker, query, counts) if query.text else browse(broker, query, counts)
        except InvalidJob as error:
            messages.warning(request, str(error))
            listing = Listing()
        self.warn_of_missing(request, broker, counts)
        now_ms = broker.now_ms()
        counted = [one for one in counts if query.queue in ("", one.queue)]
        chosen = query.order
        context = {
            "query": query,
            "listing": listing,
            "items": self.items(listing.jobs, now_ms),
            "now": moment(now_ms, now_ms),
            "queues": [one.queue for one in counts],
            "queue_url": self.url_of("queueentry", "change", query.queue) if query.queue else "",
            "tabs": [
                (
                    place,
                    name,
                    grouped(sum(count_at(one, place) for one in counted)),
                    self.link(query, place=place, by="", reverse=None),
                )
                for place, name in PLACE_NAMES.items()
            ],
            "meaning": PLACE_MEANINGS[query.place],
            "orders": [
                (
                    ORDER_NAMES[by],
                    by == chosen,
                    self.link(query, by=by, reverse=not query.reverse if by == chosen else None),
                )
                for by in PLACES[query.place]
            ],
            "finished_url": f"{self.url('finished')}?{urlencode({'queue': query.queue})}",
            "next_url": self.link(query, cursor=listing.cursor) if listing.cursor else "",
            "first_url": self.link(query) if query.cursor else "",
            "search_seconds": SEARCH_SECONDS,
            "filters": query.filters,
            "address": request.GET.urlencode(),
            "bulk_actions": [] if query.text else self.bulk_actions(request, query.place),
            "limits": [(limit, self.link(query, limit=limit)) for limit in LIMITS],
        }
        trail = [(query.queue, "")] if query.queue else []
        return self.render(request, "live_list", capfirst(str(self.opts.verbose_name_plural)), context, trail=trail)

    def items(self, views: Sequence[JobView], now_ms: float) -> list[JobViewModel]:
        """Return view models of the jobs, all as of one moment."""
        lease_ms = connections.broker().lease_ms
        return [JobViewModel(view, now_ms, lease_ms) for view in views]

    def link(self, query: BrowseQuery, **other: Any) -> str:
        """Return the URL of the list with changed parameters; it starts at the first page unless a cursor is given."""
        parameters = {
            "queue": query.queue,
            "place": query.place,
            "by": query.by,
            "limit": query.limit,
            "q": query.text,
            "reverse": query.reverse,
            "cursor": "",
            **query.filters,
            **other,
        }
        if "place" in other:
            parameters["q"] = ""
        if parameters["reverse"] is not None:
            parameters["reverse"] = int(parameters["reverse"])
        if parameters["limit"] == USUAL_LIMIT:
            parameters["limit"] = ""
        filled = {name: value for name, value in parameters.items() if value not in ("", None)}
        return f"{self.url('changelist')}?{urlencode(filled)}"
