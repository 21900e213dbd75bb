"""Settlement of the jobs of a dead child, by the marks that it left on the scoreboard."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..core.job import Job
from ..core.requests import new_request
from ..core.settlement import Settlement
from ..core.task import Registry
from . import crash, unbegun
from .orphans import End
from .policy import Policy, policy_of
from .scoreboard import Mark, place_of

if TYPE_CHECKING:
    from ..core.queue import Queue
    from .orphans import Orphans

logger = logging.getLogger(__name__)


def decide(
    jobs: Sequence[Job], marks: Sequence[Mark], registry: Registry, why: str, *, planned: bool, died_at: float
) -> list[Settlement]:
    """Return the settlement of each job of a dead child.

    Args:
        jobs: what Redis says the child held.
        marks: what the board says it was running.
        why: how it died, for the stored error.
        planned: it ended on purpose (stop, recycling, an attempt that ignored its limit): only the culprit counts.
        died_at: monotonic time of the death.
    """
    running = {place: mark for mark in marks for place in mark.places}
    beside = _count_begun(jobs, marks) - 1
    settlements = []
    for job in jobs:
        mark = running.get(place_of(job))
        policy = policy_of(registry.get(job.task), job)
        if mark is None:
            # Not begun, or ended and not acked: in the second case it runs again, so the cause is put on record.
            settlements.append(_give_back(job, policy, f"not running: {why}"))
            continue
        run_ms = max(0, int((died_at - mark.started) * 1000))
        started_ms = int(time.time() * 1000 - (time.monotonic() - mark.started) * 1000)
        if mark.timed_out or (not (planned or mark.ended) and mark.limit_at < died_at):
            settlements.append(crash.overran(job, policy, started_ms, run_ms))
        elif planned:
            settlements.append(_give_back(job, policy, f"interrupted: {why}", began=True))
        else:
            settlements.append(crash.crashed(job, policy, why, beside=beside, started_ms=started_ms, run_ms=run_ms))
    return settlements


def _count_begun(jobs: Sequence[Job], marks: Sequence[Mark]) -> int:
    """Return the number of jobs under which the process may have died: those that ran, and of those whose handler was
    back, the ones whose end was not stored. Jobs that were acked when they began are among them."""
    held = {place_of(job) for job in jobs}
    begun = [mark for mark in marks if not mark.ended or not held.isdisjoint(mark.places)]
    return sum(1 + len(mark.others) for mark in begun)


def _give_back(job: Job, policy: Policy, reason: str, *, began: bool = False) -> Settlement:
    return unbegun.give_back(job, policy, reason=reason[:200], event=True, began=began)


class Salvage:
    """Settle everything that a dead worker held.

    What was decided and done is kept from one call of :meth:`run` to the next: a job that was taken over, so that its
    end can be notified, is no longer held by that worker, and would not be found again.

    Args:
        worker: name of the dead worker.
        marks: what its board says it was running.
        orphans: notifies of the ends.
        why: how it died.
        planned: see :func:`decide`.
        died_at: monotonic time of the death.
        expect: called with the seconds until a job is due that waits for quarantine now.
    """

    def __init__(
        self,
        worker: str,
        marks: Sequence[Mark],
        orphans: Orphans,
        why: str,
        *,
        planned: bool,
        died_at: float,
        expect: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._worker = worker
        self._marks = marks
        self._orphans = orphans
        self._why = why
        self._planned = planned
        self._died_at = died_at
        self._expect = expect
        self._seed = new_request()
        #: by queue: the settlements that nothing is called for; none any more once they are stored
        self._unnotified: dict[str, list[Settlement]] = {}
        self._notified: deque[End] = deque()

    @property
    def held_since(self) -> float:
        """Latest moment (monotonic) at which the lease of the next job began: it may have been taken over by now."""
        return max(self._died_at, *[end.taken_at for end in self._notified]) if self._notified else self._died_at

    def run(self, queues: Sequence[Queue]) -> None:
        """Settle the jobs for whose ends nothing is called first: what is called for the others may take its time.

        Raises:
            QueueUnavailable: Redis is away; may be called again. If nobody does, the leases run out.
        """
        for queue in queues:
            self._settle_unnotified(queue)
        if self._notified:
            with self._orphans.listening():
                while self._notified:
                    end = self._notified[0]
                    counted = self._orphans.finish(end)
                    self._notified.popleft()
                    self._account(end.queue, [end.settlement], [counted])
        for queue in queues:
            self._orphans.settle_begun(queue, self._worker, self._why)

    def _settle_unnotified(self, queue: Queue) -> None:
        if queue.name not in self._unnotified:
            settlements = decide(
                list(queue.held_by(self._worker)),
                self._marks,
                self._orphans.registry,
                self._why,
                planned=self._planned,
                died_at=self._died_at,
            )
            unnotified = self._unnotified[queue.name] = []
            for one in settlements:
                if self._orphans.has_listeners(one):
                    self._notified.append(End(queue, one))
                else:
                    unnotified.append(one)
        if unnotified := self._unnotified[queue.name]:
            counted = queue.settle(unnotified, seed=self._seed)
            self._unnotified[queue.name] = []
            self._account(queue, unnotified, counted)

    def _account(self, queue: Queue, settlements: list[Settlement], ends: list[bool]) -> None:
        queue.broker.tally.ended(queue.name, settlements)
        for settlement, counted in zip(settlements, ends, strict=True):
            if counted and settlement.verb != "release":
                logger.warning(
                    "%s: task %s %s: %s", settlement.job.id, settlement.job.task, settlement.outcome, self._why
                )
            if counted and settlement.quarantine:
                self._expect((settlement.delay_ms or 0) / 1000)
