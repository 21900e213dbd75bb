"""Read-only inspection of queues: counts, pages and single jobs. No method changes a job.

A page is one slice of an index, merged over all shards. Its cursor names the last entry read, so that paging through a
million jobs stays stable while jobs come and go.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..errors import InvalidJob
from ..job import Generation, Payload
from ..leases import Lease, leases
from ..records.keys import SHARD_KEYS
from ..records.schedule_frames import unpack_payload
from ..redis.gather import gather
from ..redis.scripts import clear_errors
from .counts import Counts, check_horizon
from .paging import INDEXES, Bound, Entry, Range, pack_cursor, unpack_cursor
from .views import JobView, framed, unpack_graves, unpack_views

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

__all__ = ["INDEXES", "SEARCHED", "Counts", "Inspector", "JobView", "Lease", "Page"]

#: every job once
SEARCHED: Final = ("waiting", "reserved", "morgue")
_PAGE: Final = 250
#: queue, shard, and the further arguments of a script
_Call: TypeAlias = tuple["Queue", int, tuple[Any, ...]]


@dataclass(slots=True)
class Page:
    """Page of jobs; ``cursor`` continues after it, and is empty on the last page."""

    jobs: list[JobView]
    cursor: str = ""


class Inspector:
    """Reader of the queues of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # -- counts ------------------------------------------------------------------------------------------------------

    def counts(self, queue: str) -> Counts:
        """Return the numbers of jobs of a queue by place; all zero for a queue that does not exist."""
        opened = self._broker.known_queue(queue)
        return self._count([opened])[0] if opened else Counts(queue)

    def all_counts(
        self, *, horizon: Sequence[int] = (), by_shard: bool = False, queues: Sequence[Queue] | None = None
    ) -> list[Counts]:
        """Return the counts of every queue, in one round trip for each 16,384 shards (on a cluster: of each node).

        Args:
            horizon: increasing offsets from now, ms, between which :attr:`Counts.backlog` divides the waiting jobs.
            by_shard: also the counts of each shard.
            queues: only these, which the caller has from :meth:`Broker.queues`; None = all, which are read first.

        Raises:
            InvalidJob: the horizon is not valid.
        """
        offsets = check_horizon(horizon)
        return self._count(self._broker.queues() if queues is None else queues, offsets, by_shard=by_shard)

    def count_shards(self, queue: Queue, numbers: Sequence[int]) -> Counts:
        """Return the joint counts of some shards of a queue, whatever their epochs."""
        counts = Counts(queue.name)
        for answer in self._ask_all("stats", [(queue, number, ()) for number in numbers]):
            counts.add(answer)
        return counts

    def count_each_shard(self, queue: Queue, numbers: Sequence[int]) -> list[Counts]:
        """Return the counts of each of these shards."""
        found = []
        for answer in self._ask_all("stats", [(queue, number, ()) for number in numbers]):
            found.append(Counts(queue.name))
            found[-1].add(answer)
        return found

    def _count(self, queues: Sequence[Queue], offsets: tuple[int, ...] = (), *, by_shard: bool = False) -> list[Counts]:
        nothing = (0,) * (len(offsets) + 2)
        counts = {queue.name: Counts(queue.name, backlog=nothing) for queue in queues}
        calls: list[_Call] = [(queue, number, offsets) for queue in queues for number in queue.numbers]
        for (queue, number, _), answer in zip(calls, self._ask_all("stats", calls), strict=True):
            counts[queue.name].add(answer)
            if by_shard:
                own = Counts(queue.name)
                own.add(answer)
                counts[queue.name].shards.append((number, own))
        return list(counts.values())

    # -- the server --------------------------------------------------------------------------------------------------

    def servers(self) -> list[dict[str, Any]]:
        """Return the reply of ``INFO``; on a cluster that of each master, in one round trip each."""
        where = {"target_nodes": "primaries"} if self._broker.connection.cluster else {}
        with clear_errors():
            info: dict[str, Any] = self._broker.client.info(**where)
        return [info] if "redis_version" in info else list(info.values())

    def last_ticks(self, wanted: Sequence[tuple[Queue, str]]) -> list[int | None]:
        """Return :meth:`Queue.last_tick` of many ids, in one round trip (on a cluster: of each node)."""
        if not wanted:
            return []
        pipeline = self._broker.client.pipeline(transaction=False)
        owners = []
        for place, (queue, ident) in enumerate(wanted):
            for number in queue.homes(ident):
                pipeline.hget(queue.shard(number).names["meta"], f"tick:{ident}")
                owners.append(place)
        latest: list[int | None] = [None] * len(wanted)
        with clear_errors():
            for place, tick in zip(owners, pipeline.execute(), strict=True):
                if tick is not None:
                    latest[place] = max(latest[place] or 0, int(tick))
        return latest

    # -- jobs --------------------------------------------------------------------------------------------------------

    def get(self, queue: str, ident: str, *, most_bytes: int | None = None) -> JobView | None:
        """Return the live job of an id, else the one buried last, else None; ``most_bytes`` as for :meth:`page`."""
        opened = self._broker.known_queue(queue)
        if opened is None:
            return None
        for number in opened.homes(ident):
            for live in self._live(opened, number, [ident], most_bytes):
                return live
        return next(iter(self.graves_page(queue, ident, limit=1, most_bytes=most_bytes).jobs), None)

    def get_generation(self, queue: str, ident: str, generation: Generation) -> JobView | None:
        """Return one certain generation of an id, live, gated or buried; None if Redis no longer has it."""
        view = self.get(queue, ident)
        if view is not None and view.state != "morgue":
            place = view.place_of(generation)
            if not place and generation.digest and (opened := self._broker.known_queue(queue)) is not None:
                place = opened.locate(ident, generation)
            if place:
                return view.behind() if place == "gated" else view
        keys = set(generation.keys)
        return next((grave for grave in self.graves(queue, ident) if not keys.isdisjoint(grave.keys)), None)

    def graves(self, queue: str, ident: str, *, most_bytes: int | None = None) -> list[JobView]:
        """Return all records of an id in the morgue (up to 250), the one that was buried last first.

        Args:
            most_bytes: see :meth:`page`.
        """
        return self.graves_page(queue, ident, most_bytes=most_bytes).jobs

    def graves_page(
        self,
        queue: str,
        ident: str,
        *,
        cursor: str = "",
        limit: int = _PAGE,
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
        opened = self._broker.known_queue(queue)
        if opened is None:
            return Page([])
        left = [entry for entry in self._burials(opened, ident) if after is None or entry < after]
        last = left[min(limit, len(left)) - 1] if left else None
        found: list[JobView] = []
        size = 0
        for entry, view in self._read_graves(opened, left[:limit], most_bytes):
            found.append(view)
            size += view.bytes_here
            if size >= page_bytes:
                last = entry
                break
        return Page(found, pack_cursor(last) if last is not None and last is not left[-1] else "")

    def _burials(self, queue: Queue, ident: str) -> list[Entry]:
        """Return the entries of an id's records, the one that was buried last first."""
        calls: list[_Call] = [(queue, number, (ident.encode(),)) for number in queue.homes(ident)]
        found = [
            Entry(float(text), name, number, text.decode())
            for (_, number, _), answer in zip(calls, self._ask_all("burials", calls), strict=True)
            for name, text in zip(answer[::2], answer[1::2], strict=True)
        ]
        return sorted(found, reverse=True)

    def _read_graves(self, queue: Queue, entries: Sequence[Entry], most: int | None) -> Iterator[tuple[Entry, JobView]]:
        """Yield the records that still exist, read in pieces on demand."""
        for number, some in groupby(entries, key=lambda entry: entry.shard):
            mine = {entry.member: entry for entry in some}
            for view in self._buried(queue, number, list(mine), most):
                yield mine[_grave_of(view)], view

    def leases(self, wanted: Sequence[tuple[Queue, str]]) -> list[Lease | None]:
        """Return the lease of each of these jobs, or None, in one round trip (on a cluster: of each node).

        Args:
            wanted: queues of this broker, and ids.
        """
        return leases(self._broker, wanted)

    def peek(self, queue: str, limit: int = 10) -> list[JobView]:
        """Return the next jobs, in the order of their due times."""
        return self.page(queue, "waiting", limit=limit).jobs

    def payloads(self, queue: str, ident: str) -> Iterator[Payload]:
        """Yield the payloads of a live merged job in the order of their scores, including those of a running attempt.

        They are read in pieces, so for a job that changes meanwhile the result is not an atomic snapshot.
        """
        opened = self._broker.known_queue(queue)
        if opened is None:
            return
        for number in opened.homes(ident):
            after, some = b"", False
            while True:
                after, frame = self._ask(opened, number, "payloads", ident.encode(), after, _PAGE)
                for record in framed(frame):
                    some = True
                    yield unpack_payload(record)
                if not after:
                    break
            if some:
                return

    def search(
        self,
        queue: str,
        wanted: str | Callable[[JobView], bool],
        *,
        places: Iterable[str] = SEARCHED,
        limit: int | None = None,
    ) -> Iterator[JobView]:
        """Yield the jobs of a queue that match; see :mod:`.search`.

        Args:
            wanted: a text to find, in upper or lower case, in the id, the task's name, the arguments or payloads as
                they are stored (canonical JSON), the context or the last error; or a function that returns True for a
                match.
            places: where to search: waiting, reserved, failed (a part of waiting), morgue.
            limit: maximum number of jobs.

        Raises:
            InvalidJob: an empty text or an unknown place.
        """
        from .search import search

        return search(self._broker, queue, wanted, tuple(places), limit)

    def views(
        self, queue: Queue, number: int, place: str, members: Sequence[bytes], most_bytes: int | None = None
    ) -> Iterator[JobView]:
        """Yield the jobs of these members of an index of ``place`` in a shard, as far as they still exist.

        They are read on demand, in pieces of little more than a MiB.
        """
        return self._views(queue, number, place, members, most_bytes)

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
    ) -> Page:
        """Return a page of jobs.

        Args:
            place: waiting (delayed and ready), reserved, failed or morgue.
            by: the order: due (waiting), deadline (reserved), updated or failures (failed), updated or id (morgue); the
                first of these when empty.
            cursor: ``Page.cursor`` of the page before, which had the same order and the same range.
            limit: 1 … 250.
            reverse: from the end.
            low, high: the range in the order, both ends included: Unix ms, a number of failures, or an id; None = no
                bound.
            most_bytes: larger arguments are left out (:attr:`JobView.cut`).

        Raises:
            InvalidJob: an unknown place, order or cursor, or a bound that does not fit the order.
        """
        orders = INDEXES.get(place)
        if orders is None:
            raise InvalidJob(f"{place!r} is no place to page through; use one of {', '.join(INDEXES)}")
        by = by or next(iter(orders))
        if by not in orders:
            raise InvalidJob(f"jobs in {place!r} are not ordered by {by!r}; use one of {', '.join(orders)}")
        wanted, after = Range(by, low, high), unpack_cursor(cursor)
        opened = self._broker.known_queue(queue)
        if opened is None:
            return Page([])
        limit = max(1, min(limit, _PAGE))
        # One entry more than requested shows if there is a next page.
        entries = self._entries(opened, orders[by], after, limit + 1, reverse, wanted)
        views = self._view_entries(opened, place, entries[:limit], most_bytes)
        return Page(views, pack_cursor(entries[limit - 1]) if len(entries) > limit else "")

    def _entries(
        self, queue: Queue, names: tuple[str, ...], after: Entry | None, limit: int, reverse: bool, wanted: Range
    ) -> list[Entry]:
        """Return the first entries of a range after the cursor, over all shards and all indexes of the place.

        An id lies in one shard and one index only, so (score, member) names an entry of the whole queue.
        """
        score, member = (after.text, after.member) if after else ("", b"")
        range_ = wanted.arguments()
        calls: list[_Call] = [
            (queue, number, (SHARD_KEYS.index(name) + 1, b"1" if reverse else b"0", limit, score, member, *range_))
            for number in queue.numbers
            for name in names
        ]
        found: list[Entry] = []
        for (_, number, _), answer in zip(calls, self._ask_all("page", calls), strict=True):
            for entry, text in zip(answer[::2], answer[1::2], strict=True):
                found.append(Entry(float(text), entry, number, text.decode()))
        pick = heapq.nlargest if reverse else heapq.nsmallest
        return pick(limit, found)

    def _view_entries(self, queue: Queue, place: str, entries: Sequence[Entry], most: int | None) -> list[JobView]:
        members: dict[int, list[bytes]] = {}
        for entry in entries:
            members.setdefault(entry.shard, []).append(entry.member)
        first = self._first_replies(queue, place, members, most)
        views: dict[tuple[int, bytes], JobView] = {}
        for number, mine in members.items():
            for view in self._views(queue, number, place, mine, most, first.get(number)):
                views[number, _grave_of(view) if place == "morgue" else view.id.encode()] = view
        # Jobs that were settled between the two reads are left out; the cursor advances past them all the same.
        return [views[place_of] for entry in entries if (place_of := (entry.shard, entry.member)) in views]

    def _first_replies(
        self, queue: Queue, place: str, members: dict[int, list[bytes]], most: int | None
    ) -> dict[int, bytes]:
        """Return the first reply of each shard in one round trip; in most cases it is the complete one."""
        script, arguments = ("graves", _graves_arguments) if place == "morgue" else ("view", _view_arguments)
        calls: list[_Call] = [(queue, number, arguments(mine, most)) for number, mine in members.items()]
        return dict(zip(members, self._ask_all(script, calls), strict=True)) if calls else {}

    def _views(
        self,
        queue: Queue,
        number: int,
        place: str,
        members: Sequence[bytes],
        most: int | None,
        reply: bytes | None = None,
    ) -> Iterator[JobView]:
        if place == "morgue":
            return self._buried(queue, number, members, most, reply)
        return self._live(queue, number, [member.decode() for member in members], most, reply)

    def _live(
        self, queue: Queue, number: int, idents: Sequence[str], most: int | None, reply: bytes | None = None
    ) -> Iterator[JobView]:
        while idents:
            if reply is None:
                reply = self._ask(queue, number, "view", *_view_arguments([ident.encode() for ident in idents], most))
            views = unpack_views(queue.name, number, idents, reply)
            idents, reply = idents[len(views) :], None
            yield from filter(None, views)

    def _buried(
        self, queue: Queue, number: int, graves: Sequence[bytes], most: int | None, reply: bytes | None = None
    ) -> Iterator[JobView]:
        while graves:
            if reply is None:
                reply = self._ask(queue, number, "graves", *_graves_arguments(graves, most))
            views = list(unpack_graves(queue.name, number, reply))
            yield from views
            # Records that are gone leave no trace in the reply: more may follow after its last one.
            graves, reply = graves[graves.index(_grave_of(views[-1])) + 1 :] if views else (), None

    def _ask(self, queue: Queue, number: int, script: str, *args: object) -> Any:
        shard = queue.shard(number)
        return self._broker.scripts.call(script, shard.keys, b"", shard.constants, *args)

    def _ask_all(self, script: str, calls: Sequence[_Call]) -> list[Any]:
        """Return the replies of many shards, in one round trip for each node."""
        return gather(self._broker, script, [(queue.shard(number), args) for queue, number, args in calls])


def _most(most_bytes: int | None) -> bytes:
    return b"" if most_bytes is None else b"%d" % most_bytes


def _view_arguments(idents: Sequence[bytes], most: int | None) -> tuple[bytes, ...]:
    return b"".join(bytes((len(ident),)) + ident for ident in idents), _most(most)


def _graves_arguments(graves: Sequence[bytes], most: int | None) -> tuple[bytes, ...]:
    return b"".join(len(grave).to_bytes(2, "little") + grave for grave in graves), _most(most)


def _grave_of(view: JobView) -> bytes:
    return view.id.encode() + b"\0" + view.job.key
