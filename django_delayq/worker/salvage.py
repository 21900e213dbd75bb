"""Settlement of the jobs of a dead child, by what it left on the scoreboard."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..core.errors import QueueUnavailable
from ..core.job import Job, new_request
from ..core.options import TaskOptions
from ..core.outcomes import Settlement
from ..core.permits import Place
from ..core.redis.faults import REDIS_ERRORS
from ..core.redis.pool import within
from ..core.task import Registry
from . import crash
from .ends import give_back, policy_of
from .orphans import End, Orphans
from .scoreboard import SlotRecord, place_of

if TYPE_CHECKING:
    from ..core.queue import Queue
    from .limited_calls import LimitedCalls

#: time limit of the calls to one shard of a cluster, in seconds
SHARD_SECONDS: Final = 2.0


class Reach:
    """Nodes that did not answer in one pass over many shards: they are tried once, and the others served.

    On a single server the first error ends the pass.
    """

    def __init__(self) -> None:
        #: error of each shard that was left out; the first one of its node
        self.missing: list[QueueUnavailable] = []
        self._lost: dict[int, QueueUnavailable] = {}

    @contextmanager
    def shard(self, queue: Queue, number: int, *, limited: bool = True) -> Iterator[None]:
        """Record that a shard is missing if the block cannot reach it, or its node was found to be lost before.

        The block is left without an error then.

        Args:
            limited: the block only calls Redis, for :data:`SHARD_SECONDS`; False = each of its calls has its own limit.

        Raises:
            QueueUnavailable: it is no cluster.
        """
        connection, node = queue.deployment.connection, 0
        if not connection.cluster:
            yield
            return
        with suppress(*REDIS_ERRORS):
            node = id(connection.pool(queue.shard(number).keys[0]))
        try:
            limit = 0.0 if node in self._lost else SHARD_SECONDS if limited else None
            with within(None if limit is None else time.monotonic() + limit):
                yield
        except QueueUnavailable as error:
            self.missing.append(self._lost.setdefault(node, error))

    def raise_first(self) -> None:
        """Raise the error of the first missing shard, if there is any."""
        if self.missing:
            raise self.missing[0]


@dataclass(frozen=True, slots=True)
class Death:
    """Death of a child."""

    worker: str
    #: how it died, for the log and the stored errors
    why: str
    #: what its scoreboard says that it was running
    records: Sequence[SlotRecord]
    #: monotonic time
    at: float
    #: it ended on purpose (stop, recycling, an attempt that ignored its limit): only the culprit counts
    planned: bool = False


def decide(jobs: Sequence[Job], death: Death, registry: Registry, now_ms: float) -> list[Settlement]:
    """Return the settlement of each job that a dead child held, according to Redis; ``now_ms`` is Redis's time."""
    running = {place: record for record in death.records for place in record.places}
    beside = _count_begun(jobs, death.records) - 1
    settlements = []
    for job in jobs:
        record = running.get(place_of(job))
        policy = policy_of(registry.get(job.task), job)
        if record is None:
            # Not begun, or ended and not acked: in the second case it runs again, so the cause is put on record.
            settlements.append(_give_back(job, policy, f"not running: {death.why}"))
            continue
        run_ms = max(0, int((death.at - record.started) * 1000))
        started_ms = int(now_ms - (time.monotonic() - record.started) * 1000)
        if record.timed_out or (not (death.planned or record.ended) and record.limit_at < death.at):
            settlements.append(crash.overran(job, policy, started_ms, run_ms, record.stack))
        elif death.planned:
            settlements.append(_give_back(job, policy, f"interrupted: {death.why}", began=True))
        else:
            settlements.append(
                crash.crashed(job, policy, death.why, beside=beside, started_ms=started_ms, run_ms=run_ms)
            )
    return settlements


def _count_begun(jobs: Sequence[Job], records: Sequence[SlotRecord]) -> int:
    """Return the number of jobs under which the process may have died: those that ran, and of those whose handler was
    back, the ones whose end was not stored. Jobs that were acked when they began are among them."""
    held = {place_of(job) for job in jobs}
    begun = [record for record in records if not record.ended or not held.isdisjoint(record.places)]
    return sum(1 + len(record.others) for record in begun)


