"""Jobs whose holder is gone: those of a dead child, and those whose leases ran out.

The supervisor settles the first, in a thread for each child: it alone knows how they died, and has loaded the project.
The reaper of a dispatcher takes over the others before it settles them, so that one process alone does. Both notify
the listeners of an end before they settle it. If they die in between, the lease runs out and a dispatcher begins anew:
what a listener does therefore happens at least once; once, if nothing dies. Listeners that take longer than the job's
time limit, or than the lease, are given up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from ..core.errors import QueueUnavailable
from ..core.job import STARTED, Job
from ..core.limits import Limiter, Place
from ..core.outcomes import Settlement
from ..core.task import Registry
from ..core.workers import WorkerRegistry, is_alive
from .attempt import NEVER, trusted
from .child import ENDED, TIMED_OUT, Slot, place_of
from .ends import End, crashed_early, policy_of
from .hooks import Hooks, Notifier, error_of
from .loop import Parts, Reminders, call_safely
from .slots import HangingCall, call_limited

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.outcomes import Tick
    from ..core.queue import Queue

logger: Final = logging.getLogger(__name__)

#: time limit of the calls to one shard of a cluster, in seconds
SHARD_SECONDS: Final = 2.0
#: a lease that ended so long ago is given back by a dispatcher that does not know the task
UNKNOWN_TASK_MS: Final = 600_000
#: a worker that was silent for so long, and for three heartbeats, is dead
SILENT_MS: Final = 60_000
#: seconds between two checks of a shard for attempts of dead workers whose jobs were acked early
EARLY_CHECK_SECONDS: Final = 30.0


class Ends:
    """Ends of jobs that other processes held.

    Args:
        registry: the tasks.
        hooks: who listens.
    """

    def __init__(self, registry: Registry, hooks: Hooks | None = None) -> None:
        self.registry = registry
        self._hooks = hooks or Hooks()
        self._notifier = Notifier(self._hooks)

    def has_listeners(self, settlement: Settlement) -> bool:
        """Return True if anything is called for this end."""
        return self._notifier.has_listeners(settlement, self.registry.get(settlement.job.task))

    def notify(self, queue: Queue, settlement: Settlement) -> bool:
        """Call the listeners in a thread. Return False if that is to be tried again when the lease is over.

        Listeners that hang are given up: otherwise each process that settles the job would hang.
        """
        job, hooks = settlement.job, self._hooks
        limit = policy_of(self.registry.get(job.task), job).timeout or NEVER
        seconds = min(limit, trusted(queue.deployment.lease_ms / 1000))
        notify = partial(self._notify, queue, settlement)
        try:
            return call_limited("delayq-listeners", notify, seconds, end=hooks.thread_end)
        except HangingCall as error:
            text = "%s: the listeners to its end (%s) did not end within %.1f s and are given up\n%s"
            logger.error(text, job.id, settlement.outcome, seconds, error)
            return True

    def _notify(self, queue: Queue, settlement: Settlement) -> bool:
        job, hooks = settlement.job, self._hooks
        try:
            hooks.before_job(job)
        except Exception:
            logger.exception("%s: its end (%s) is settled later, before_job failed", job.id, settlement.outcome)
            return False
        self._notifier.ended_elsewhere(queue, self.registry.get(job.task), settlement)
        call_safely(f"{job.id}: the check for what the listeners to its end left behind", hooks.after_job, job)
        return True

    def settle(self, queue: Queue, settlements: Sequence[Settlement]) -> None:
        """Settle jobs, and count and log their ends as a worker does for its own jobs."""
        counted = queue.settle(settlements)
        stored = [settlement for settlement, good in zip(settlements, counted, strict=True) if good]
        queue.tally.ended(queue.name, stored)
        Limiter(queue.registry).give_back([settlement.job.permit for settlement in stored])
        for settlement in stored:
            self._hooks.log.failed(settlement, error_of(settlement))


# --- dead children


@dataclass(frozen=True, slots=True)
class Death:
    """Death of a child."""

    worker: str
    #: how it died, for the log and the stored errors
    why: str
    #: what its scoreboard says that it was running
    records: Sequence[Slot]
    #: monotonic time
    at: float
    #: it ended on purpose (stop, recycling, an attempt that ignored its limit): only the culprit counts
    planned: bool = False


def decide(jobs: Sequence[Job], death: Death, registry: Registry, now_ms: float) -> list[Settlement]:
    """Return the settlement of each job that a dead child held, according to Redis; ``now_ms`` is Redis's time."""
    running = {place: record for record in death.records for place in record.places}
    # The process may have died under any job that ran, and of those whose handler was back under one whose end was not
    # stored. Jobs that were acked when they began are among them.
    held = {place_of(job) for job in jobs}
    begun = [record for record in death.records if record.flag != ENDED or not held.isdisjoint(record.places)]
    beside = sum(record.jobs for record in begun) - 1
    settlements = []
    for job in jobs:
        record = running.get(place_of(job))
        end = End(job, policy_of(registry.get(job.task), job))
        if record is None:
            # Not begun, or ended and not acked: in the second case it runs again, so the cause is put on record.
            settlements.append(end.give_back(f"not running: {death.why}"[:200], event=True))
            continue
        started_ms = int(now_ms - (time.monotonic() - record.started) * 1000)
        end = replace(end, started_ms=started_ms, run_ms=max(0, int((death.at - record.started) * 1000)))
        is_late = not death.planned and record.flag != ENDED and record.limit_at < death.at
        if record.flag == TIMED_OUT or is_late:
            settlements.append(end.overran(record.stack.decode(errors="replace") if record.flag == TIMED_OUT else ""))
        elif death.planned:
            settlements.append(end.give_back(f"interrupted: {death.why}"[:200], event=True, began=True))
        else:
            settlements.append(end.crashed(death.why, beside=beside))
    return settlements


