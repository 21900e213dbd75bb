"""Reading of jobs in Redis: entries of the indexes, the jobs behind them, and pages of them with a cursor.

Nothing here changes a job. A page is one slice of an order of a place, merged over all shards and classes. Its cursor
names the last entry read, so that paging through a million jobs stays stable while jobs come and go. Each call of
``lua/read.lua`` reads at most 250 entries, or jobs of little more than a MiB.
"""

from __future__ import annotations

import base64
import heapq
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from typing import Any, Final

from .counts import Counts, check_horizon, count_each_shard, count_shards, read_stats
from .deployment import Deployment
from .errors import InvalidJob, QueueUnavailable
from .inputs import check_number, short
from .job import Generation, Payload
from .job_filter import EVERY_JOB, LARGEST, Bound, JobFilter
from .job_view import JobView, Reply
from .records.frames import CHUNK, encode_id, pack, pack_generation, unpack, unpack_payload
from .records.keys import DUE_KEYS, SHARD_KEYS
from .redis.scripts import Call, clear_errors
from .registry import QueueRegistry, ShardSet
from .resharding import visit

#: returns True for a job that belongs on the page
Accepts = Callable[[JobView], bool]
#: jobs of a page, at most
_MOST: Final = 250
#: jobs that are read at once where all their arguments are needed, which may be large
_AT_ONCE_COMPLETE: Final = 50
#: place -> by -> the indexes of the place in this order
INDEXES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "waiting": {"due": DUE_KEYS},
    "reserved": {"deadline": ("lease",)},
    "failed": {"updated": ("failed",), "failures": ("failures",)},
    "morgue": {"updated": ("morgue",), "id": ("morgue_id",)},
}
#: places in which every job is once
SEARCHED: Final = ("waiting", "reserved", "morgue")
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


def bounds_of(by: str, *ranges: tuple[Bound, Bound]) -> dict[str, Any]:
    """Return the intersection of ranges in an order as ``read.lua`` takes it.

    Args:
        by: the order.
        ranges: first and last value of each, both included: Unix ms, a number of failures, or an id; None = no bound.

    Raises:
        InvalidJob: a bound that does not fit the order.
    """
    for bound in chain.from_iterable(ranges):
        if bound is not None and by != "id":
            check_number(f"a bound of the order {by!r}", bound, -LARGEST, LARGEST, unit="")
        elif bound is not None and not _is_text(bound):
            raise InvalidJob(f"a bound of the order {by!r} is an id, not {short(bound)}")
    low: Any = max((low for low, _ in ranges if low is not None), default=None)
    high: Any = min((high for _, high in ranges if high is not None), default=None)
    if by == "id":
        # The members are id, \0 and key; no id contains a \0.
        low, high = low is not None and b"(%b\0" % low.encode(), high is not None and b"(%b\1" % high.encode()
        return {"low": low, "high": high, "by_member": True}
    unit = 1000 if by in _PLACED else 1
    return {
        "low": low is not None and b"(%d" % (math.ceil(low) * unit),
        "high": high is not None and b"(%d" % ((math.floor(high) + 1) * unit),
    }


def _is_text(bound: object) -> bool:
    return isinstance(bound, str) and not any("\ud800" <= one <= "\udfff" for one in bound)


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


# -- entries and jobs ------------------------------------------------------------------------------------------------


def read(deployment: Deployment, queue: str, shard: int, **wanted: Any) -> bytes:
    """Return the reply of ``read.lua`` for a shard; see there for what can be wanted."""
    place = deployment.shard(queue, shard)
    reply: bytes = deployment.scripts.call("read", place.keys, b"", place.constants, pack(wanted))
    return reply


def _read_many(
    deployment: Deployment, requests: Sequence[tuple[str, int, Mapping[str, Any]]], *, partial: bool = False
) -> list[Any]:
    """Return the replies of ``read.lua`` for many shards; see :meth:`.Scripts.call_many`."""
    calls = [Call.on_shard("read", deployment.shard(queue, number), pack(wanted)) for queue, number, wanted in requests]
    return deployment.scripts.call_many(calls, partial=partial)


def unpack_entries(frame: bytes, shard: int) -> tuple[bool, list[IndexEntry]]:
    """Return whether entries of the range are left, and those of a reply with names only, in ascending order."""
    more, found = unpack(frame)
    return more, [
        IndexEntry(float(text), member, shard, text.decode())
        for member, text in zip(found[::2], found[1::2], strict=True)
        if text
    ]


