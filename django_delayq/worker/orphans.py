"""Orphans: jobs whose holder is gone. Who settles them notifies those who listen, as a worker does for its own jobs.

The supervisor settles for its dead children, in a thread of its own for each: it alone knows how they died, and has
loaded the project. The reaper of a dispatcher settles what nobody else did. Both take a job over before they notify,
so that one process alone does, and settle it after: if that process dies in between, the lease ends and a dispatcher
begins anew. What a listener does therefore happens at least once; once, if nothing dies and it takes less than a lease.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..core.job import Settlement
from .hooks import Hooks
from .notifier import Notifier
from .record import record_of

if TYPE_CHECKING:
    from ..core.job import Job
    from ..core.queue import Queue
    from ..core.task import Registry

logger: Final = logging.getLogger(__name__)


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

    def is_heard(self, settlement: Settlement) -> bool:
        """Return True if anything is called for this end."""
        return self._notifier.is_heard(settlement, self.registry.get(settlement.job.task))

    def settle(self, queue: Queue, settlements: Sequence[Settlement]) -> list[bool]:
        """Settle jobs of a queue, those first for whose ends nothing is called.

        Returns:
            For each, whether it counted.
        """
        counted: dict[int, bool] = {}
        quiet = [place for place, one in enumerate(settlements) if not self.is_heard(one)]
        counted.update(zip(quiet, queue.settle([settlements[place] for place in quiet]), strict=True))
        heard = [place for place in range(len(settlements)) if place not in counted]
        if heard:
            self._hooks.thread_start()
            try:
                counted.update((place, self._settle_heard(queue, settlements[place])) for place in heard)
            finally:
                self._hooks.thread_end()
        return [counted[place] for place in range(len(settlements))]

    def _settle_heard(self, queue: Queue, settlement: Settlement) -> bool:
        if settlement.verb != "record":  # a record is held by nobody
            job = queue.take_over(settlement.job, self._name, only_expired=settlement.guard == "expired")
            if job is None:
                return False
            settlement = replace(settlement, job=job, guard="token")
        return copy_context().run(self._notify, queue, settlement) and queue.settle([settlement])[0]

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

    def settle_begun(self, queue: Queue, worker: str, why: str) -> int:
        """Record as crashed what a dead worker had begun after an early ack. Returns how many jobs that were."""
        total = 0
        for number in queue.numbers:
            while jobs := queue.begun(number, worker):
                settlements = [crashed_early(job, why, queue.broker.now_ms()) for job in jobs]
                counted = sum(self.settle(queue, settlements))
                if not counted:
                    break
                total += counted
                queue.broker.tally.ended(queue.name, settlements)
        return total


def crashed_early(job: Job, why: str, now_ms: float) -> Settlement:
    """Return the end of a run that its process took along; the job was acked before, so it never begins again."""
    record = record_of("Crashed", why)
    return Settlement(
        job,
        "record",
        job.deadline_ms,
        max(0, int(now_ms) - job.deadline_ms),
        None,
        "crashed",
        why[:200],
        "Crashed",
        record,
        guard="expired",
    )