def salvage(death: Death, ends: Ends, broker: Broker, queues: Sequence[Queue]) -> None:
    """Settle everything that a dead child held, or had begun after an early ack.

    Of the latter, more than 250 in one shard are left to a reaper. The jobs for whose ends nothing is called come
    first: what is called for the others may take its time. Shards of a cluster that cannot be reached are left out;
    what the others had is settled.

    Raises:
        QueueUnavailable: Redis is away, or a part of the cluster; to be called again. If nobody does, the leases run
            out.
    """
    parts, now_ms = Parts("salvage", broker, seconds=SHARD_SECONDS), broker.now_ms()
    shards = {(queue.name, number): queue for queue in queues for number in queue.numbers}
    held: list[Job] = []
    begun: list[Job] = []

    def read(queue: Queue, number: int) -> None:
        held.extend([job for job in queue.leases(number) if job.worker == death.worker])
        begun.extend(queue.begun(number, death.worker))

    done = [parts.attempt(place, partial(read, queue, place[1])) for place, queue in shards.items()]
    settlements = decide(held, death, ends.registry, now_ms)
    settlements += [crashed_early(job, death.why, now_ms) for job in begun]
    quiet: dict[Place, list[Settlement]] = {}
    for one in settlements:
        if not ends.has_listeners(one):
            quiet.setdefault((one.job.queue, one.job.shard), []).append(one)
    done += [parts.attempt(place, partial(ends.settle, shards[place], some)) for place, some in quiet.items()]
    for one in filter(ends.has_listeners, settlements):
        place = one.job.queue, one.job.shard
        if parts.retry_at(place):  # else the calls of listeners would be repeated
            done.append(False)
        elif ends.notify(shards[place], one):
            done.append(parts.attempt(place, partial(ends.settle, shards[place], [one])))
    if not all(done):
        raise QueueUnavailable("not all of them could be settled")


# --- leases that ran out


