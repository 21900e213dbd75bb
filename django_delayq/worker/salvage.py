"""What a supervisor does for the jobs of a child that is dead: settle them by what the board says it was doing."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.job import Job, Settlement
from ..core.task import Registry
from . import decision
from .board import Mark, place_of
from .run import NEVER

if TYPE_CHECKING:
    from ..core.queue import Queue
    from .orphans import Orphans

logger = logging.getLogger(__name__)


def verdicts(jobs: Sequence[Job], marks: Sequence[Mark], registry: Registry, why: str, *, planned: bool,
             died_at: float) -> list[Settlement]:  # fmt: skip
    """How each job of a dead child goes on.

    Args:
        jobs: what Redis says the child held.
        marks: what the board says it was running.
        why: how it died, for the stored error.
        planned: it ended on purpose (stop, recycling, a run that ignored its limit): nobody but the culprit counts.
        died_at: monotonic time of the death.
    """
    running = {place: mark for mark in marks for place in mark.places}
    beside = _begun(jobs, marks) - 1
    settlements = []
    for job in jobs:
        mark = running.get(place_of(job))
        policy = decision.policy_of(registry.get(job.task), job)
        if mark is None:
            # Not begun, or ended and not acked: in the second case it runs again, so the cause is put on record.
            settlements.append(_back(job, policy, f"not running: {why}"))
            continue
        run_ms = max(0, int((died_at - mark.started) * 1000))
        started_ms = int(time.time() * 1000 - (time.monotonic() - mark.started) * 1000)
        if mark.timed_out or (not planned and mark.limit_at < died_at):
            settlements.append(decision.overran(job, policy, started_ms, run_ms))
        elif planned:
            settlements.append(_back(job, policy, f"interrupted: {why}", began=True))
        else:
            settlements.append(decision.crashed(job, policy, why, beside=beside, started_ms=started_ms, run_ms=run_ms))
    return settlements


def _begun(jobs: Sequence[Job], marks: Sequence[Mark]) -> int:
    """Return the number of jobs under which the process may have died: those that ran, and of those whose handler was
    back, the ones whose end was not stored. Jobs that were acked when they began are among them."""
    held = {place_of(job) for job in jobs}
    begun = [mark for mark in marks if not mark.ended or not held.isdisjoint(mark.places)]
    return sum(1 + len(mark.others) for mark in begun)


def _back(job: Job, policy: decision.Policy, reason: str, *, began: bool = False) -> Settlement:
    return decision.give_back(job, policy, reason=reason[:200], event=True, began=began)


def salvage(queues: Sequence[Queue], worker: str, marks: Sequence[Mark], orphans: Orphans, why: str, *,
            planned: bool, died_at: float) -> float:  # fmt: skip
    """Settle everything that ``worker``, who is dead, held in ``queues``.

    Returns:
        Seconds until the first of the jobs is due that wait for quarantine now; infinite if none does.

    Raises:
        QueueUnavailable: Redis is away; may be called again. If nobody does, the leases run out.
    """
    soonest = NEVER
    for queue in queues:
        orphans.settle_begun(queue, worker, why)
        jobs = list(queue.held_by(worker))
        if not jobs:
            continue
        settlements = verdicts(jobs, marks, orphans.registry, why, planned=planned, died_at=died_at)
        ends = orphans.settle(queue, settlements)
        queue.broker.tally.ended(queue.name, settlements)
        for settlement, counted in zip(settlements, ends, strict=True):
            if counted and settlement.verb != "release":
                logger.warning("%s: task %s %s: %s", settlement.job.id, settlement.job.task, settlement.outcome, why)
            if counted and settlement.quarantine:
                soonest = min(soonest, (settlement.delay_ms or 0) / 1000)
    return soonest
