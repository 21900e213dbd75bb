"""Read-only inspection of queues: counts, pages and single jobs. No method changes a job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from .actions import LOCATE
from .counts import Counts, check_horizon, count_each_shard, count_shards, read_stats
from .errors import InvalidJob, QueueUnavailable
from .job import Generation, Payload
from .job_filter import Bound, JobFilter
from .job_view import JobView
from .reading import (
    INDEXES,
    Accepts,
    Page,
    PageRequest,
    Range,
    burials,
    jobs_of,
    pack_cursor,
    payloads_of,
    read_page,
    unpack_cursor,
)
from .redis.scripts import clear_errors
from .registry import QueueRegistry, ShardSet

#: every job once
SEARCHED: Final = ("waiting", "reserved", "morgue")
_PAGE: Final = 250


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
        return self._count([existing])[0] if existing else Counts(queue)

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
        return self._count(queues, offsets, by_shard=by_shard, partial=partial)

    count_shards = staticmethod(count_shards)
    count_each_shard = staticmethod(count_each_shard)

    def _count(
        self,
        queues: Sequence[ShardSet],
        offsets: tuple[int, ...] = (),
        *,
        by_shard: bool = False,
        partial: bool = False,
    ) -> list[Counts]:
        nothing = (0,) * (len(offsets) + 2)
        counts = {queue.name: Counts(queue.name, backlog=nothing) for queue in queues}
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

    # -- the server --------------------------------------------------------------------------------------------------

    def servers(self) -> list[dict[str, Any]]:
        """Return the reply of ``INFO``; on a cluster that of each master that answers, in one round trip each.

        Raises:
            QueueUnavailable: none answers.
        """
        with clear_errors():
            deployment = self._deployment
            replies = [reply for _, reply in deployment.connection.each_server(deployment.client.info)]
            infos = [reply for reply in replies if not isinstance(reply, Exception)]
            if not infos:
                raise replies[-1]
        return infos

    def last_ticks(self, ids: Sequence[tuple[ShardSet, str]]) -> list[int | None]:
        """Return :meth:`Queue.last_tick` of many ids, in one round trip (on a cluster: of each node)."""
        if not ids:
            return []
        pipeline = self._deployment.client.pipeline(transaction=False)
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
        existing = self._registry.known_queue(queue)
        if existing is None:
            return None
        members = {(queue, number): [ident.encode()] for number in existing.homes(ident)}
        for _, view in jobs_of(self._deployment, members, most=most_bytes):
            return view
        return next(iter(self.graves_page(queue, ident, limit=1, most_bytes=most_bytes).jobs), None)

    def get_generation(self, queue: str, ident: str, generation: Generation) -> JobView | None:
        """Return one certain generation of an id, live, gated or buried; None if Redis no longer has it."""
        view = self.get(queue, ident)
        if view is not None and view.state != "morgue":
            place = view.place_of(generation)
            if not place and generation.digest and (existing := self._registry.known_queue(queue)) is not None:
                place = LOCATE.anywhere(existing, ident, generation)
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
        existing = self._registry.known_queue(queue)
        if existing is None:
            return Page([])
        left = [entry for entry in burials(existing, ident) if after is None or entry < after]
        last = left[min(limit, len(left)) - 1] if left else None
        views: list[JobView] = []
        size = 0
        for number, entries in groupby(left[:limit], key=lambda entry: entry.shard):
            mine = {entry.member: entry for entry in entries}
            members = {(queue, number): list(mine)}
            for member, view in jobs_of(self._deployment, members, buried=True, most=most_bytes):
                views.append(view)
                size += view.bytes_here
                if size >= page_bytes:
                    return Page(views, "" if mine[member] is left[-1] else pack_cursor(mine[member]), len(views))
        cursor = pack_cursor(last) if last is not None and last is not left[-1] else ""
        return Page(views, cursor, len(views))

    def leases(self, jobs: Sequence[tuple[ShardSet, str]]) -> list[Lease | None]:
        """Return the lease of each of these jobs, or None, in one round trip (on a cluster: of each node).

        Args:
            jobs: queues of this broker, and ids.
        """
        members: dict[tuple[str, int], list[bytes]] = {}
        for queue, ident in jobs:
            for number in queue.homes(ident):
                members.setdefault((queue.name, number), []).append(ident.encode())
        leases = {
            (view.job.queue, view.id): Lease(view.job.worker, view.deadline_ms)
            for _, view in jobs_of(self._deployment, members, most=0)
            if view.deadline_ms is not None
        }
        return [leases.get((queue.name, ident)) for queue, ident in jobs]

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
        where = where or JobFilter()
        by = by or where.best_order(place, tuple(orders))
        if by not in orders:
            raise InvalidJob(f"jobs in {place!r} are not ordered by {by!r}; use one of {', '.join(orders)}")
        request = PageRequest(
            place=place,
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
        existing = self._registry.reachable_queue(queue) if partial else self._registry.known_queue(queue)
        if existing is None:
            return Page([])
        return read_page(existing, request)
