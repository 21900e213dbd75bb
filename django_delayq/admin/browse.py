"""Queries of the job browser: one page of jobs, of one queue or of all, and a search with a time limit.

A page over all queues visits them in alphabetical order, so its cost depends only on the queues it shows. A page is
continued by a cursor: ``<queue>:<cursor of the inspector>``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from django import forms
from django.utils.translation import gettext_lazy as _

from ..core.counts import Counts
from ..core.errors import InvalidJob
from ..core.inputs import check_id
from ..core.job_filter import EVERY_JOB, JobFilter
from ..core.reading import SEARCHED, Accepts
from ..core.times import ms_of
from ..status.job_content import text_search
from .content import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.broker import Broker
    from ..core.job_view import JobView

#: places that can be listed; failed jobs and the morgue have pages of their own
PLACES: Final = {"waiting": _("Waiting"), "reserved": _("Reserved"), "gated": _("Gated")}
#: jobs per page: the choices; the second is the default
LIMITS: Final = (20, 50, 100, 250)
#: seconds that a search, or a list of gated content, may take
SEARCH_SECONDS: Final = 2.0
#: maximum number of search results
MOST_FOUND: Final = 100


def _text(label: Any, **more: Any) -> forms.CharField:
    return forms.CharField(label=label, required=False, max_length=255, **more)


def _number(label: Any) -> forms.IntegerField:
    return forms.IntegerField(label=label, required=False, min_value=0, max_value=999_999)


def _moment(label: Any) -> forms.DateTimeField:
    widget = forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")
    return forms.DateTimeField(label=label, required=False, widget=widget)


class BrowseForm(forms.Form):
    """Parameters of the job browser's address."""

    q = _text(_("Id or text"), widget=forms.TextInput(attrs={"size": 36}))
    queue = _text("")
    place = forms.ChoiceField(choices=PLACES.items(), required=False)
    cursor = forms.CharField(required=False, max_length=2000)
    limit = forms.IntegerField(required=False, min_value=1)
    text = _text(_("Text"))
    task = _text(_("Task"))
    prefix = _text(_("Id begins with"))  # type: ignore[assignment]
    id_from = _text(_("Ids from"))
    id_to = _text(_("Ids to"))
    due_from = _moment(_("Due from"))
    due_before = _moment(_("Due before"))
    failures = _number(_("Failures, at least"))
    failures_to = _number(_("Failures, at most"))
    never_started = forms.BooleanField(label=_("never started"), required=False)


#: parameters that are conditions of the list
FILTERS: Final = (
    *("text", "task", "prefix", "id_from", "id_to", "due_from", "due_before"),
    *("failures", "failures_to", "never_started"),
)


class BrowseQuery:
    """Query of the job browser, read from an address; what cannot be read is left out."""

    def __init__(self, address: Mapping[str, Any]) -> None:
        form = BrowseForm(address, auto_id="dq-%s", label_suffix="")
        form.full_clean()
        self._address, self._read = address, form.cleaned_data
        self.queue: str = self._read.get("queue", "")
        self.place: str = self._read.get("place") or "waiting"
        self.reverse: bool = address.get("reverse") == "1"
        self.cursor: str = self._read.get("cursor", "")
        self.limit: int = min(self._read.get("limit") or LIMITS[1], LIMITS[-1])
        self.text: str = self._read.get("q", "")
        #: fields of the search, and of the filter
        self.search, self.inputs = form["q"], [form[name] for name in FILTERS]

    @cached_property
    def where(self) -> JobFilter:
        """Conditions; none if no job can meet them."""
        read: dict[str, Any] = {name: value for name in FILTERS if (value := self._read.get(name)) not in (None, "")}
        for name in ("due_from", "due_before"):
            if name in read:
                read[f"{name}_ms"] = ms_of(read.pop(name))
        try:
            return JobFilter(**read)
        except InvalidJob:
            return EVERY_JOB

    @property
    def filters(self) -> dict[str, str]:
        """Names and texts of the conditions, as they stand in the address."""
        if self.where.is_empty:
            return {}
        return {name: self._address[name] for name in FILTERS if self._read.get(name) not in (None, "", False)}

    def accepts(self) -> Accepts | None:
        """Return the condition that the filter leaves open; None if there is none."""
        text = text_search(self.where.text) if self.where.text else None
        if self.place != "gated":
            return text
        return lambda view: view.gated_due_ms is not None and (text is None or text(view))

    def link(self, **other: Any) -> str:
        """Return the address with changed parameters; it starts at the first page unless a cursor is given."""
        given = {"queue": self.queue, "place": self.place, "q": self.text, "reverse": int(self.reverse) or ""}
        given |= {"limit": self.limit if self.limit != LIMITS[1] else "", **self.filters, **other}
        return f"?{urlencode({name: value for name, value in given.items() if value not in ('', None)})}"


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
    """Return the number of jobs of a queue at a place."""
    number: int = counts.delayed + counts.ready if place == "waiting" else getattr(counts, place)
    return number


