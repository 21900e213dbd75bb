"""What the job browser asks Redis for: one page of jobs, of one queue or of all, and a search that comes to an end.

Pages over all queues go from queue to queue, in the order of their names, so that however many there are, a page costs
no more than the queues that it shows. A page is continued by a cursor: ``<queue>:<cursor of the inspector>``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..core.errors import InvalidJob
from ..core.inputs import check_id
from ..core.operations.inspector import INDEXES, SEARCHED, Counts
from .needle import GaveUp, Needle

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.operations.views import JobView

__all__ = ["LATEST_FIRST", "PATIENCE", "PLACES", "USUAL_LIMIT", "Listing", "Wish", "browse", "count_at", "look_for"]

#: where a person may look, and by what it is ordered there, the usual order first
PLACES: Final[dict[str, tuple[str, ...]]] = {
    "waiting": tuple(INDEXES["waiting"]),
    "reserved": tuple(INDEXES["reserved"]),
    "gated": tuple(INDEXES["reserved"]),  # content is gated behind a run, so it is found there
    "failed": tuple(INDEXES["failed"]),
    "morgue": tuple(INDEXES["morgue"]),
}
#: places that are read backwards unless somebody wants it otherwise: the latest is what people look for
LATEST_FIRST: Final = ("failed", "morgue")
#: jobs on a page
USUAL_LIMIT: Final = 50
#: seconds that a search, or a look for gated content, may take
PATIENCE: Final = 2.0
#: jobs that a search lists
MOST_FOUND: Final = 100
#: bytes of arguments that a list reads of a job; of longer ones it says how long they are
MOST_BYTES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants to see; ``queue`` "" = all."""

    queue: str = ""
    place: str = "waiting"
    by: str = ""
    reverse: bool = False
    cursor: str = ""
    limit: int = USUAL_LIMIT
    text: str = ""


@dataclass(slots=True)
class Listing:
    """Jobs, and what is behind them."""

    jobs: list[JobView] = field(default_factory=list)
    #: continues the page; "" at the end
    cursor: str = ""
    #: jobs that a search looked at
    looked_at: int = 0
    #: it gave up before it had seen everything
    cut_off: bool = False


def count_at(counts: Counts, place: str) -> int:
    """How many jobs of a queue lie at a place of :data:`PLACES`."""
    if place == "waiting":
        return counts.delayed + counts.ready
    number: int = getattr(counts, place)
    return number


def browse(broker: Broker, wish: Wish, counts: Sequence[Counts]) -> Listing:
    """One page.

    Args:
        counts: of all queues, so that empty ones need not be asked.

    Raises:
        InvalidJob: the cursor or the order is none.
    """
    begin, _, cursor = wish.cursor.partition(":")
    names = [wish.queue] if wish.queue else sorted(one.queue for one in counts if count_at(one, wish.place))
    listing = Listing()
    give_up = time.monotonic() + PATIENCE
    for place, name in enumerate(names):
        if begin and not wish.queue and name < begin:
            continue
        behind = cursor if name == begin else ""
        while True:
            page = broker.inspector.page(
                name,
                _index_of(wish.place),
                wish.by,
                cursor=behind,
                limit=_room(wish, listing),
                reverse=wish.reverse,
                most_bytes=MOST_BYTES,
            )
            listing.jobs += [view for view in page.jobs if wish.place != "gated" or view.gated_due_ms is not None]
            behind = page.cursor
            listing.cut_off = wish.place == "gated" and time.monotonic() > give_up
            if not behind or listing.cut_off or len(listing.jobs) >= wish.limit:
                break
        if behind:
            listing.cursor = f"{name}:{behind}"
            return listing
        if len(listing.jobs) >= wish.limit and place + 1 < len(names):
            listing.cursor = f"{names[place + 1]}:"
            return listing
    return listing


def _index_of(place: str) -> str:
    return "reserved" if place == "gated" else place


def _room(wish: Wish, listing: Listing) -> int:
    """How many to ask for: of what is gated only some of the reserved ones are, so a page may need several looks.

    It may then be a little longer than the limit, because what was read must not be read over.
    """
    return wish.limit if wish.place == "gated" else wish.limit - len(listing.jobs)


# -- search ----------------------------------------------------------------------------------------------------------


def look_for(broker: Broker, wish: Wish, counts: Sequence[Counts], *, patience: float = PATIENCE) -> Listing:
    """Jobs with this id, then those in which the text stands, in any place, until the time or the list is full.

    Args:
        counts: of all queues, so that empty ones, and empty places, need not be asked.
        patience: seconds.
    """
    mine = [one for one in counts if wish.queue in ("", one.queue) and _places_of(one)]
    give_up = time.monotonic() + patience
    needle = Needle(wish.text, give_up)
    listing = Listing()
    known: set[tuple[str, str, bytes]] = set()

    def add(view: JobView) -> None:
        name = view.job.queue, view.id, view.job.key if view.state == "morgue" else b""
        if name not in known:
            known.add(name)
            listing.jobs.append(view)

    try:
        for view in _by_id(broker, [one.queue for one in mine], needle, wish.text):
            add(view)
        for one in mine:
            needle.hurry()
            for view in broker.inspector.search(one.queue, needle, places=_places_of(one), limit=MOST_FOUND + 1):
                add(view)
                if len(listing.jobs) > MOST_FOUND:
                    raise GaveUp
    except GaveUp:
        listing.cut_off = True
    listing.jobs = listing.jobs[:MOST_FOUND]
    listing.looked_at = needle.looked_at
    return listing


def _places_of(counts: Counts) -> list[str]:
    return [place for place in SEARCHED if count_at(counts, place)]


def _by_id(broker: Broker, names: Sequence[str], needle: Needle, text: str) -> Iterator[JobView]:
    try:
        ident = check_id(text)
    except InvalidJob:
        return
    for name in names:
        needle.hurry()
        found = broker.inspector.get(name, ident)
        if found is not None:
            yield found
