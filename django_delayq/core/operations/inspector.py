"""Read-only inspection of queues: counts, pages and single jobs. No method changes a job.

A page is one slice of an index, merged over all shards. Its cursor names the last entry read, so that paging through a
million jobs stays stable while jobs come and go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import InvalidJob, QueueUnavailable
from ..job import Generation, Payload
from ..leases import Lease, leases
from ..records.schedule_frames import unpack_payload
from ..redis.connection import PARTIAL_SECONDS
from ..redis.faults import REDIS_ERRORS
from ..redis.probe import by_server
from ..redis.scripts import clear_errors
from .counts import Counts, check_horizon
from .job_filter import JobFilter
from .job_reader import JobReader
from .pages import Accepts, Page, PageRequest, read_page
from .paging import INDEXES, Bound, Range, pack_cursor, unpack_cursor
from .views import JobView, framed

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

__all__ = ["INDEXES", "SEARCHED", "Counts", "Inspector", "JobView", "Lease", "Page"]

#: every job once
SEARCHED: Final = ("waiting", "reserved", "morgue")
_PAGE: Final = 250


class Inspector:
    """Reader of the queues of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reader = JobReader(broker)

    # -- counts ------------------------------------------------------------------------------------------------------

    def counts(self, queue: str) -> Counts:
        """Return the numbers of jobs of a queue by place; all zero for a queue that does not exist."""
        existing = self._broker.known_queue(queue)
        return self._count([existing])[0] if existing else Counts(queue)

    def all_counts(
        self,
        *,
        horizon: Sequence[int] = (),
        by_shard: bool = False,
        queues: Sequence[Queue] | None = None,
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
            queues = self._broker.reachable_queues() if partial else self._broker.queues()
        return self._count(queues, offsets, by_shard=by_shard, partial=partial)

    def count_shards(self, queue: Queue, numbers: Sequence[int]) -> Counts:
        """Return the joint counts of some shards of a queue, whatever their epochs."""
        return Counts.joint(queue.name, self._reader.stats([(queue, number) for number in numbers]))

    def count_each_shard(self, queue: Queue, numbers: Sequence[int]) -> list[Counts]:
        """Return the counts of each of these shards."""
        answers = self._reader.stats([(queue, number) for number in numbers])
        return [Counts.joint(queue.name, [answer]) for answer in answers]

    def _count(
        self, queues: Sequence[Queue], offsets: tuple[int, ...] = (), *, by_shard: bool = False, partial: bool = False
    ) -> list[Counts]:
        nothing = (0,) * (len(offsets) + 2)
        counts = {queue.name: Counts(queue.name, backlog=nothing) for queue in queues}
        places = [(queue, number) for queue in queues for number in queue.numbers]
        answers = self._reader.stats(places, offsets, partial=partial)
        for (queue, number), answer in zip(places, answers, strict=True):
            if isinstance(answer, QueueUnavailable):
                counts[queue.name].unreachable.append(number)
                continue
            counts[queue.name].add(answer)
            if by_shard:
                counts[queue.name].shards.append((number, Counts.joint(queue.name, [answer])))
        return list(counts.values())

    # -- the server --------------------------------------------------------------------------------------------------

    def servers(self) -> list[dict[str, Any]]:
        """Return the reply of ``INFO``; on a cluster that of each master that answers, in one round trip each.

        Raises:
            QueueUnavailable: none answers.
        """
        with clear_errors():
            client: Any = self._broker.client
            if not self._broker.connection.cluster:
                return [client.info()]
            infos, failure = [], None
            for node in client.get_primaries():
                try:
                    with self._broker.connection.limited(PARTIAL_SECONDS):
                        infos += by_server(client.info(target_nodes=node))
                except REDIS_ERRORS as error:
                    failure = error
            if failure is not None and not infos:
                raise failure
        return infos

    def last_ticks(self, ids: Sequence[tuple[Queue, str]]) -> list[int | None]:
        """Return :meth:`Queue.last_tick` of many ids, in one round trip (on a cluster: of each node)."""
        if not ids:
            return []
        pipeline = self._broker.client.pipeline(transaction=False)
        owners = []
        for place, (queue, ident) in enumerate(ids):
            for number in queue.homes(ident):
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
        existing = self._broker.known_queue(queue)
        if existing is None:
            return None
        for number in existing.homes(ident):
            for live in self._reader.live(existing, number, [ident], most_bytes):
                return live
        return next(iter(self.graves_page(queue, ident, limit=1, most_bytes=most_bytes).jobs), None)

    def get_generation(self, queue: str, ident: str, generation: Generation) -> JobView | None:
        """Return one certain generation of an id, live, gated or buried; None if Redis no longer has it."""
        view = self.get(queue, ident)
        if view is not None and view.state != "morgue":
            place = view.place_of(generation)
            if not place and generation.digest and (existing := self._broker.known_queue(queue)) is not None:
                place = existing.locate(ident, generation)
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
        existing = self._broker.known_queue(queue)
        if existing is None:
            return Page([])
        left = [entry for entry in self._reader.burials(existing, ident) if after is None or entry < after]
        last = left[min(limit, len(left)) - 1] if left else None
        views: list[JobView] = []
        size = 0
        for entry, view in self._reader.records(existing, left[:limit], most_bytes):
            views.append(view)
            size += view.bytes_here
            if size >= page_bytes:
                last = entry
                break
        cursor = pack_cursor(last) if last is not None and last is not left[-1] else ""
        return Page(views, cursor, len(views))

    def leases(self, jobs: Sequence[tuple[Queue, str]]) -> list[Lease | None]:
        """Return the lease of each of these jobs, or None, in one round trip (on a cluster: of each node).

        Args:
            jobs: queues of this broker, and ids.
        """
        return leases(self._broker, jobs)

    def peek(self, queue: str, limit: int = 10) -> list[JobView]:
        """Return the next jobs, in the order of their due times."""
        return self.page(queue, "waiting", limit=limit).jobs

    def payloads(self, queue: str, ident: str) -> Iterator[Payload]:
        """Yield the payloads of a live merged job in the order of their scores, including those of a running attempt.

        They are read in pieces, so for a job that changes meanwhile the result is not an atomic snapshot.
        """
        existing = self._broker.known_queue(queue)
        if existing is None:
            return
        for number in existing.homes(ident):
            after, some = b"", False
            while True:
                after, frame = self._reader.call(existing, number, "payloads", ident.encode(), after, _PAGE)
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
        condition: str | Callable[[JobView], bool],
        *,
        places: Iterable[str] = SEARCHED,
        limit: int | None = None,
    ) -> Iterator[JobView]:
        """Yield the jobs of a queue that match; see :mod:`.search`.

        Args:
            condition: a text to find, in upper or lower case, in the id, the task's name, the arguments or payloads as
                they are stored (canonical JSON), the context or the last error; or a function that returns True for a
                match.
            places: where to search: waiting, reserved, failed (a part of waiting), morgue.
            limit: maximum number of jobs.

        Raises:
            InvalidJob: an empty text or an unknown place.
        """
        from .search import search

        return search(self._broker, queue, condition, tuple(places), limit)

    def views(
        self, queue: Queue, number: int, place: str, members: Sequence[bytes], most_bytes: int | None = None
    ) -> Iterator[JobView]:
        """Yield the jobs of these members of an index of ``place`` in a shard, as far as they still exist.

        They are read on demand, in pieces of little more than a MiB.
        """
        return self._reader.members(queue, number, place, members, most_bytes)

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
        where = where or JobFilter()
        by = by or where.best_order(place, tuple(orders))
        if by not in orders:
            raise InvalidJob(f"jobs in {place!r} are not ordered by {by!r}; use one of {', '.join(orders)}")
        request = PageRequest(
            place=place,
            indexes=orders[by],
            bounds=Range(by, low, high).within(*where.bounds(by)),
            after=unpack_cursor(cursor),
            limit=max(1, min(limit, _PAGE)),
            reverse=reverse,
            most_bytes=most_bytes,
            where=where,
            accepts=accepts,
            seconds=seconds,
            partial=partial,
        )
        existing = self._broker.reachable_queue(queue) if partial else self._broker.known_queue(queue)
        if existing is None:
            return Page([])
        return read_page(self._reader, existing, request, lambda view: self.payloads(queue, view.id))
