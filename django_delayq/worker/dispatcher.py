"""Dispatcher: the duties by which a worker process keeps the queues in order.

It wakes other consumers when a job falls due and this process's own consumer did not reserve it, finds expired leases,
removes dead workers from the registry, samples the depth of the queues, and completes changes of the number of shards.
Several dispatchers may run at once: each of their changes is one guarded script.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from ..core import figures, layouts
from ..core.figures import TOTAL, DepthPoint, Histogram
from ..core.workers import is_alive
from .attempt import NEVER
from .dead import SILENT_MS, Ends, LeaseReaper
from .loop import Part, Parts, Periodic, What
from .recurring import RecurringTicker

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.counts import Counts
    from ..core.outcomes import Tick
    from ..core.queue import Queue
    from .loop import Duty
    from .shards import Scope, ShardSelector
    from .worker import Worker

logger = logging.getLogger(__name__)

#: seconds between two routine checks
CHECK_SECONDS: Final = 3.0
#: seconds after a due time within which the process's own consumer may reserve the job
OWN_CONSUMER: Final = 0.05
#: difference in seconds between Redis's clock and ours, from one check to the next, that makes leases doubtful
_JUMP: Final = 2.0
#: a reply that takes longer than 1/10 of a lease means that Redis stalled
_SLOW: Final = 10.0
#: maximum time between two checks of a shard, as a fraction of a lease
_OF_A_LEASE: Final = 0.95
#: on a Cluster, seconds that the check of one shard may take: those on other nodes wait
_POLL_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 1.0
_SOON_SECONDS: Final = 0.02
#: seconds between two looks for dead workers; only people read the list
PRUNING_SECONDS: Final = 60.0
#: seconds between two samples of the depth
SAMPLE_SECONDS: Final = 60.0
#: queues with a series of samples of their own, those that did most; a series takes about 100 KB of Redis's memory
MOST_QUEUES: Final = 500


@dataclass(slots=True)
class Beat:
    """Schedule of the checks of one shard. Times are of ``time.monotonic()``."""

    queue: Queue
    shard: int
    check_at: float
    checked_at: float = 0.0
    #: Redis's clock minus ours at the last check (seconds); None before the first
    offset: float | None = None
    deadline_at: float = NEVER
    due_at: float = NEVER
    hold: bool = False
    #: result of the last check
    tick: Tick | None = None

    @property
    def part(self) -> Part:
        """Name of the shard."""
        return self.queue.name, self.shard


@dataclass(eq=False, repr=False)
class ShardPoller:
    """Duty that checks every shard in time: almost once per lease, and at each known deadline."""

    _process: Worker
    #: returns the queues to check
    _queues: Callable[[], Sequence[Queue]]
    #: that of the consumer in this process, if there is one
    _selector: ShardSelector | None = None
    #: settles expired leases; without one they are left to other processes
    _reaper: LeaseReaper | None = None
    #: seconds between two routine checks, as long as there are few shards
    pace: float = CHECK_SECONDS

    def __post_init__(self) -> None:
        self._lease = self._process.lease
        self._parts = Parts("shard-poller", self._process.broker, seconds=_POLL_SECONDS)
        self._beats: list[Beat] = []
        self._outage_seen = self._process.health.cleared_at

    def run(self) -> float:
        """Check the shards that are due for it.

        Returns:
            Seconds until the next check.
        """
        now = time.monotonic()
        self._refresh_beats(self._queues(), now)
        # Read before the checks, because one of them may be the first call that succeeds again.
        health = self._process.health
        outage = health.lasting()
        if health.cleared_at != self._outage_seen:
            self._outage_seen = health.cleared_at
            outage = max(outage, health.last_outage)
        if outage > self._process.config.heartbeat:
            self._hold_all()
        for beat in self._beats:
            if self._is_due(beat, time.monotonic()):
                self._parts.attempt(beat.part, partial(self._check, beat))
        now = time.monotonic()
        return max(0.0, min((self._next_check(beat) for beat in self._beats), default=now + CHECK_SECONDS) - now)

    def _hold_all(self) -> None:
        """Postpone reaping in all shards by one lease, because holders could not renew their leases."""
        for beat in self._beats:
            beat.hold = True

    def _refresh_beats(self, queues: Sequence[Queue], now: float) -> None:
        served = {(queue.name, shard): queue for queue in queues for shard in queue.numbers}
        self._beats = [beat for beat in self._beats if beat.part in served]
        polled = {beat.part for beat in self._beats}
        self._beats += [Beat(queue, place[1], now) for place, queue in served.items() if place not in polled]

    def _next_check(self, beat: Beat) -> float:
        at = 0.0
        if not beat.hold:
            at = max(min(beat.check_at, beat.deadline_at, beat.due_at + OWN_CONSUMER), beat.checked_at + _SOON_SECONDS)
        return max(at, self._parts.retry_at(beat.part))

    def _is_due(self, beat: Beat, now: float) -> bool:
        if self._next_check(beat) > now:
            return False
        if beat.hold or min(beat.check_at, beat.deadline_at) <= now or self._selector is None:
            return True
        if self._selector.overdue(beat.queue.name, beat.shard, now, OWN_CONSUMER):
            return True
        beat.due_at = NEVER  # our own consumer has reserved since, and knows the next due time more exactly
        return False

    def _check(self, beat: Beat) -> None:
        is_back = self._parts.outage(beat.part) > self._process.config.heartbeat  # its node of a cluster
        sent_at = time.monotonic()
        tick = beat.queue.tick(beat.shard, hold=beat.hold or is_back)
        now = time.monotonic()
        beat.hold = False
        if is_back:
            self._hold_all()
        beat.checked_at = now
        # Each lease is won or renewed within that time before it ends, so every end of a lease is known in advance.
        period = min(self.pace * len(self._beats), _OF_A_LEASE * self._lease)
        is_first = beat.offset is None  # spreads the checks of a queue's shards over the period
        beat.check_at = now + period * ((self._beats.index(beat) + 1) / len(self._beats) if is_first else 1.0)
        self._note_deadlines(beat, tick, now)
        self._note_changes(beat, tick)
        offset = tick.now_ms / 1000 - now
        jumped = beat.offset is not None and abs(offset - beat.offset) > _JUMP
        beat.offset = offset
        if jumped:
            logger.warning("Redis's clock jumped; no lease of %s is taken for %.0f s", beat.queue.name, self._lease)
            beat.hold = True
        elif now - sent_at > self._lease / _SLOW and not tick.held_back:
            logger.warning("Redis took %.1f s for an answer; no lease is taken for %.0f s", now - sent_at, self._lease)
            self._hold_all()  # while Redis stalled, holders could not renew their leases either
        elif self._reaper is not None and (tick.expired or tick.begun) and not tick.held_back:
            self._reaper.reap(beat.queue, beat.shard, tick)

    def _note_deadlines(self, beat: Beat, tick: Tick, now: float) -> None:
        def at(ms: float | None) -> float:
            return NEVER if ms is None else now + (ms - tick.now_ms) / 1000

        beat.deadline_at = NEVER if self._reaper is None else at(tick.next_deadline_ms)
        beat.due_at = at(tick.next_due_ms)
        if self._selector is not None:
            work_at = now if tick.set_aside else beat.due_at + OWN_CONSUMER
            self._selector.note_work(beat.queue.name, beat.shard, work_at)
        if beat.deadline_at <= now:
            beat.deadline_at = now + _RETRY_SECONDS  # expired: reaped in this turn, or held back
        if beat.due_at + OWN_CONSUMER <= now:
            # All consumers are busy; the wake token remains for the first one that is free.
            beat.due_at = now + _RETRY_SECONDS

    def _note_changes(self, beat: Beat, tick: Tick) -> None:
        """Note what changed since the last check. The first check has nothing to compare with."""
        before, beat.tick = beat.tick, tick

        def note(what: What) -> None:
            self._process.changes.note(beat.queue.name, beat.shard, what)

        if tick.marks:
            note("marks")
        if before is None or before.failed != tick.failed:
            note("failed")
        if before is None or before.morgue != tick.morgue:
            note("morgue")
        if before is not None and (before.born, before.run_id) != (tick.born, tick.run_id):
            note("lost")


def prune_workers(broker: Broker, own: str, parts: Parts) -> None:
    """Remove dead workers but ``own`` from the registry: silent for a minute, and for three of their heartbeats."""
    others = [worker for worker in broker.workers() if worker["name"] != own]
    now_ms = broker.now_ms() if others else 0.0
    for worker in others:
        if not is_alive(worker, now_ms, least_ms=SILENT_MS):
            parts.attempt(worker["name"], partial(broker.forget, worker["name"]))


@dataclass(eq=False, repr=False)
class DepthSampler:
    """Duty that stores a sample of each queue and of all together. Of several dispatchers one does it."""

    _broker: Broker
    #: name of the worker
    _own: str
    _has_begun: bool = field(default=False, init=False)
    #: lateness so far by queue, as of the last sample that this process took
    _lateness: Mapping[str, Histogram] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._parts = Parts("depth-sampler", self._broker)

    def run(self) -> float:
        """Store a sample unless another dispatcher did. The first turn only waits: a process may end soon."""
        if self._has_begun and figures.claim_depths(self._broker, self._own):
            self._sample()
        self._has_begun = True
        return SAMPLE_SECONDS

    def _sample(self) -> None:
        counts = self._counts()
        if not counts:
            return
        before, self._lateness = self._lateness, self._broker.figures().lateness
        late = {} if before is None else {name: it.since(before.get(name)) for name, it in self._lateness.items()}
        busiest = sorted(counts, key=lambda one: -one.counter("scheduled") - one.counter("done"))[:MOST_QUEUES]
        samples = {one.queue: _sample_of([one], late.get(one.queue)) for one in busiest}
        samples[TOTAL] = _sample_of(counts, sum(late.values(), Histogram()))
        figures.record_depths(self._broker, samples, max(one.now_ms for one in counts))

    def _counts(self) -> list[Counts]:
        """Return the counts of each queue that can be read: of all together, and if that fails one by one."""
        counts: list[Counts] = []
        queues = self._broker.queues()

        def count(some: list[Queue]) -> None:
            counts.extend(self._broker.inspector.all_counts(queues=some, partial=True))

        if not self._parts.attempt("", partial(count, queues)):
            for queue in queues:
                self._parts.attempt(queue.name, partial(count, [queue]))
        return [one for one in counts if not one.unreachable]


def _sample_of(counts: Iterable[Counts], lateness: Histogram | None = None) -> DepthPoint:
    """Return the sample of these queues together.

    Args:
        counts: their present counts.
        lateness: of the attempts since the sample before.
    """
    queues = list(counts)
    p50, p99 = (lateness.quantile(q) if lateness else None for q in (0.5, 0.99))
    places = ("delayed", "ready", "reserved", "failed", "morgue")
    return DepthPoint(
        **{place: sum(getattr(one, place) for one in queues) for place in places},
        lag_seconds=max((one.lag_seconds for one in queues), default=0.0),
        **{group: sum(one.counter(group) for one in queues) for group in ("scheduled", "done", "failing")},
        p50_ms=p50,
        p99_ms=p99,
    )


def clean_epochs(broker: Broker, queues: Iterable[Queue], parts: Parts) -> None:
    """Complete interrupted changes of the number of shards, and remove old epochs that hold no jobs any more.

    It sends commands to Redis only for queues of which one is unfinished.
    """
    for queue in queues:
        if layouts.is_pending(queue.layout):
            parts.attempt(queue.name, partial(broker.epochs.finish, queue.name))
        if len(queue.epochs) > 1:
            parts.attempt(queue.name, partial(broker.epochs.retire, queue.name))


def dispatcher_duties(process: Worker, scope: Scope, selector: ShardSelector | None) -> dict[str, Duty]:
    """Return the duties of a dispatcher that need no Django, by name.

    ``selector`` is that of the consumer in this process, if there is one.
    """
    broker, name = process.broker, process.name
    reaper = LeaseReaper(Ends(process.registry, process.hooks), name, broker)
    workers, epochs = Parts("worker-pruning", broker), Parts("epoch-cleanup", broker)
    duties: dict[str, Duty] = {
        "shard-poller": ShardPoller(process, lambda: scope.queues, selector, reaper),
        "reaper": reaper,
        "worker-pruning": Periodic(PRUNING_SECONDS, lambda: prune_workers(broker, name, workers)),
        "depth-sampler": DepthSampler(broker, name),
        "epoch-cleanup": Periodic(process.config.epoch_check, lambda: clean_epochs(broker, scope.queues, epochs)),
    }
    ticker = RecurringTicker(broker, process.registry, process.config.timezone, changes=process.changes)
    if ticker.works:
        duties["recurring-ticker"] = ticker
    return duties
