"""Reading of jobs in Redis: entries of the indexes, the jobs behind them, and pages of them with a cursor.

A page is one slice of an order of a place, merged over all shards and classes. Its cursor names the last entry read, so
that paging through a million jobs stays stable while jobs come and go. Each call of ``lua/read.lua`` reads at most 250
entries, or jobs of little more than a MiB.
"""

from __future__ import annotations

import base64
import heapq
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgpack

from .deployment import Deployment
from .errors import InvalidJob, QueueUnavailable
from .inputs import short
from .job import Payload
from .job_filter import Bound, JobFilter
from .job_view import JobView, Reply
from .records.frames import CHUNK, unpack_payload
from .records.keys import DUE_KEYS, SHARD_KEYS
from .redis.scripts import Call
from .registry import ShardSet

#: returns True for a job that belongs on the page
Accepts = Callable[[JobView], bool]
#: jobs that are read at once where all their arguments are needed, which may be large
_AT_ONCE_COMPLETE: Final = 50
#: place -> by -> the indexes of the place in this order
INDEXES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "waiting": {"due": DUE_KEYS},
    "reserved": {"deadline": ("lease",)},
    "failed": {"updated": ("failed",), "failures": ("failures",)},
    "morgue": {"updated": ("morgue",), "id": ("morgue_id",)},
}
#: valid form of a score; float() accepts more than Redis does, 1_0 for instance
_SCORE: Final = re.compile(rb"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
#: orders whose scores are µs of which the last three digits are a place of arrival
_PLACED: Final = ("due", "updated")


@dataclass(slots=True, order=True)
class IndexEntry:
    """Entry of an index, in the order of a page. ``text`` is the score as Redis has it."""

    score: float
    member: bytes
    shard: int
    text: str = field(compare=False, default="")


@dataclass(frozen=True, slots=True)
class Range:
    """Range in an order, both ends included: Unix ms, a number of failures, or an id; None = no bound."""

    by: str
    low: Bound = None
    high: Bound = None

    def __post_init__(self) -> None:
        for bound in (self.low, self.high):
            if bound is not None and not self._is_bound(bound):
                expected = "an id" if self.by == "id" else "a number"
                raise InvalidJob(f"a bound of the order {self.by!r} is {expected}, not {short(bound)}")

    def _is_bound(self, bound: object) -> bool:
        if self.by != "id":
            return isinstance(bound, (int, float)) and not isinstance(bound, bool) and abs(bound) < 2**53
        return isinstance(bound, str) and _is_text(bound)

    def within(self, low: Bound, high: Bound) -> Range:
        """Return the part of the range that lies between two further bounds."""
        lows = [bound for bound in (self.low, low) if bound is not None]
        highs = [bound for bound in (self.high, high) if bound is not None]
        return Range(self.by, max(lows, default=None), min(highs, default=None))

    def arguments(self) -> dict[str, Any]:
        """Return the bounds of the range, and whether they are members, as ``read.lua`` takes them."""
        if self.by == "id":
            # The members are id, \0 and key; no id contains a \0.
            low = None if self.low is None else b"(%b\0" % str(self.low).encode()
            high = None if self.high is None else b"(%b\1" % str(self.high).encode()
            return {"low": low, "high": high, "by_member": True}
        return {"low": _before(self.by, self.low), "high": _up_to(self.by, self.high)}


def _is_text(bound: str) -> bool:
    try:
        bound.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _before(by: str, low: Bound) -> bytes | None:
    if low is None:
        return None
    return b"(%d" % (math.ceil(float(low)) * (1000 if by in _PLACED else 1))


def _up_to(by: str, high: Bound) -> bytes | None:
    if high is None:
        return None
    last = math.floor(float(high))
    return b"(%d" % ((last + 1) * 1000) if by in _PLACED else b"%d" % last


def pack_cursor(entry: IndexEntry) -> str:
    """Return the cursor that continues after an entry."""
    raw = b"%d:%b:%b" % (entry.shard, entry.text.encode(), entry.member)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def unpack_cursor(cursor: str) -> IndexEntry | None:
    """Return the entry after which a cursor continues; None = from the beginning.

    Raises:
        InvalidJob: the text is not a cursor.
    """
    if not cursor:
        return None
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        shard, text, member = raw.split(b":", 2)
        score = float(text)
        if not math.isfinite(score) or not _SCORE.fullmatch(text):
            raise ValueError(text)
        return IndexEntry(score, member, int(shard), text.decode())
    except ValueError:
        raise InvalidJob(f"{cursor[:40]!r} is not a cursor of this inspector; start again without one") from None


# -- reading ---------------------------------------------------------------------------------------------------------


def read(deployment: Deployment, queue: str, shard: int, **wanted: Any) -> bytes:
    """Return the reply of ``read.lua`` for a shard; see there for what can be wanted."""
    place = deployment.shard(queue, shard)
    reply: bytes = deployment.scripts.call("read", place.keys, b"", place.constants, _pack(wanted))
    return reply


def walk(
    queue: ShardSet,
    place: str,
    bounds: Range,
    *,
    after: IndexEntry | None = None,
    reverse: bool = False,
    at_once: int = CHUNK,
    unreachable: set[int] | None = None,
) -> Iterator[IndexEntry]:
    """Return an iterator over the entries of a range, in order, merged over all shards and indexes of a place.

    An id lies in one shard and one index only, so (score, member) names an entry of the whole queue. Jobs that come
    and go meanwhile do not disturb the others.

    Args:
        queue: the queue.
        place: a key of :data:`INDEXES`.
        bounds: the order, and the range in it.
        after: the entry behind which to begin; it may be gone.
        reverse: from the end.
        at_once: entries of an index that are read at once.
        unreachable: receives the numbers of shards that did not answer; None = that is an error.
    """
    wanted = {"names": True, "limit": at_once, "reverse": reverse, **bounds.arguments()}
    if after is not None:
        wanted["after"] = (after.text, after.member)
    indexes = [(number, index) for number in queue.numbers for index in INDEXES[place][bounds.by]]
    requests = [(queue.name, number, wanted | {"index": _position(index)}) for number, index in indexes]
    frames = _read_all(queue.deployment, requests, unreachable is not None)
    walks = []
    for (number, index), frame in zip(indexes, frames, strict=True):
        if unreachable is not None and isinstance(frame, QueueUnavailable):
            unreachable.add(number)
        else:
            walks.append(_walk_index(queue, number, index, wanted, frame))
    return heapq.merge(*walks, reverse=reverse)


def _walk_index(queue: ShardSet, number: int, index: str, wanted: dict[str, Any], frame: bytes) -> Iterator[IndexEntry]:
    while True:
        more, entries = unpack_entries(frame, number)
        yield from reversed(entries) if wanted["reverse"] else entries
        if not more:
            return
        last = entries[0 if wanted["reverse"] else -1]
        wanted = wanted | {"index": _position(index), "after": (last.text, last.member)}
        frame = read(queue.deployment, queue.name, number, **wanted)


def jobs_of(
    deployment: Deployment,
    members: Mapping[tuple[str, int], Sequence[bytes]],
    *,
    buried: bool = False,
    most: int | None = None,
) -> Iterator[tuple[bytes, JobView]]:
    """Yield jobs by their members in an index, as far as they still exist.

    All shards are read in one round trip; what does not fit into the first replies is read on demand.

    Args:
        members: ids by queue and number of the shard; of the morgue names of records.
        buried: True for the morgue.
        most: size above which arguments are left out.
    """
    requests = [(*key, _contents(mine, buried, most)) for key, mine in members.items() if mine]
    for (queue, number, _), frame in zip(requests, _read_all(deployment, requests), strict=True):
        rest = members[queue, number]
        while True:
            reply = Reply(queue, number, frame, buried=buried)
            yield from ((member, view) for member, view in zip(reply.members, reply.views(), strict=True) if view.state)
            rest = rest[reply.looked_at :]
            if not rest:
                break
            frame = read(deployment, queue, number, **_contents(rest, buried, most))


def last_scores(queue: ShardSet, place: str, by: str) -> dict[int, float]:
    """Return the largest score of an order in each shard that has jobs of the place."""
    wanted = {"names": True, "limit": 1, "reverse": True}
    requests = [
        (queue.name, number, wanted | {"index": _position(index)})
        for number in queue.numbers
        for index in INDEXES[place][by]
    ]
    lasts: dict[int, float] = {}
    for (_, number, _), frame in zip(requests, _read_all(queue.deployment, requests), strict=True):
        for entry in unpack_entries(frame, number)[1]:
            lasts[number] = max(entry.score, lasts.get(number, entry.score))
    return lasts


def burials(queue: ShardSet, ident: str) -> list[IndexEntry]:
    """Return the entries of an id's records in the morgue, up to 250 of a shard, the last burial first."""
    wanted = {"index": _position("morgue_id"), "limit": CHUNK, "names": True, "buried_at": True}
    wanted |= Range("id", ident, ident).arguments()
    requests = [(queue.name, number, wanted) for number in queue.homes(ident)]
    frames = zip(requests, _read_all(queue.deployment, requests), strict=True)
    return sorted(
        (entry for (_, number, _), frame in frames for entry in unpack_entries(frame, number)[1]), reverse=True
    )


def payloads_of(queue: ShardSet, ident: str) -> Iterator[Payload]:
    """Yield the payloads of a live merged job; see :meth:`Inspector.payloads`."""
    for number in queue.homes(ident):
        after, some = b"", False
        while True:
            after, records = queue.call("payloads", number, ident.encode(), after, CHUNK, request=b"")
            for record in records:
                some = True
                yield unpack_payload(record)
            if not after:
                break
        if some:
            return


def _read_all(
    deployment: Deployment, requests: Sequence[tuple[str, int, Mapping[str, Any]]], partial: bool = False
) -> list[Any]:
    """Return the replies of many shards; see :meth:`.Scripts.call_many`."""
    calls = [
        Call.on_shard("read", deployment.shard(queue, number), _pack(wanted)) for queue, number, wanted in requests
    ]
    return deployment.scripts.call_many(calls, partial=partial)


def unpack_entries(frame: bytes, shard: int) -> tuple[bool, list[IndexEntry]]:
    """Return whether entries of the range are left, and those of a reply with names only, in ascending order."""
    more, found = msgpack.unpackb(frame, raw=True)
    return more, [
        IndexEntry(float(text), member, shard, text.decode())
        for member, text in zip(found[::2], found[1::2], strict=True)
        if text
    ]


def _pack(wanted: Mapping[str, Any]) -> bytes:
    """Return a request as Redis's ``cmsgpack`` reads it, which knows no type of its own for bytes."""
    packed: bytes = msgpack.packb(wanted, use_bin_type=False)
    return packed


def _position(index: str) -> int:
    return SHARD_KEYS.index(index) + 1


def _contents(members: Sequence[bytes], buried: bool, most: int | None) -> dict[str, Any]:
    return {"members": members, "buried": buried, "most": most}


# -- pages -----------------------------------------------------------------------------------------------------------


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


def read_page(queue: ShardSet, request: PageRequest) -> Page:
    """Return a page. With conditions it reads on until the page is full, or the time is over.

    One entry more than needed is read each time, because it shows if the index ends.
    """
    give_up = time.monotonic() + request.seconds
    unreachable: set[int] | None = set() if request.partial else None
    step = request.at_once
    pending = walk(
        queue,
        request.place,
        request.bounds,
        after=request.after,
        reverse=request.reverse,
        at_once=step + 1 if request.matches_all else CHUNK,
        unreachable=unreachable,
    )
    page, entries = Page([], unreachable=len(unreachable or ())), list(islice(pending, step + 1))
    while True:
        for entry, view in matching(queue, request, entries[:step]):
            page.examined += 1
            if view is not None:
                page.jobs.append(view)
                if len(page.jobs) == request.limit:
                    page.cursor = "" if entry is entries[-1] else pack_cursor(entry)
                    return page
        if len(entries) <= step:
            return page
        if request.matches_all or time.monotonic() >= give_up:
            page.cursor = pack_cursor(entries[step - 1])
            return page
        entries = [entries[step], *islice(pending, step)]


def matching(
    queue: ShardSet, request: PageRequest, entries: Sequence[IndexEntry]
) -> Iterator[tuple[IndexEntry, JobView | None]]:
    """Yield each entry with its job; None if the job does not belong on the page, or was settled since it was read."""
    members: dict[tuple[str, int], list[bytes]] = {}
    for entry in entries:
        members.setdefault((queue.name, entry.shard), []).append(entry.member)
    most = None if request.where.text else request.most_bytes
    found = jobs_of(queue.deployment, members, buried=request.place == "morgue", most=most)
    views = {(view.job.shard, member): view for member, view in found}
    for entry in entries:
        view = views.get((entry.shard, entry.member))
        yield entry, view if view is not None and _belongs(view, request, queue) else None


def _belongs(view: JobView, request: PageRequest, queue: ShardSet) -> bool:
    """Return True if a job belongs on the page; then it has no more bytes than requested."""
    where = request.where
    if not where.holds(view):
        return False
    if not where.text:
        return request.accepts is None or request.accepts(view)
    belongs = _has_text(view, request.accepts or StoredText(where.needles), queue)
    if belongs and request.most_bytes is not None:
        view.cut_off(request.most_bytes)
    return belongs


def _has_text(view: JobView, finds: Accepts, queue: ShardSet) -> bool:
    """Return True if a text is found in a job, or in a payload of a live merged one, which are read one by one."""
    if finds(view):
        return True
    if view.state == "morgue" or not view.job.merged:
        return False

    def has_it(payload: Payload) -> bool:
        view.payloads = (payload,)
        return finds(view)

    found = any(map(has_it, payloads_of(queue, view.id)))
    view.payloads = ()
    return found
