"""Lease reaper: settles jobs whose leases ran out unsettled. Dispatchers only; other processes may lack the tasks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from ..core.job import STARTED
from ..core.outcomes import Settlement, release
from ..core.workers import WorkerRegistry, is_alive
from . import crash
from .attempt import NEVER
from .ends import policy_of
from .orphans import crashed_early
from .parts import Parts

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.job import Job
    from ..core.queue import Queue
    from .orphans import Orphans

logger = logging.getLogger(__name__)

#: a lease that ended so long ago is given back by a dispatcher that does not know the task
UNKNOWN_TASK_MS: Final = 600_000
#: a worker that was silent for so long, and for three heartbeats, is dead
SILENT_MS: Final = 60_000
#: seconds between two checks of a shard for attempts of dead workers whose jobs were acked early
EARLY_CHECK_SECONDS: Final = 30.0
#: ends that wait for their listeners; further ones are found again at the next look
_MOST_WAITING: Final = 1000


class LeaseReaper:
    """Settler of expired leases, by the policies of their tasks.

    Called by the shard poller; also a duty with a thread of its own.

    A job whose task is not registered here is left to a dispatcher that has its policy. If there is none for ten
    minutes the job goes back uncounted, so that a worker meets it and it cannot stay reserved for ever.

    The shard poller has to be quick, so what somebody listens to is settled in the other thread.

    Args:
        orphans: settles the jobs, and notifies of their ends.
        broker: that of the queues; on a Cluster, one dead node delays no other.
    """

    def __init__(self, orphans: Orphans, broker: Broker | None = None) -> None:
        self._orphans = orphans
        self._parts = Parts("reaper", broker)
        self._unknown: set[str] = set()
        #: by queue, shard, id and token
        self._waiting: dict[tuple[str, int, str, int], tuple[Queue, Settlement]] = {}
        self._lock = threading.Lock()
        self._ring: Callable[[], None] = lambda: None
        self._checked_at: dict[tuple[str, int], float] = {}

    # --- in the shard poller's thread

    def reap(self, queue: Queue, shard: int, now_ms: float) -> bool:
        """Settle expired leases of a shard.

        Returns:
            True if there may be more of them.
        """
        offset = 0
        while jobs := queue.expired(shard, offset=offset):
            decided = [self._decide(queue, job, now_ms) for job in jobs]
            if self._settle(queue, [settlement for settlement in decided if settlement is not None]):
                return True
            offset += len(jobs)
        return False

    def reap_early_acked(self, queue: Queue, shard: int, now_ms: float) -> None:
        """Record as crashed what dead workers had begun in a shard after an early ack."""
        now = time.monotonic()
        if now - self._checked_at.get((queue.name, shard), -EARLY_CHECK_SECONDS) < EARLY_CHECK_SECONDS:
            return
        self._checked_at[queue.name, shard] = now
        workers = WorkerRegistry(queue.registry).workers()
        alive = {worker["name"] for worker in workers if is_alive(worker, now_ms, least_ms=SILENT_MS)}
        lost = queue.begun(shard, before_ms=now_ms - SILENT_MS, except_workers=alive)
        settled_here = [job for job in lost if now_ms - job.deadline_ms >= UNKNOWN_TASK_MS or self._is_ours(queue, job)]
        self._settle(queue, [crashed_early(job, f"worker {job.worker} is gone", now_ms) for job in settled_here])

    def _is_ours(self, queue: Queue, job: Job) -> bool:
        # The jobs of a pull queue need no task, and a body that cannot be read names none.
        if queue.kind == "pull" or not job.task or job.task in self._orphans.registry:
            return True
        if job.task not in self._unknown:
            self._unknown.add(job.task)
            logger.warning(
                "%s: its holder is gone, but the task %s is not registered here; left to a dispatcher that has it",
                job.id,
                job.task,
            )
        return False

    def _decide(self, queue: Queue, job: Job, now_ms: float) -> Settlement | None:
        if self._is_ours(queue, job):
            return crash.lost(job, policy_of(self._orphans.registry.get(job.task), job))
        if now_ms - job.deadline_ms >= UNKNOWN_TASK_MS:
            return release(
                job,
                reason="lease ran out and no dispatcher knew the task",
                unclear=True,
                guard="expired",
                event=True,
                began=bool(job.flags & STARTED),
            )
        return None

    def _settle(self, queue: Queue, settlements: list[Settlement]) -> bool:
        """Settle what is not listened to, leave the rest to the other thread. Returns True if any was settled here."""
        unnotified: list[Settlement] = []
        notified: list[Settlement] = []
        for one in settlements:
            (notified if self._orphans.has_listeners(one) else unnotified).append(one)
        if notified:
            with self._lock:
                for one in notified[: max(0, _MOST_WAITING - len(self._waiting))]:
                    self._waiting.setdefault((queue.name, one.job.shard, one.job.id, one.job.token), (queue, one))
            self._ring()
        if unnotified:
            self._log(unnotified, queue.settle(unnotified))
        return bool(unnotified)

    # --- in the thread of the duty

    def attach(self, ring: Callable[[], None]) -> None:
        """See :class:`~.loop.Attached`."""
        self._ring = ring

    def run(self) -> float:
        """Notify of the ends that wait, and settle them. Returns the seconds until the next turn."""
        while self._waiting:
            with self._lock:
                waiting, self._waiting = list(self._waiting.values()), {}
            by_shard: dict[tuple[Queue, int], list[Settlement]] = {}
            for queue, settlement in waiting:
                by_shard.setdefault((queue, settlement.job.shard), []).append(settlement)
            for (queue, shard), settlements in by_shard.items():  # what is not settled now is found at a later check
                self._parts.attempt((queue.name, shard), partial(self._settle_notified, queue, settlements))
        return NEVER

    def _settle_notified(self, queue: Queue, settlements: list[Settlement]) -> None:
        self._log(settlements, self._orphans.settle(queue, settlements))

    def _log(self, settlements: list[Settlement], counted: list[bool]) -> None:
        for settlement, good in zip(settlements, counted, strict=True):
            if good:
                self._orphans.log(settlement)
