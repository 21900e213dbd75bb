"""Queries of the job browser: one page of jobs, of one queue or of all, and a search with a time limit.

A page over all queues visits them in alphabetical order, so its cost depends only on the queues it shows. A page is
continued by a cursor: ``<queue>:<cursor of the inspector>``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ..core.counts import Counts
from ..core.errors import InvalidJob
from ..core.inputs import check_id
from ..core.job_filter import JobFilter
from ..core.reading import INDEXES, SEARCHED, Accepts
from ..status.job_content import TextSearch
from .live_filters import filter_of, given_filters

if TYPE_CHECKING:
    from django.http import QueryDict

    from ..core.broker import Broker
    from ..core.job_view import JobView

#: places that can be listed → their orders, default first
PLACES: Final[dict[str, tuple[str, ...]]] = {
    "waiting": tuple(INDEXES["waiting"]),
    "reserved": tuple(INDEXES["reserved"]),
    "gated": tuple(INDEXES["reserved"]),  # gated content waits behind a running job, so it is found there
    "failed": tuple(INDEXES["failed"]),
    "morgue": tuple(INDEXES["morgue"]),
}
#: places listed in descending order by default: users look for the latest jobs
LATEST_FIRST: Final = ("failed", "morgue")
#: jobs per page: the choices, and the default
LIMITS: Final = (20, 50, 100, 250)
USUAL_LIMIT: Final = 50
#: seconds that a search, or a list of gated content, may take
SEARCH_SECONDS: Final = 2.0
#: maximum number of search results
MOST_FOUND: Final = 100
#: bytes of arguments that a list reads of a job; of longer ones only the length is shown
MOST_BYTES: Final = 10_000


@dataclass(frozen=True, slots=True)
class BrowseQuery:
    """Query of the job browser; ``queue`` "" = all."""

    queue: str = ""
    place: str = "waiting"
    by: str = ""
    reverse: bool = False
    cursor: str = ""
    limit: int = USUAL_LIMIT
    #: text to search in all places
    text: str = ""
    #: conditions of the list, as texts
    filters: Mapping[str, str] = field(default_factory=dict)

    @property
    def where(self) -> JobFilter:
        """Return the conditions."""
        return filter_of(self.filters)

    @property
    def order(self) -> str:
        """Return the order of the list."""
        return self.by or self.where.best_order(self.place, PLACES[self.place])

    def accepts(self) -> Accepts | None:
        """Return the condition that the filter leaves open; None if there is none."""
        text = TextSearch(self.where.text) if self.where.text else None
        if self.place != "gated":
            return text
        return lambda view: view.gated_due_ms is not None and (text is None or text(view))

    @classmethod
    def of(cls, parameters: QueryDict) -> BrowseQuery:
        """Return the query of a URL; invalid parameters are ignored."""
        place = parameters.get("place", "")
        place = place if place in PLACES else "waiting"
        by = parameters.get("by", "")
        reverse = parameters.get("reverse", "")
        return cls(
            queue=parameters.get("queue", "")[:255],
            place=place,
            by=by if by in PLACES[place] else "",
            reverse=reverse == "1" if reverse in ("0", "1") else place in LATEST_FIRST,
            cursor=parameters.get("cursor", "")[:2000],
            limit=min(whole_number(parameters.get("limit", ""), USUAL_LIMIT), LIMITS[-1]),
            text=parameters.get("q", "").strip()[:255],
            filters=given_filters(parameters),
        )


def whole_number(text: str, default: int) -> int:
    """Return a positive integer from a URL, else the default."""
    return int(text) if text.isdecimal() and len(text) < 7 and int(text) else default


@dataclass(slots=True)
class Listing:
    """Jobs of one page or search."""

    jobs: list[JobView] = field(default_factory=list)
    #: cursor of the next page; "" at the end
    cursor: str = ""
    #: number of jobs that were read
    examined: int = 0
    #: True if the time or the limit was reached before the end
    cut_off: bool = False


def count_at(counts: Counts, place: str) -> int:
    """Return the number of jobs of a queue at a place of :data:`PLACES`."""
    if place == "waiting":
        return counts.delayed + counts.ready
    number: int = getattr(counts, place)
    return number


def browse(broker: Broker, query: BrowseQuery, counts: Sequence[Counts]) -> Listing:
    """Return one page.

    Args:
        broker: the broker to query.
        query: the query.
        counts: of all queues, so that empty ones are skipped.

    Raises:
        InvalidJob: the cursor or the order is invalid.
    """
    begin, _, cursor = query.cursor.partition(":")
    names = [query.queue] if query.queue else sorted(one.queue for one in counts if count_at(one, query.place))
    listing = Listing()
    deadline = time.monotonic() + SEARCH_SECONDS
    for place, name in enumerate(names):
        if begin and not query.queue and name < begin:
            continue
        page = broker.inspector.page(
            name,
            _index_of(query.place),
            query.order,
            cursor=cursor if name == begin else "",
            limit=query.limit - len(listing.jobs),
            reverse=query.reverse,
            most_bytes=MOST_BYTES,
            where=query.where,
            accepts=query.accepts(),
            seconds=max(0.0, deadline - time.monotonic()),
            partial=True,
        )
        listing.jobs += page.jobs
        listing.examined += page.examined
        if page.cursor:
            listing.cursor = f"{name}:{page.cursor}"
            listing.cut_off = len(listing.jobs) < query.limit
            return listing
        if len(listing.jobs) >= query.limit and place + 1 < len(names):
            listing.cursor = f"{names[place + 1]}:"
            return listing
    return listing


def _index_of(place: str) -> str:
    return "reserved" if place == "gated" else place


# -- search ----------------------------------------------------------------------------------------------------------


def search(broker: Broker, query: BrowseQuery, counts: Sequence[Counts], *, seconds: float = SEARCH_SECONDS) -> Listing:
    """Return jobs with this id, then those containing the text, until the time or the list is used up.

    Args:
        broker: the broker to query.
        query: the query, with the text.
        counts: of all queues, so that empty queues and places are skipped.
        seconds: time limit of the search.
    """
    searched = [(one.queue, _places_of(one)) for one in counts if query.queue in ("", one.queue)]
    deadline = time.monotonic() + seconds
    listing = Listing()
    found: dict[tuple[str, str, bytes], JobView] = {}

    def add(view: JobView) -> None:
        found.setdefault((view.job.queue, view.id, view.job.key if view.state == "morgue" else b""), view)

    for view in _by_id(broker, [name for name, places in searched if places], query.text):
        if query.where.holds(view):
            add(view)
    where, accepts = replace(query.where, text=query.text), TextSearch(query.text)
    for name, places in searched:
        for place in places:
            cursor, is_first = "", True
            while cursor or is_first:
                is_first = False
                left = deadline - time.monotonic()
                if left <= 0 or len(found) > MOST_FOUND:
                    listing.cut_off = True
                    break
                page = broker.inspector.page(
                    name, place, cursor=cursor, limit=MOST_FOUND + 1, where=where, accepts=accepts, seconds=left
                )
                listing.examined += page.examined
                cursor = page.cursor
                for view in page.jobs:
                    add(view)
    listing.cut_off = listing.cut_off or len(found) > MOST_FOUND
    listing.jobs = list(found.values())[:MOST_FOUND]
    return listing


def _places_of(counts: Counts) -> list[str]:
    return [place for place in SEARCHED if count_at(counts, place)]


def _by_id(broker: Broker, names: Sequence[str], text: str) -> Iterator[JobView]:
    try:
        ident = check_id(text)
    except InvalidJob:
        return
    for name in names:
        view = broker.inspector.get(name, ident)
        if view is not None:
            yield view