def walk(
    queue: ShardSet,
    place: str,
    by: str,
    *ranges: tuple[Bound, Bound],
    after: IndexEntry | None = None,
    reverse: bool = False,
    at_once: int = CHUNK,
    unreachable: set[int] | None = None,
) -> Iterator[IndexEntry]:
    """Return an iterator over the entries of a place, in order, merged over all shards and indexes.

    An id lies in one shard and one index only, so (score, member) names an entry of the whole queue. Jobs that come
    and go meanwhile do not disturb the others.

    Args:
        queue: the queue.
        place, by: keys of :data:`INDEXES`.
        ranges: only entries that lie in all of them, see :func:`bounds_of`.
        after: the entry behind which to begin; it may be gone.
        reverse: from the end.
        at_once: entries of an index that are read at once.
        unreachable: receives the numbers of shards that did not answer; None = that is an error.
    """
    wanted = {"names": True, "limit": at_once, "reverse": reverse, **bounds_of(by, *ranges)}
    if after is not None:
        wanted["after"] = (after.text, after.member)
    requests = [
        (queue.name, number, {**wanted, "index": SHARD_KEYS.index(index) + 1})
        for number in queue.numbers
        for index in INDEXES[place][by]
    ]
    walks = []
    frames = _read_many(queue.deployment, requests, partial=unreachable is not None)
    for (_, number, request), frame in zip(requests, frames, strict=True):
        if unreachable is not None and isinstance(frame, QueueUnavailable):
            unreachable.add(number)
        else:
            walks.append(_walk_index(queue, number, request, frame))
    return heapq.merge(*walks, reverse=reverse)


def _walk_index(queue: ShardSet, number: int, request: Mapping[str, Any], frame: bytes) -> Iterator[IndexEntry]:
    while True:
        more, entries = unpack_entries(frame, number)
        if request["reverse"]:
            entries.reverse()
        yield from entries
        if not more:
            return
        frame = read(
            queue.deployment, queue.name, number, **{**request, "after": (entries[-1].text, entries[-1].member)}
        )


def burials(queue: ShardSet, ident: str) -> list[IndexEntry]:
    """Return the entries of an id's records in the morgue, up to 250 of a shard, the last burial first."""
    wanted = {"index": SHARD_KEYS.index("morgue_id") + 1, "limit": CHUNK, "names": True, "buried_at": True}
    requests = [(queue.name, number, wanted | bounds_of("id", (ident, ident))) for number in queue.shards_of(ident)]
    frames = zip(requests, _read_many(queue.deployment, requests), strict=True)
    return sorted(
        (entry for (_, number, _), frame in frames for entry in unpack_entries(frame, number)[1]), reverse=True
    )


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
    rests = {place: mine for place, mine in members.items() if mine}
    requests = [(*place, {"members": mine, "buried": buried, "most": most}) for place, mine in rests.items()]
    for ((queue, number), rest), frame in zip(rests.items(), _read_many(deployment, requests), strict=True):
        while True:
            reply = Reply(queue, number, frame, buried=buried)
            yield from ((member, view) for member, view in zip(reply.members, reply.views(), strict=True) if view.state)
            rest = rest[reply.looked_at :]
            if not rest:
                break
            frame = read(deployment, queue, number, members=rest, buried=buried, most=most)


def payloads_of(queue: ShardSet, ident: str) -> Iterator[Payload]:
    """Yield the payloads of a live merged job; see :meth:`Inspector.payloads`."""
    for number in queue.shards_of(ident):
        after, some = b"", False
        while True:
            after, records = queue.call("payloads", number, ident.encode(), after, CHUNK, request=b"")
            yield from map(unpack_payload, records)
            some = some or bool(records)
            if not after:
                break
        if some:
            return


def locate(queue: ShardSet, ident: str, generation: Generation) -> str:
    """Return the state of a job: live (it waits or runs), gated (behind an attempt of another one), or ""."""
    entry = pack((encode_id(ident), *pack_generation(generation)))

    def ask(number: int) -> bytes | None:
        letter: bytes = queue.call("locate", number, entry, request=b"")
        return None if letter == b"v" else letter

    return {b"l": "live", b"g": "gated"}.get(visit(queue, ident, ask) or b"", "")


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


