"""Snapshot of whole shards, for callers that need millions of jobs.

Waiting jobs and the morgue are paged through in the order of their indexes, each page after the last (score, member)
read. Reserved jobs are scanned as a hash table, because heartbeats move leases within their order. A job that stays in
its place meanwhile is returned exactly once. A job that moves may be returned in both places, or in none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias

from .deployment import Deployment
from .errors import InvalidJob
from .inputs import encodable
from .job import MAX_ID_BYTES, Undecodable
from .job_filter import is_between
from .job_view import FARTHEST, JobView, Reply, split_name
from .reading import bounds_of, read
from .records.frames import CHUNK, unpack, unpack_body
from .records.keys import DUE_KEYS, SHARD_KEYS
from .redis.scripts import clear_errors

#: places of a job, in the usual order of its life
PLACES: Final = ("waiting", "reserved", "gated", "morgue")
#: place -> columns that its index has; gated content is found only through its lease
INDEXED: Final[Mapping[str, frozenset[str]]] = {
    "waiting": frozenset({"id", "due"}),
    "reserved": frozenset({"id", "lease_until"}),
    "gated": frozenset(),
    "morgue": frozenset({"id", "buried_at"}),
}
_INDEXES: Final[Mapping[str, tuple[str, ...]]] = {"waiting": DUE_KEYS, "morgue": ("morgue",)}
#: entries of an index in one call; they take Redis about 1 ms
PAGE: Final = 2000
#: arguments up to this size are included even if they are not requested
UNWANTED_BYTES: Final = 1024
_FARTHEST_MS: Final = int(FARTHEST // 1000)


@dataclass(frozen=True, slots=True)
class Part:
    """Selection of jobs to read from a shard.

    ``low`` and ``high`` (Unix ms) bound the due time: ``low`` is included, ``high`` excluded. ``idents``: only these
    ids. ``args``: True if the arguments are needed; otherwise large ones are left out.
    """

    queue: str
    shard: int
    place: str
    low: int | None = None
    high: int | None = None
    idents: tuple[str, ...] | None = None
    args: bool = True

    def bounds(self) -> dict[str, Any]:
        """Return the bounds of the due time in the index of a place that has them, as ``read.lua`` takes them."""
        if self.place != "waiting":
            return {}
        return bounds_of("due", (self.low, None if self.high is None else self.high - 1))


def _numbers(texts: Sequence[bytes]) -> list[float]:
    """Return scores as numbers; nearly all are whole, and these are read in a third of the time."""
    try:
        return [*map(int, texts)]
    except ValueError:
        return [*map(float, texts)]


def _times(scores: Iterable[float], unit: int) -> list[int | None]:
    return [int(score) // unit if -FARTHEST < score < FARTHEST else None for score in scores]


# -- columns ---------------------------------------------------------------------------------------------------------


def _moment(ms: float | None) -> int | None:
    """Return a time, Unix ms; None for none, and for an impossible one."""
    return None if ms is None or abs(ms) >= _FARTHEST_MS else int(ms)


def _context(options: bytes) -> str | None:
    """Return the context of the schedule call as JSON; None without one, or if it cannot be read."""
    if not options:
        return None
    try:
        context = json.loads(options).get("context")
    except (ValueError, AttributeError, RecursionError):
        return None
    if context is None:
        return None
    return encodable(json.dumps(context, ensure_ascii=False, separators=(",", ":")))


def _error_class(view: JobView) -> str | None:
    if view.broken:
        return "Undecodable"
    return view.error_class or (_text(view.error.get("class")) if view.job.error else None)


def _error(view: JobView) -> str | None:
    if view.broken:
        return view.broken
    return _text(view.error.get("message")) if view.job.error else None


def _text(value: object) -> str | None:
    return None if value is None else encodable(str(value)) or None


#: columns of every job besides its queue, shard and place, each with the function of its values; times are Unix ms
COLUMNS: Final[Mapping[str, Callable[[JobView], Any]]] = {
    "id": lambda view: view.job.id,
    "task": lambda view: view.job.task or None,
    "due": lambda view: _moment(view.due_ms),
    "priority": lambda view: view.job.priority,
    "args": lambda view: None if view.job.merged else view.job.args,
    "context": lambda view: _context(view.job.options_json),
    "key": lambda view: view.job.key.hex() or None,
    "failures": lambda view: view.job.failures,
    "reserves": lambda view: view.job.reserves,
    "crashes": lambda view: view.job.crashes,
    "lease_until": lambda view: _moment(view.deadline_ms),
    "worker": lambda view: (view.state == "reserved" and encodable(view.job.worker)) or None,
    "failed_at": lambda view: _moment(view.job.failed_at_ms) or None,
    "buried_at": lambda view: _moment(view.buried_ms),
    "reason": lambda view: view.reason or view.outcome or None,
    "error_class": _error_class,
    "error": _error,
    "payloads": lambda view: view.payload_count if view.job.merged else None,
}

#: jobs of a place: name of a column -> a value for each job, in the same order
Columns: TypeAlias = dict[str, list[Any]]


def _columns_of(views: Sequence[JobView]) -> Columns:
    return {name: list(map(value_of, views)) for name, value_of in COLUMNS.items()}


def _waiting_columns(reply: Reply) -> Iterator[Columns]:
    """Yield the columns of waiting jobs: first of those that have nothing but a body, which takes much less time."""
    places = range(len(reply.members))
    fresh = [place for place in places if reply.bodies[place] and reply.members[place] not in reply.extras]
    others: Iterable[int] = places
    if fresh:
        with suppress(Undecodable):
            yield _fresh_columns(reply, fresh)
            others = sorted({*places}.difference(fresh))
    if others:
        yield _columns_of(list(map(reply.view, others)))


def _fresh_columns(reply: Reply, places: Sequence[int]) -> Columns:
    """Return the columns of jobs that have nothing but a body.

    Raises:
        Undecodable: a body cannot be read.
    """
    bodies = [unpack_body(reply.bodies[place], reply.tasks) for place in places]
    priorities, _, keys, tasks, options, args = map(list, zip(*bodies, strict=True))
    same = _columns_of([reply.view(places[0])])
    return {name: values * len(places) for name, values in same.items()} | {
        "id": [reply.members[place].decode(errors="replace") for place in places],
        "task": tasks,
        "due": _times(_numbers([reply.moments[place] for place in places]), 1000),
        "priority": priorities,
        "args": args,
        "context": list(map(_context, options)),
        "key": [key.hex() for key in keys],
    }


# -- reading ---------------------------------------------------------------------------------------------------------


def read_entries(deployment: Deployment, part: Part, *, page: int = PAGE) -> Iterator[Columns]:
    """Yield the columns that the index of a place has (:data:`INDEXED`), in pages; of all its jobs, not of some ids.

    Raises:
        InvalidJob: the place has no index, or single ids are selected.
    """
    if part.place not in PLACES or not INDEXED[part.place] or part.idents is not None:
        raise InvalidJob(f"no index has these jobs of {part.place!r} alone; use read_jobs()")
    if part.place == "reserved":
        yield from (_indexed(part, list(ends), ends.values(), 1) for ends in _scan(deployment, part))
        return
    for index in _INDEXES[part.place]:
        wanted: dict[str, Any] = {"index": SHARD_KEYS.index(index) + 1, "limit": page, "names": True, **part.bounds()}
        more = True
        while more:
            more, found = unpack(read(deployment, part.queue, part.shard, **wanted))
            if found:
                members, scores = found[::2], _numbers(found[1::2])
                ids = [split_name(member)[0] for member in members] if part.place == "morgue" else members
                yield _indexed(part, ids, scores, 1000)
                wanted["after"] = (found[-1], found[-2])


def _indexed(part: Part, ids: Iterable[bytes], scores: Iterable[float], unit: int) -> Columns:
    """Return the columns of entries of an index, whose scores are so many units of a millisecond."""
    (time,) = INDEXED[part.place] - {"id"}
    return {"id": [ident.decode(errors="replace") for ident in ids], time: _times(scores, unit)}


def read_jobs(deployment: Deployment, part: Part, *, fetch: int = 200) -> Iterator[Columns]:
    """Yield the jobs of a place in no order, up to ``fetch`` in one Redis call (fewer when they are large).

    Raises:
        InvalidJob: there is no such place.
    """
    if part.place not in PLACES:
        raise InvalidJob(f"{part.place!r} is no place of a job; use some of {', '.join(PLACES)}")
    for reply in _replies(deployment, part, fetch):
        if part.place == "waiting" and part.idents is None:
            yield from _waiting_columns(reply)
            continue
        views: Iterable[JobView] = reply.views()
        if part.place == "gated":
            views = (view.behind() for view in views if view.gated is not None)
        elif part.place == "reserved" or part.idents is not None:
            views = (view for view in views if _place_of(view) == part.place)
        if found := [view for view in views if is_between(part.low, _moment(view.due_ms), part.high)]:
            yield _columns_of(found)


def _place_of(view: JobView) -> str:
    return view.state if view.state in ("reserved", "morgue") else "waiting" if view.state else ""


def _replies(deployment: Deployment, part: Part, fetch: int) -> Iterator[Reply]:
    """Yield the replies that have the jobs of a part, and maybe others."""
    if part.place == "morgue":
        if part.idents is None:
            yield from _pages(deployment, part, fetch, index="morgue")
        else:
            for name in _names(part.idents):
                bounds = bounds_of("id", (name.decode(), name.decode()))
                yield from _pages(deployment, part, fetch, index="morgue_id", **bounds)
    elif part.idents is not None:
        yield from _looked_up(deployment, part, _names(part.idents), fetch)
    elif part.place == "waiting":
        for index in _INDEXES[part.place]:
            yield from _pages(deployment, part, fetch, index=index, waiting=True, **part.bounds())
    else:
        yield from _looked_up(deployment, part, (member for page in _scan(deployment, part) for member in page), fetch)


def _pages(deployment: Deployment, part: Part, limit: int, *, index: str, **wanted: Any) -> Iterator[Reply]:
    """Yield the jobs of an index, page by page."""
    wanted |= {"index": SHARD_KEYS.index(index) + 1, "limit": limit}
    reply = None
    while reply is None or (reply.more and reply.members):
        if reply is not None:
            wanted["after"] = (reply.moments[-1], reply.members[-1])
        reply = _read(deployment, part, wanted)
        yield reply


def _looked_up(deployment: Deployment, part: Part, members: Iterable[bytes], fetch: int) -> Iterator[Reply]:
    """Yield live jobs by their ids, in chunks."""
    source, chunk = iter(members), list[bytes]()
    while True:
        chunk += islice(source, fetch - len(chunk))
        if not chunk:
            return
        reply = _read(deployment, part, {"members": chunk})
        yield reply
        del chunk[: reply.looked_at]


def _read(deployment: Deployment, part: Part, wanted: Mapping[str, Any]) -> Reply:
    buried = part.place == "morgue"
    most = None if part.args else UNWANTED_BYTES
    frame = read(deployment, part.queue, part.shard, buried=buried, most=most, **wanted)
    return Reply(part.queue, part.shard, frame, buried=buried)


def _names(idents: Iterable[str]) -> Iterator[bytes]:
    """Yield ids in stored form, each once; invalid ids are left out."""
    for ident in dict.fromkeys(idents):
        name = ident.encode(errors="replace")
        if 0 < len(name) <= MAX_ID_BYTES and b"\0" not in name and name.decode() == ident:
            yield name


def _scan(deployment: Deployment, part: Part) -> Iterator[dict[bytes, float]]:
    """Yield the leases of a shard: id -> end. A job that stays reserved throughout is returned exactly once."""
    key = deployment.shard(part.queue, part.shard).names["lease"]
    seen: set[bytes] = set()
    cursor = 0
    while True:
        with clear_errors():
            cursor, page = deployment.client.zscan(key, cursor, count=CHUNK)
        fresh = {member: end for member, end in page if member not in seen}
        seen.update(fresh)
        if fresh:
            yield fresh
        if not cursor:
            return
