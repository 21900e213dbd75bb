"""Limits in one process: how many jobs of a limited task or queue it holds, and its permits of limits over all workers.

A limit of each process is a matter of counting. Jobs behind a limit over all workers are offered by their shard; the
process asks for permits, hands the answer to the next reserve of that shard, and returns the permits when the ends of
the jobs are stored (:mod:`..core.limits`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..core.errors import DelayQError, QueueUnavailable
from ..core.job import random_blocks
from ..core.limits import (
    UNREACHABLE_MS,
    Answer,
    Ask,
    Block,
    Grant,
    LaneNotes,
    Limiter,
    Unused,
    is_counted,
    lasting_ms,
    limits_of,
    offer_of,
    pause_scope,
)
from .attempt import NEVER, Attempt
from .shards import CALL_SECONDS, ShardSelector, Source

if TYPE_CHECKING:
    from ..core.job import Job
    from ..core.options import Limits
    from ..core.outcomes import Batch, Offer
    from .worker import Worker

logger = logging.getLogger(__name__)
#: most permits that are renewed in one call
_MOST_PERMITS: Final = 500


class ProcessLimits:
    """All limits of one process. Belongs to the fetch loop's thread, except :meth:`renew`."""

    def __init__(self, process: Worker, selector: ShardSelector) -> None:
        self._registry = process.registry
        self._of_queues = process.config.limits
        self._connection = process.broker.connection
        self._limiter = Limiter(process.broker.registry)
        self._workers = process.broker.worker_registry
        self._lasting_ms = lasting_ms(process.broker.lease_ms)
        self._selector = selector
        self._is_for_all = process.config.which != "quarantined"
        #: jobs that are held here, or granted and not handed out yet, by the names of their limits of each process
        self._held: Counter[str] = Counter()
        #: shards with due jobs that only other processes may run now
        self._passed_over: set[Source] = set()
        #: what the next reserve says to a shard
        self._notes: dict[Source, LaneNotes] = {}
        self._offers: list[tuple[Source, Offer]] = []
        #: permits of jobs that have ended
        self._ended: list[bytes] = []
        #: grants of which jobs were not handed out
        self._unused: list[Unused] = []
        #: limits of which a freed permit found no job
        self._idle: list[str] = []
        #: moment (monotonic) until which the limiter is not called, because that failed
        self._unreachable_until = 0.0
        #: held while permits are renewed or returned: one that is returned must not be renewed behind that
        self._lock = threading.Lock()

    @property
    def exist(self) -> bool:
        """True if a task or a queue has a limit."""
        return bool(self._registry.limited or self._of_queues)

    # --- limits of this process

    def _local_limits(self, queue: str, task: str) -> Iterator[tuple[str, int]]:
        """Yield the names of the limits of each process that a job has, and how many jobs they allow."""
        if not self.exist:
            return
        of_queue, limited = self._of_queues.get(queue), self._registry.limited.get(task)
        of_task = limited.options.limits if limited else None
        for name, one in ((f"queue:{queue}", of_queue), (f"task:{limited.name if limited else ''}", of_task)):
            if one is not None and one.local is not None:
                yield name, one.local

    def _local_room(self, queue: str, task: str, most: int) -> int:
        """Return how many jobs this process may hold more, at most so many."""
        rooms = [local - self._held[name] for name, local in self._local_limits(queue, task)]
        return max(0, min(most, *rooms)) if rooms else most

    def _count(self, queue: str, task: str, jobs: int) -> None:
        for name, _ in self._local_limits(queue, task):
            self._held[name] += jobs

    @property
    def full_queues(self) -> frozenset[str]:
        """Queues of which this process may hold no more jobs, whatever other processes hold."""
        return frozenset([name for name in self._of_queues if not self._local_room(name, "", 1)])

    def room(self, source: Source, wanted: int) -> int:
        """Return how many jobs of a shard this process may hold more because of its queue's limit, at most ``wanted``.

        Without any, the shard rests until there are.
        """
        if not self._of_queues:
            return wanted
        granted = self._notes[source].granted if source in self._notes else 0
        room = min(wanted, self._local_room(source.queue.name, "", wanted) + granted)
        if wanted > 0 >= room:
            self._passed_over.add(source)
            self._selector.postpone(source, NEVER, pass_on=True)
        return room

    def took(self, queue: str, jobs: Sequence[Job]) -> None:
        """Count reserved jobs as held."""
        for job in jobs if self.exist else ():
            self._count(queue, job.task, 1)

    def ended(self, queue: str, attempts: Sequence[Attempt]) -> None:
        """Count attempts that have ended, or were given back."""
        for attempt in attempts:
            end = attempt.settlement
            if end is not None and end.pause is not None:
                pause_scope(self._limiter, end, self._limits_of(queue, offer_of(end.job)))
            if self.exist:
                self._count(queue, attempt.job.task, -1)
        passed_over, self._passed_over = self._passed_over, set()
        for source in passed_over:
            self._selector.expect(source, time.monotonic())

    # --- before and after a reserve

    @property
    def answered(self) -> Source | None:
        """Shard to which an answer of the limiter has to be brought, before anything else."""
        return next(iter(self._notes), None)

    def notes(self, source: Source, room: int, ready: int) -> LaneNotes:
        """Return what the next reserve says of limits, for a process that takes ``room`` jobs.

        Args:
            ready: number of jobs that can start here soon. Permits are taken for these: other processes may have room
                for the others.
        """
        notes, names = self._notes.pop(source, None) or LaneNotes(), list(self._registry.limited)
        for grant in notes.grants:
            self._count(source.queue.name, grant.offer.task, -grant.jobs)
        if not room:
            self._unused += [grant.unused() for grant in notes.grants]
            notes.grants = []
        notes.most = max(ready - notes.granted, 0)
        notes.name(source.queue.name, self._of_queues.get(source.queue.name), names, self._own_limits)
        notes.full = [name for name in names if not self._local_room("", name, 1)]
        return notes

    def replied(self, source: Source, notes: LaneNotes, batch: Batch) -> None:
        """Handle the reply to a reserve with these notes: permits that it did not use, and what the shard offers."""
        used = {job.permit for job in batch.jobs}
        self._unused += [unused for grant in notes.grants if (unused := grant.unused(used))[1]]
        self._idle += [block.limit for block in notes.blocks if not block.ms and block.scope in batch.idle]
        self._offers += [(source, offer) for offer in batch.offers]
        if batch.passed_over:
            self._passed_over.add(source)

    def settled(self, jobs: Iterable[Job]) -> None:
        """Return the permits of jobs whose ends are stored."""
        self._ended += [job.permit for job in jobs if is_counted(job.permit)]

    # --- the limiter

    @property
    def retry_at(self) -> float:
        """Moment at which the limiter is called again because the last call failed; NEVER = it did not."""
        return self._unreachable_until if self._has_returns else NEVER

    @property
    def _has_returns(self) -> bool:
        return bool(self._ended or self._unused or self._idle)

    def exchange(self, now: float, *, works: bool, ready: int) -> None:
        """Return permits, and ask for those of the offers.

        Args:
            works: this process takes jobs.
            ready: number of jobs that can start here now. If there are none, shards that may ask again are left to
                other processes.
        """
        if not (self._offers or self._has_returns):
            return
        offers, self._offers = self._offers if works else [], []
        blocks = random_blocks()
        asks = {ask: source for source, offer in offers if (ask := self._ask(source, offer, blocks)) is not None}
        answer = self._call(list(asks), now) if asks or self._has_returns else None
        if answer is None:  # the lanes rest
            for ask, source in asks.items():
                self._note(source).blocks.append(ask.blocked(ask.grant.limits[0], 0, UNREACHABLE_MS))
            return
        for source, grant, block in zip(asks.values(), answer.grants, answer.blocks, strict=True):
            if grant is not None:
                self._grant(source, grant)
            if block is not None:
                self._note(source).blocks.append(block)
        self._free(answer, works and ready > 0 and self._is_for_all)

    def _ask(self, source: Source, offer: Offer, blocks: Iterator[bytes]) -> Ask | None:
        """Return the request for an offer; what no limit over all workers counts is granted here."""
        queue = source.queue.name
        jobs, limits = self._local_room(queue, offer.task, offer.jobs), self._limits_of(queue, offer)
        if jobs and limits:
            return Ask.of(source.place, offer, jobs, limits, next(blocks))
        if jobs:
            self._grant(source, Grant(offer, jobs))
        return None

    @property
    def _own_limits(self) -> frozenset[str]:
        """Names of the limits that were set at run time; each announcement returns them."""
        if self._workers.own_limits is None:
            try:
                self._workers.own_limits = self._limiter.own_limits()
            except DelayQError:
                return frozenset()
        return self._workers.own_limits

    def _limits_of(self, queue: str, offer: Offer) -> dict[str, Limits]:
        return limits_of(queue, self._of_queues.get(queue), self._registry.get(offer.task), offer, self._own_limits)

    def _call(self, asks: Sequence[Ask], now: float) -> Answer | None:
        """Return the answer of the limiter; None if it cannot be reached."""
        if now < self._unreachable_until:
            return None
        try:
            with self._lock, self._connection.limited(CALL_SECONDS):
                answer = self._limiter.call(asks, release=self._ended, unused=self._unused, pass_on=self._idle)
        except QueueUnavailable as error:
            # Counted from now on: the call has taken up to CALL_SECONDS, for which all other jobs had to wait.
            self._unreachable_until = time.monotonic() + UNREACHABLE_MS / 1000
            logger.warning("limits cannot be checked now; jobs without a limit go on: %s", error)
            # What it may have granted is returned; perhaps it granted nothing, so the rates get nothing back.
            self._ended += [permit for ask in asks for permit in ask.grant.permits if is_counted(permit)]
            return None
        self._ended, self._unused, self._idle = [], [], []
        return answer

    def _grant(self, source: Source, grant: Grant) -> None:
        self._count(source.queue.name, grant.offer.task, grant.jobs)
        self._note(source).grants.append(grant)

    def _note(self, source: Source) -> LaneNotes:
        return self._notes.setdefault(source, LaneNotes())

    def _free(self, answer: Answer, has_room: bool) -> None:
        """Let those ask again for whom there are permits now: by the next reserve here, or by other processes."""
        others = []
        for limit, place in answer.freed:
            source = self._selector.by_place.get(place)
            if has_room and source is not None:
                self._note(source).blocks.append(Block(limit, answer.at_us))
            else:
                others.append((limit, place))
        try:
            with self._connection.limited(CALL_SECONDS):
                self._limiter.free(replace(answer, freed=others))
        except DelayQError as error:
            logger.info("shards that wait for a limit ask again by themselves: %s", error)

    def renew(self, attempts: Iterable[Attempt]) -> None:
        """Renew the permits of held jobs. Called by the heartbeat, before it renews the leases."""
        with self._lock:
            renewed = [
                (one.job.permit, self._lasting_ms)
                for one in list(attempts)
                if is_counted(one.job.permit) and not one.lost
            ]
            for start in range(0, len(renewed), _MOST_PERMITS):
                self._limiter.call(renew=renewed[start : start + _MOST_PERMITS])

    def close(self) -> None:
        """Return all permits but those of jobs that are still held; they would run out otherwise."""
        unused = [grant.unused() for notes in self._notes.values() for grant in notes.grants]
        self._limiter.give_back(self._ended, self._unused + unused)