@dataclass(frozen=True, slots=True)
class JobQuery:
    """Conditions of a page or a bulk operation; see :meth:`Inspector.page`."""

    place: str
    where: JobFilter
    accepts: Accepts | None = None
    most_bytes: int | None = None

    @property
    def matches_all(self) -> bool:
        """True if every job of the place meets the conditions."""
        return self.accepts is None and self.where.is_empty

    @property
    def at_once(self) -> int:
        """Number of jobs to read in one call."""
        return _AT_ONCE_COMPLETE if self.where.text else CHUNK

    def matching(self, queue: ShardSet, entries: Sequence[IndexEntry]) -> Iterator[tuple[IndexEntry, JobView | None]]:
        """Yield each entry with its job; None if the job does not match, or was settled since its entry was read."""
        members: dict[tuple[str, int], list[bytes]] = {}
        for entry in entries:
            members.setdefault((queue.name, entry.shard), []).append(entry.member)
        most = None if self.where.text else self.most_bytes
        found = jobs_of(queue.deployment, members, buried=self.place == "morgue", most=most)
        views = {(view.job.shard, member): view for member, view in found}
        for entry in entries:
            view = views.get((entry.shard, entry.member))
            yield entry, view if view is not None and self._matches(view, queue) else None

    def _matches(self, view: JobView, queue: ShardSet) -> bool:
        """Return True if a job matches; then it has no more bytes than requested."""
        if not self.where.holds(view):
            return False
        if not self.where.text:
            return self.accepts is None or self.accepts(view)
        has_text = _has_text(view, self.accepts or self.where.finds, queue)
        if has_text and self.most_bytes is not None:
            view.cut_off(self.most_bytes)
        return has_text


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


# -- the reader of a broker ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease of a job: its worker, and its end (Unix ms on Redis's clock) unless it is renewed."""

    worker: str
    ends_ms: int