def browse(broker: Broker, query: BrowseQuery, counts: Sequence[Counts]) -> Listing:
    """Return one page.

    Args:
        broker: the broker to query.
        query: the query.
        counts: of all queues, so that empty ones are skipped.

    Raises:
        InvalidJob: the cursor is invalid.
    """
    begin, _sep, cursor = query.cursor.partition(":")
    names = [query.queue] if query.queue else sorted(one.queue for one in counts if count_at(one, query.place))
    listing = Listing()
    deadline = time.monotonic() + SEARCH_SECONDS
    for place, name in enumerate(names):
        if begin and not query.queue and name < begin:
            continue
        page = broker.inspector.page(
            name,
            # gated content waits behind a running job, so it is found there
            "reserved" if query.place == "gated" else query.place,
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


def search(broker: Broker, query: BrowseQuery, counts: Sequence[Counts], *, seconds: float = SEARCH_SECONDS) -> Listing:
    """Return jobs of every place with this id, then those containing the text, until the time or list is used up.

    Args:
        broker: the broker to query.
        query: the query, with the text.
        counts: of all queues, so that empty queues and places are skipped.
        seconds: time limit of the search.
    """
    chosen = [one for one in counts if query.queue in ("", one.queue)]
    searched = [(one.queue, [place for place in SEARCHED if count_at(one, place)]) for one in chosen]
    deadline = time.monotonic() + seconds
    listing = Listing()
    found: dict[tuple[str, str, bytes], JobView] = {}

    def add(view: JobView) -> None:
        found.setdefault((view.job.queue, view.id, view.job.key if view.state == "morgue" else b""), view)

    for view in _by_id(broker, [name for name, places in searched if places], query.text):
        if query.where.holds(view):
            add(view)
    where, accepts = replace(query.where, text=query.text), text_search(query.text)
    for name, places in searched:
        for place in places:
            cursor: str | None = ""
            while cursor is not None:
                left = deadline - time.monotonic()
                if left <= 0 or len(found) > MOST_FOUND:
                    listing.cut_off = True
                    break
                page = broker.inspector.page(
                    name, place, cursor=cursor, limit=MOST_FOUND + 1, where=where, accepts=accepts, seconds=left
                )
                listing.examined += page.examined
                cursor = page.cursor or None
                for view in page.jobs:
                    add(view)
    listing.cut_off = listing.cut_off or len(found) > MOST_FOUND
    listing.jobs = list(found.values())[:MOST_FOUND]
    return listing


def _by_id(broker: Broker, names: Sequence[str], text: str) -> Iterator[JobView]:
    try:
        ident = check_id(text)
    except InvalidJob:
        return
    for name in names:
        view = broker.inspector.get(name, ident)
        if view is not None:
            yield view
