"""Orphans: jobs whose holder is gone. Who settles them notifies those who listen, as a worker does for its own jobs.

The supervisor settles for its dead children, in a thread of its own for each: it alone knows how they died, and has
loaded the project. The reaper of a dispatcher settles what nobody else did. Both take a job over before they notify,
so that one process alone does, and settle it after: if that process dies in between, the lease ends and a dispatcher
begins anew. What a listener does therefore happens at least once; once, if nothing dies. Listeners that take longer
than the job's time limit, or than the lease, are given up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ..core.job import new_request
from ..core.outcomes import AttemptOutcome, Settlement
from .attempt import NEVER, trusted
from .ends import policy_of
from .hooks import Hooks, Notifier, error_of
from .limited_calls import HangingCall, LimitedCalls
from .record import record_of

if TYPE_CHECKING:
    from ..core.job import Job
    from ..core.queue import Queue
    from ..core.task import Registry

logger: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class End:
    """End of a job whose holder is gone, on its way into Redis.

    It may be tried again after an error: what was done before is kept, and a call is sent again as it was.
    """

    queue: Queue
    settlement: Settlement
    seed: bytes = field(default_factory=new_request)
    #: since when this process holds the job (monotonic); 0 = it does not
    taken_at: float = 0.0
    notified: bool = False


class Orphans:
    """Settle jobs that other processes held, and notify of their ends.

    Args:
        registry: the tasks.
        hooks: who listens.
        name: of this process, which holds those jobs meanwhile. It holds them under another name than its own jobs.
    """

    def __init__(self, registry: Registry, hooks: Hooks | None = None, name: str = "") -> None:
        self.registry = registry
        self._name = f"{name}/settling"
        self._hooks = hooks or Hooks()
        self._notifier = Notifier(self._hooks)

    def has_listeners(self, settlement: Settlement) -> bool:
        """Return True if anything is called for this end."""
        return self._notifier.has_listeners(settlement, self.registry.get(settlement.job.task))

    def settle(self, queue: Queue, settlements: Sequence[Settlement]) -> list[bool]:
        """Settle jobs of a queue, those first for whose ends nothing is called.

        Returns:
            For each, whether it counted.
        """
        counted: dict[int, bool] = {}
        unnotified = [place for place, one in enumerate(settlements) if not self.has_listeners(one)]
        counted.update(zip(unnotified, queue.settle([settlements[place] for place in unnotified]), strict=True))
        notified = [place for place in range(len(settlements)) if place not in counted]
        if notified:
            with self.listeners() as listeners:
                counted.update((place, self.finish(End(queue, settlements[place]), listeners)) for place in notified)
        return [counted[place] for place in range(len(settlements))]

    def log(self, settlement: Settlement) -> None:
        """Log an end that is stored, as a worker does for its own jobs."""
        self._hooks.log.failed(settlement, error_of(settlement))

    def listeners(self) -> LimitedCalls:
        """Return the thread in which :meth:`finish` calls listeners, a context manager."""
        return LimitedCalls("delayq-listeners", self._hooks.thread_start, self._hooks.thread_end)

    def finish(self, end: End, listeners: LimitedCalls) -> bool:
        """Notify of an end and settle the job. May be called again after an error.

        Returns:
            Whether it counted.
        """
        settlement = end.settlement
        if settlement.verb != "record" and not end.taken_at:  # a record is held by nobody
            job = end.queue.take_over(
                settlement.job, self._name, only_expired=settlement.guard == "expired", request=end.seed
            )
            if job is None:
                return False
            end.taken_at = time.monotonic()
            end.settlement = replace(settlement, job=job, guard="token")
        if not end.notified:
            if not self._notify_limited(end.queue, end.settlement, listeners):
                return False
            end.notified = True
        return end.queue.settle([end.settlement], seed=end.seed)[0]

    def _notify_limited(self, queue: Queue, settlement: Settlement, listeners: LimitedCalls) -> bool:
        """Notify of an end. Listeners that hang are given up: otherwise each process that settles it would hang."""
        job = settlement.job
        limit = policy_of(self.registry.get(job.task), job).timeout or NEVER
        seconds = min(limit, trusted(queue.deployment.lease_ms / 1000))
        try:
            return listeners.call(lambda: copy_context().run(self._notify, queue, settlement), seconds)
        except HangingCall as error:
            text = "%s: the listeners to its end (%s) did not end within %.1f s and are given up\n%s"
            logger.error(text, job.id, settlement.outcome, seconds, error)
            return True

    def _notify(self, queue: Queue, settlement: Settlement) -> bool:
        """Notify of an end. Returns False if that is to be tried again, when the lease is over."""
        job, hooks = settlement.job, self._hooks
        try:
            if hooks.before_job is not None:
                hooks.before_job(job)
        except Exception:
            logger.exception("%s: its end (%s) is settled later, before_job failed", job.id, settlement.outcome)
            return False
        self._notifier.ended_elsewhere(queue, self.registry.get(job.task), settlement)
        try:
            if hooks.after_job is not None:
                hooks.after_job(job)
        except Exception:
            logger.exception("%s: what listened to its end left something behind", job.id)
        return True

    # --- jobs that were acked before they began

    def settle_begun(self, queue: Queue, number: int, worker: str, why: str) -> None:
        """Record as crashed what a dead worker had begun in a shard after an early ack."""
        while jobs := queue.begun(number, worker):
            settlements = [crashed_early(job, why, queue.deployment.now_ms()) for job in jobs]
            if not sum(self.settle(queue, settlements)):
                break
            queue.tally.ended(queue.name, settlements)


def crashed_early(job: Job, why: str, now_ms: float) -> Settlement:
    """Return the end of an attempt whose process died. The job was acked before, so it never begins again."""
    return Settlement(
        job,
        job.deadline_ms,
        max(0, int(now_ms) - job.deadline_ms),
        verb="record",
        outcome=AttemptOutcome.CRASHED,
        reason=why[:200],
        error_class="Crashed",
        error=record_of("Crashed", why),
        guard="expired",
    )