class Inspector:
    """Reader of the queues of a broker."""

    def __init__(self, registry: QueueRegistry[ShardSet]) -> None:
        self._registry = registry
        self._deployment = registry.deployment

    # -- counts ------------------------------------------------------------------------------------------------------

    def counts(self, queue: str) -> Counts:
        """Return the numbers of jobs of a queue by place; all zero for a queue that does not exist."""
        existing = self._registry.known_queue(queue)
        return self.all_counts(queues=[existing])[0] if existing else Counts(queue)

    def all_counts(
        self,
        *,
        horizon: Sequence[int] = (),
        by_shard: bool = False,
        queues: Sequence[ShardSet] | None = None,
        partial: bool = False,
    ) -> list[Counts]:
        """Return the counts of every queue, in one round trip for each 16,384 shards (on a cluster: of each node).

        Args:
            horizon: increasing offsets from now, ms, between which :attr:`Counts.backlog` divides the waiting jobs.
            by_shard: also the counts of each shard.
            queues: only these, which the caller has from :meth:`Broker.queues`; None = all, which are read first.
            partial: on a cluster, leave out shards of nodes that do not answer (:attr:`Counts.unreachable`), instead of
                raising QueueUnavailable.

        Raises:
            InvalidJob: the horizon is not valid.
        """
        offsets = check_horizon(horizon)
        if queues is None:
            queues = self._registry.reachable_queues() if partial else self._registry.queues()
        counts = {queue.name: Counts(queue.name, backlog=(0,) * (len(offsets) + 2)) for queue in queues}
        places = [(queue, number) for queue in queues for number in queue.numbers]
        answers = read_stats(self._deployment, places, offsets, partial=partial)
        for (queue, number), answer in zip(places, answers, strict=True):
            if isinstance(answer, QueueUnavailable):
                counts[queue.name].unreachable.append(number)
                continue
            counts[queue.name].add(answer)
            if by_shard:
                counts[queue.name].shards.append((number, Counts.joint(queue.name, [answer])))
        return list(counts.values())

    count_shards = staticmethod(count_shards)
    count_each_shard = staticmethod(count_each_shard)

    # -- the server --------------------------------------------------------------------------------------------------

    def servers(self) -> list[dict[str, Any]]:
        """Return the reply of ``INFO``; on a cluster that of each master that answers, in one round trip each.

        Raises:
            QueueUnavailable: none answers.
        """
        with clear_errors():
            return list(self._deployment.connection.replies(self._deployment.client.info).values())

    def last_ticks(self, ids: Sequence[tuple[ShardSet, str]]) -> list[int | None]:
        """Return the last tick, Unix ms, that :meth:`.Queue.schedule_tick` fired for each id.

        It takes one round trip (on a cluster: of each node).
        """
        if not ids:
            return []
        pipeline = self._deployment.client.pipeline(transaction=False)
        owners = []
        for place, (queue, ident) in enumerate(ids):
            for number in queue.shards_of(ident):
                pipeline.hget(queue.shard(number).names["meta"], f"tick:{ident}")
                owners.append(place)
        latest: list[int | None] = [None] * len(ids)
        with clear_errors():
            for place, tick in zip(owners, pipeline.execute(), strict=True):
                if tick is not None:
                    latest[place] = max(latest[place] or 0, int(tick))
        return latest

    # -- jobs --------------------------------------------------------------------------------------------------------

    def get(self, queue: str, ident: str, *, most_bytes: int | None = None) -> JobView | None:
        """Return the live job of an id, else the one buried last, else None; ``most_bytes`` as for :meth:`page`."""
        existing = self._registry.known_queue(queue)
        if existing is None:
            return None
        members = {(queue, number): [ident.encode()] for number in existing.shards_of(ident)}
        for _, view in jobs_of(self._deployment, members, most=most_bytes):
            return view
        return next(iter(self.graves_page(queue, ident, limit=1, most_bytes=most_bytes).jobs), None)

    def get_generation(self, queue: str, ident: str, generation: Generation) -> JobView | None:
        """Return one certain generation of an id, live, gated or buried; None if Redis no longer has it."""
        view = self.get(queue, ident)
        if view is not None and view.state != "morgue":
            place = view.place_of(generation)
            if not place and generation.digest and (existing := self._registry.known_queue(queue)) is not None:
                place = locate(existing, ident, generation)
            if place:
                return view.behind() if place == "gated" else view
        keys = set(generation.keys)
        return next((grave for grave in self.graves(queue, ident) if not keys.isdisjoint(grave.keys)), None)

    def graves(self, queue: str, ident: str, *, most_bytes: int | None = None) -> list[JobView]:
        """Return the records of an id in the morgue (up to 250), last burial first; ``most_bytes`` as for `page`."""
        return self.graves_page(queue, ident, most_bytes=most_bytes).jobs

    def graves_page(
        self,
        queue: str,
        ident: str,
        *,
        cursor: str = "",
        limit: int = _MOST,
        most_bytes: int | None = None,
        page_bytes: float = math.inf,
    ) -> Page:
        """Return a page of an id's records in the morgue.

        Args:
            cursor: ``Page.cursor`` of the page before.
            limit: 1 … 250.
            most_bytes: see :meth:`page`.
            page_bytes: the page ends with the record that reaches this size.

        Raises:
            InvalidJob: the cursor is not valid.
        """
        after = unpack_cursor(cursor)
        existing = self._registry.known_queue(queue)
        left = [] if existing is None else [one for one in burials(existing, ident) if after is None or one < after]
        views: list[JobView] = []
        last = left[min(limit, len(left)) - 1] if left else None
        for number, entries in groupby(left[:limit], key=lambda entry: entry.shard):
            mine = {entry.member: entry for entry in entries}
            for member, view in jobs_of(self._deployment, {(queue, number): list(mine)}, buried=True, most=most_bytes):
                views.append(view)
                if sum(one.bytes_here for one in views) >= page_bytes:
                    return Page(views, "" if mine[member] is left[-1] else pack_cursor(mine[member]), len(views))
        return Page(views, "" if last is None or last is left[-1] else pack_cursor(last), len(views))

    def leases(self, jobs: Iterable[tuple[ShardSet, str]]) -> dict[tuple[str, str], Lease]:
        """Return (queue, id) → lease of those jobs that are held, in one round trip (on a cluster: of each node).

        Args:
            jobs: queues of this broker, and ids.
        """
        members: dict[tuple[str, int], list[bytes]] = {}
        for queue, ident in jobs:
            for number in queue.shards_of(ident):
                members.setdefault((queue.name, number), []).append(ident.encode())
        return {
            (view.job.queue, view.id): Lease(view.job.worker, view.deadline_ms)
            for _, view in jobs_of(self._deployment, members, most=0)
            if view.deadline_ms is not None
        }

    def peek(self, queue: str, limit: int = 10) -> list[JobView]:
        """Return the next jobs, in the order of their due times."""
        return self.page(queue, "waiting", limit=limit).jobs

    def payloads(self, queue: str, ident: str) -> Iterator[Payload]:
        """Yield the payloads of a live merged job in the order of their scores, including those of a running attempt.

        They are read in pieces, so for a job that changes meanwhile the result is not an atomic snapshot.
        """
        existing = self._registry.known_queue(queue)
        return iter(()) if existing is None else payloads_of(existing, ident)

    def page(
        self,
        queue: str,
        place: str,
        by: str = "",
        *,
        cursor: str = "",
        limit: int = 100,
        reverse: bool = False,
        low: Bound = None,
        high: Bound = None,
        most_bytes: int | None = None,
        where: JobFilter | None = None,
        accepts: Accepts | None = None,
        seconds: float = math.inf,
        partial: bool = False,
    ) -> Page:
        """Return a page of jobs.

        Args:
            place: waiting (delayed and ready), reserved, failed or morgue.
            by: the order: due (waiting), deadline (reserved), updated or failures (failed), updated or id (morgue).
                Empty = the one whose index excludes most jobs of ``where``, else the first of these.
            cursor: ``Page.cursor`` of the page before, which had the same order, range and conditions.
            limit: 1 … 250.
            reverse: from the end.
            low, high: the range in the order, both ends included: Unix ms, a number of failures, or an id; None = no
                bound.
            most_bytes: larger arguments are left out (:attr:`JobView.cut`).
            where: conditions. What the order does not cover is applied to the jobs that are read.
            accepts: further condition, which also takes the place of the search for the text of ``where``.
            seconds: a page with conditions ends after this time, with the jobs found until then.
            partial: on a cluster, leave out shards of nodes that do not answer (:attr:`Page.unreachable`).

        Raises:
            InvalidJob: an unknown place, order or cursor, or a bound that does not fit the order.
        """
        orders = INDEXES.get(place)
        if orders is None:
            raise InvalidJob(f"{place!r} is no place to page through; use one of {', '.join(INDEXES)}")
        where = where or EVERY_JOB
        by = by or where.best_order(place, tuple(orders))
        if by not in orders:
            raise InvalidJob(f"jobs in {place!r} are not ordered by {by!r}; use one of {', '.join(orders)}")
        ranges, entry = [(low, high), where.bounds(by)], unpack_cursor(cursor)
        bounds_of(by, *ranges)  # before the queue is looked for
        existing = self._registry.reachable_queue(queue) if partial else self._registry.known_queue(queue)
        if existing is None:
            return Page([])
        query, limit = JobQuery(place, where, accepts, most_bytes), max(1, min(limit, _MOST))
        unreachable: set[int] | None = set() if partial else None
        pending = walk(
            existing,
            place,
            by,
            *ranges,
            after=entry,
            reverse=reverse,
            at_once=limit + 1 if query.matches_all else CHUNK,
            unreachable=unreachable,
        )
        page = Page([], unreachable=len(unreachable or ()))
        _fill(page, existing, query, pending, limit, 0 if query.matches_all else seconds)
        return page


def _fill(
    page: Page, queue: ShardSet, query: JobQuery, pending: Iterator[IndexEntry], limit: int, seconds: float
) -> None:
    """Add the matching jobs of entries to a page, until it is full or the time is over.

    One entry more than needed is read each time, because it shows if the index ends.
    """
    step, give_up = limit if query.matches_all else query.at_once, time.monotonic() + seconds
    entries = list(islice(pending, step + 1))
    while entries:
        chunk, entries = entries[:step], entries[step:]
        for entry, view in query.matching(queue, chunk):
            page.examined += 1
            if view is not None:
                page.jobs.append(view)
            is_last = entry is chunk[-1]
            if len(page.jobs) == limit or (is_last and time.monotonic() >= give_up):
                page.cursor = "" if is_last and not entries else pack_cursor(entry)
                return
        entries += islice(pending, step)
