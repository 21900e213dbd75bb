"""Search for jobs by their content.

The search walks the indexes of each shard in chunks. Each chunk takes two short calls that change nothing, so Redis is
never blocked; the duration grows with the number of jobs. Jobs that arrive after the start of the call are skipped. A
job that moves between places meanwhile is found at most once, or missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..errors import InvalidJob
from ..job import Payload, Undecodable
from .job_filter import JobFilter
from .pages import Accepts, PayloadsOf, StoredText, has_text
from .paging import INDEXES
from .selection import walk_index

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue
    from .views import JobView


def search(
    broker: Broker, queue: str, condition: str | Callable[[JobView], bool], places: Iterable[str], limit: int | None
) -> Iterator[JobView]:
    """Search jobs; see :meth:`Inspector.search`. Errors are raised at the call, not at the first job."""
    unknown = [place for place in places if place not in INDEXES]
    if unknown:
        raise InvalidJob(f"{unknown[0]!r} is no place to search; use some of {', '.join(INDEXES)}")
    if isinstance(condition, str) and not condition:
        raise InvalidJob("search for what? The text is empty; give a part of an id, a task or the arguments")
    existing = broker.known_queue(queue)

    def payloads_of(view: JobView) -> Iterator[Payload]:
        return broker.inspector.payloads(queue, view.id)

    if isinstance(condition, str):
        finds = StoredText(JobFilter(text=condition).needles)
        accepts: Accepts = partial(has_text, finds=finds, payloads_of=payloads_of)
    else:
        accepts = _complete(condition, payloads_of)
    return _search(broker, existing, accepts, tuple(dict.fromkeys(places)), limit) if existing else iter(())


def _search(
    broker: Broker, queue: Queue, accepts: Accepts, places: Sequence[str], limit: int | None
) -> Iterator[JobView]:
    seen: set[tuple[str, bytes]] = set()
    for place in places:
        for view in _jobs(broker, queue, place):
            if limit is not None and len(seen) >= limit:
                return
            name = view.id, view.job.key if place == "morgue" else b""
            if name not in seen and accepts(view):
                seen.add(name)
                yield view


def _jobs(broker: Broker, queue: Queue, place: str) -> Iterator[JobView]:
    for number in queue.numbers:
        for index in next(iter(INDEXES[place].values())):
            for members in walk_index(queue, number, index):
                yield from broker.inspector.views(queue, number, place, members)


def _complete(function: Accepts, payloads_of: PayloadsOf) -> Accepts:
    """Return the predicate of a caller's function. A merged job is passed with all its payloads."""

    def accepts(view: JobView) -> bool:
        if view.job.merged and view.state != "morgue":
            view.payloads = tuple(payloads_of(view))
        try:
            return bool(function(view))
        except Undecodable:
            return False  # unreadable arguments match no search by arguments

    return accepts