class LeaseReaper:
    """Duty that settles expired leases, by the policies of their tasks, in the shards that the shard poller names.

    A job whose task is not registered here is left to a dispatcher that has its policy. If there is none for ten
    minutes the job goes back uncounted, so that a worker meets it and it cannot stay reserved for ever.

    Args:
        ends: notifies and settles.
        name: of this process. It holds what it takes over under another name than its own jobs.
        broker: that of the queues; on a Cluster, one dead node delays no other.
    """

    def __init__(self, ends: Ends, name: str = "", broker: Broker | None = None) -> None:
        self._ends = ends
        self._name = f"{name}/settling"
        self._parts = Parts("reaper", broker)
        self._ring: Callable[[], None] = lambda: None
        #: shards with work, as of their last checks
        self._found: dict[tuple[Queue, int], Tick] = {}
        self._reminders = Reminders()
        self._checked_at: dict[Place, float] = {}

    def attach(self, ring: Callable[[], None]) -> None:
        """See :class:`~.loop.Duty`."""
        self._ring = ring

    def reap(self, queue: Queue, shard: int, tick: Tick) -> None:
        """Settle expired leases of a shard soon, and attempts of dead workers whose jobs were acked early."""
        self._found[queue, shard] = tick
        self._ring()

    def run(self) -> float:
        """Settle what was found. Returns the seconds until the next turn."""
        while self._found:
            queue, shard = next(iter(self._found))
            tick = self._found.pop((queue, shard))
            self._parts.attempt((queue.name, shard), partial(self._reap, queue, shard, tick))
        return NEVER

    def _reap(self, queue: Queue, shard: int, tick: Tick) -> None:
        """Settle what nothing is called for, then the others, as long as no other shard waits for its turn."""
        loud: list[Settlement] = []
        stayed = 0
        while tick.expired and (jobs := queue.expired(shard, offset=stayed)):
            decided = [self._decide(queue, job, tick.now_ms) for job in jobs]
            stayed += len(jobs) - self._settle_quiet(queue, [one for one in decided if one is not None], loud)
        if tick.begun:
            self._settle_quiet(queue, self._crashed_early(queue, shard, tick.now_ms), loud)
        while loud:
            if self._settle(queue, [loud.pop(0)]) and loud and self._found:
                self._checked_at.pop((queue.name, shard), None)
                self._found.setdefault((queue, shard), tick)
                return

    def _settle_quiet(self, queue: Queue, ends: Sequence[Settlement], loud: list[Settlement]) -> int:
        """Settle those for which nothing is called, and add the others to ``loud``. Return how many were taken over."""
        loud += [one for one in ends if self._ends.has_listeners(one)]
        return self._settle(queue, [one for one in ends if not self._ends.has_listeners(one)])

    def _settle(self, queue: Queue, ends: Sequence[Settlement]) -> int:
        """Take over the jobs, notify any listeners, and settle them. Return how many are out of the way now."""
        held = [one for one in ends if one.verb == "record"]  # by nobody
        leased = {one.job.id: one for one in ends if one.verb != "record"}
        taken = queue.take_over([one.job for one in leased.values()], self._name) if leased else []
        held += [replace(leased[job.id], job=job) for job in taken]
        is_over = [one for one in held if not self._ends.has_listeners(one) or self._ends.notify(queue, one)]
        self._ends.settle(queue, is_over)
        return len(taken) + len([one for one in is_over if one.verb == "record"])

    def _decide(self, queue: Queue, job: Job, now_ms: float) -> Settlement | None:
        end = End(job, policy_of(self._ends.registry.get(job.task), job))
        if self._is_ours(queue, job):
            return end.lost()
        if now_ms - job.deadline_ms < UNKNOWN_TASK_MS:
            return None
        reason, began = "lease ran out and no dispatcher knew the task", bool(job.flags & STARTED)
        return end.give_back(reason, event=True, began=began, unclear=True)

    def _crashed_early(self, queue: Queue, shard: int, now_ms: float) -> list[Settlement]:
        """Return the ends of what dead workers had begun in a shard after an early ack."""
        now = time.monotonic()
        if now - self._checked_at.get((queue.name, shard), -NEVER) < EARLY_CHECK_SECONDS:
            return []
        self._checked_at[queue.name, shard] = now
        workers = WorkerRegistry(queue.registry).workers()
        alive = {worker["name"] for worker in workers if is_alive(worker, now_ms, least_ms=SILENT_MS)}
        begun = queue.begun(shard, before_ms=now_ms - SILENT_MS, except_workers=alive)
        ours = [job for job in begun if now_ms - job.deadline_ms >= UNKNOWN_TASK_MS or self._is_ours(queue, job)]
        return [crashed_early(job, f"worker {job.worker} is gone", now_ms) for job in ours]

    def _is_ours(self, queue: Queue, job: Job) -> bool:
        # The jobs of a pull queue need no task, and a body that cannot be read names none.
        if queue.kind == "pull" or not job.task or job.task in self._ends.registry:
            return True
        if self._reminders.pass_on(job.task):
            text = "%s: its holder is gone, but the task %s is not registered here; left to a dispatcher that has it"
            logger.warning(text, job.id, job.task)
        return False
