"""Pages of jobs: one slice of an order of a place, merged over all shards, of all jobs or of those that match."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..job import Payload
from ..records.schedule_frames import CHUNK
from .job_filter import JobFilter
from .paging import IndexEntry, Range, pack_cursor

if TYPE_CHECKING:
    from ..queue import Queue
    from .job_reader import JobReader
    from .views import JobView

#: returns True for a job that belongs on the page
Accepts = Callable[["JobView"], bool]
#: returns the payloads of a live merged job
PayloadsOf = Callable[["JobView"], Iterable[Payload]]

#: jobs that are read at once where all their arguments are needed, which may be large
_AT_ONCE_COMPLETE: Final = 50


@dataclass(slots=True)
class Page:
    """Page of jobs; ``cursor`` continues after it, and is empty on the last page."""

    jobs: list[JobView]
    cursor: str = ""
    #: number of jobs that were read for it
    examined: int = 0
    #: number of shards that did not answer, and whose jobs are missing
    unreachable: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """Request for one page; see :meth:`Inspector.page`."""

    place: str
    indexes: tuple[str, ...]
    bounds: Range
    after: IndexEntry | None = None
    limit: int = 100
    reverse: bool = False
    most_bytes: int | None = None
    where: JobFilter = field(default_factory=JobFilter)
    accepts: Accepts | None = None
    seconds: float = math.inf
    partial: bool = False

    @property
    def matches_all(self) -> bool:
        """True if every job belongs on the page."""
        return self.accepts is None and self.where.is_empty

    @property
    def at_once(self) -> int:
        """Number of jobs to read in one call: the page itself if all jobs match, else more."""
        if self.matches_all:
            return self.limit
        return _AT_ONCE_COMPLETE if self.where.text else CHUNK


class StoredText:
    """Predicate for a text anywhere in the stored form of a job."""

    def __init__(self, needles: Iterable[str]) -> None:
        self._needles = {needle.casefold() for needle in needles}

    def __call__(self, view: JobView) -> bool:
        return any(needle in text.casefold() for text in view.texts() for needle in self._needles)


def read_page(reader: JobReader, queue: Queue, request: PageRequest, payloads_of: PayloadsOf) -> Page:
    """Return a page. With conditions it reads on until the page is full, or the time is over.

    One entry more than needed is read each time, because it shows if the index ends.
    """
    give_up = time.monotonic() + request.seconds
    page, after, step = Page([]), request.after, request.at_once
    most_bytes = None if request.where.text else request.most_bytes
    unreachable: set[int] | None = set() if request.partial else None
    while True:
        entries = reader.first_entries(
            queue, request.indexes, after, step + 1, request.reverse, request.bounds, unreachable
        )
        page.unreachable = len(unreachable or ())
        views = reader.entries(queue, request.place, entries[:step], most_bytes)
        for entry in entries[:step]:
            # A job that was settled between the two reads is left out; the cursor advances past it all the same.
            view = views.get((entry.shard, entry.member))
            page.examined += 1
            if view is not None and _belongs(view, request, payloads_of):
                page.jobs.append(view)
                if len(page.jobs) == request.limit:
                    page.cursor = "" if entry is entries[-1] else pack_cursor(entry)
                    return page
        if len(entries) <= step:
            return page
        after = entries[step - 1]
        if request.matches_all or time.monotonic() >= give_up:
            page.cursor = pack_cursor(after)
            return page


def _belongs(view: JobView, request: PageRequest, payloads_of: PayloadsOf) -> bool:
    """Return True if a job belongs on the page; then it has no more bytes than requested."""
    where = request.where
    if not where.holds(view):
        return False
    if not where.text:
        return request.accepts is None or request.accepts(view)
    belongs = has_text(view, request.accepts or StoredText(where.needles), payloads_of)
    if belongs and request.most_bytes is not None:
        view.cut_off(request.most_bytes)
    return belongs


def has_text(view: JobView, finds: Accepts, payloads_of: PayloadsOf) -> bool:
    """Return True if a text is found in a job, or in a payload of a live merged one, which are read one by one."""
    if finds(view):
        return True
    if view.state == "morgue" or not view.job.merged:
        return False

    def has_it(payload: Payload) -> bool:
        view.payloads = (payload,)
        return finds(view)

    found = any(map(has_it, payloads_of(view)))
    view.payloads = ()
    return found