def _give_back(job: Job, policy: TaskOptions, reason: str, *, began: bool = False) -> Settlement:
    return give_back(job, policy, reason=reason[:200], event=True, began=began)


class Salvage:
    """Settle everything that a dead worker held.

    What was decided and done is kept from one call of :meth:`run` to the next: a job that was taken over, so that its
    end can be notified, is no longer held by that worker, and would not be found again.

    Args:
        death: that of the worker.
        orphans: notifies of the ends.
        expect: called with the seconds until a job is due that waits for quarantine now.
    """

    def __init__(self, death: Death, orphans: Orphans, expect: Callable[[float], None] = lambda seconds: None) -> None:
        self._death = death
        self._orphans = orphans
        self._expect = expect
        self._seed = new_request()
        #: by shard: the settlements that nothing is called for; none any more once they are stored
        self._unnotified: dict[Place, list[Settlement]] = {}
        self._notified: deque[End] = deque()

    @property
    def held_since(self) -> float:
        """Latest moment (monotonic) at which the lease of the next job began: it may have been taken over by now."""
        return max([self._death.at, *(end.taken_at for end in self._notified)])

    def run(self, queues: Sequence[Queue]) -> None:
        """Settle the jobs for whose ends nothing is called first: what is called for the others may take its time.

        Shards of a cluster that cannot be reached are left out; what the others had is settled.

        Raises:
            QueueUnavailable: Redis is away, or a part of the cluster; may be called again. If nobody does, the leases
                run out.
        """
        reach = Reach()
        for queue in queues:
            self._decide(queue, reach)
            self._settle_unnotified(queue, reach)
        if self._notified:
            with self._orphans.listeners() as listeners:
                for _ in range(len(self._notified)):
                    self._finish(self._notified[0], listeners, reach)
        for queue in queues:
            for number in queue.numbers:
                with reach.shard(queue, number, limited=False):
                    self._orphans.settle_begun(queue, number, self._death.worker, self._death.why)
        reach.raise_first()

    def _decide(self, queue: Queue, reach: Reach) -> None:
        """Decide about all jobs of a queue that are held in shards which were not read yet."""
        held: list[Job] = []
        for number in queue.numbers:
            if (queue.name, number) not in self._unnotified:
                with reach.shard(queue, number):
                    held += [job for job in queue.leases(number) if job.worker == self._death.worker]
                    self._unnotified[queue.name, number] = []
        now_ms = queue.deployment.now_ms() if held else 0.0
        for one in decide(held, self._death, self._orphans.registry, now_ms):
            if self._orphans.has_listeners(one):
                self._notified.append(End(queue, one))
            else:
                self._unnotified[queue.name, one.job.shard].append(one)

    def _settle_unnotified(self, queue: Queue, reach: Reach) -> None:
        for place, unnotified in self._unnotified.items():
            if unnotified and place[0] == queue.name:
                with reach.shard(queue, place[1]):
                    counted = queue.settle(unnotified, seed=self._seed)
                    self._unnotified[place] = []
                    self._account(queue, unnotified, counted)

    def _finish(self, end: End, listeners: LimitedCalls, reach: Reach) -> None:
        """Notify of an end and settle the job; one of a shard that cannot be reached is the last of the next call."""
        with reach.shard(end.queue, end.settlement.job.shard, limited=False):
            counted = self._orphans.finish(end, listeners)
            self._notified.remove(end)
            self._account(end.queue, [end.settlement], [counted])
            return
        self._notified.rotate(-1)

    def _account(self, queue: Queue, settlements: list[Settlement], ends: list[bool]) -> None:
        queue.tally.ended(queue.name, settlements)
        for settlement, counted in zip(settlements, ends, strict=True):
            if counted and settlement.verb != "release":
                self._orphans.log(settlement)
            if counted and settlement.quarantine:
                self._expect((settlement.delay_ms or 0) / 1000)
