"""Search for jobs by their content.

The search walks the indexes of each shard in chunks. Each chunk takes two short calls that change nothing, so Redis is
never blocked; the duration grows with the number of jobs. Jobs that arrive after the start of the call are skipped. A
job that moves between places meanwhile is found at most once, or missed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..codecs import readable
from ..errors import InvalidJob
from ..job import Job, Undecodable
from .inspector import INDEXES
from .selection import walk_index
from .views import JobView

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


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
    matches = _Text(broker, queue, condition) if isinstance(condition, str) else _Predicate(broker, queue, condition)
    return _search(broker, existing, matches, tuple(dict.fromkeys(places)), limit) if existing else iter(())


def _search(
    broker: Broker, queue: Queue, matches: Callable[[JobView], bool], places: Sequence[str], limit: int | None
) -> Iterator[JobView]:
    seen: set[tuple[str, bytes]] = set()
    for place in places:
        for view in _jobs(broker, queue, place):
            if limit is not None and len(seen) >= limit:
                return
            name = view.id, view.job.key if place == "morgue" else b""
            if name not in seen and matches(view):
                seen.add(name)
                yield view


def _jobs(broker: Broker, queue: Queue, place: str) -> Iterator[JobView]:
    for number in queue.numbers:
        for index in next(iter(INDEXES[place].values())):
            for members in walk_index(queue, number, index):
                yield from broker.inspector.views(queue, number, place, members)


class _Text:
    """Predicate for a text anywhere in a job."""

    def __init__(self, broker: Broker, queue: str, text: str) -> None:
        self._broker = broker
        self._queue = queue
        # Quotes, backslashes and line ends are stored escaped.
        self._texts = {text.casefold(), json.dumps(text, ensure_ascii=False)[1:-1].casefold()}

    def __call__(self, view: JobView) -> bool:
        return any(map(self._is_in, _texts(view))) or (
            view.state != "morgue"
            and view.job.merged
            and any(
                self._is_in(readable(payload.data)) for payload in self._broker.inspector.payloads(self._queue, view.id)
            )
        )

    def _is_in(self, text: str) -> bool:
        text = text.casefold()
        return any(searched in text for searched in self._texts)


def _texts(view: JobView) -> Iterator[str]:
    yield view.id
    yield view.job.task
    yield from _contents(view.job)
    if view.gated is not None:
        yield from _contents(view.gated)
    yield from (view.reason, view.error_class, str(view.error.get("class", "")), str(view.error.get("message", "")))
    for payload in view.payloads:
        yield readable(payload.data)


def _contents(job: Job) -> Iterator[str]:
    yield readable(job.args)
    yield readable(job.options_json)


class _Predicate:
    """Predicate from a caller's function. A merged job is passed with all its payloads."""

    def __init__(self, broker: Broker, queue: str, function: Callable[[JobView], bool]) -> None:
        self._broker = broker
        self._queue = queue
        self._function = function

    def __call__(self, view: JobView) -> bool:
        if view.job.merged and view.state != "morgue":
            view.payloads = tuple(self._broker.inspector.payloads(self._queue, view.id))
        try:
            return bool(self._function(view))
        except Undecodable:
            return False  # unreadable arguments match no search by arguments
