"""``ack="early"``: the job is done when its run begins, so that it can never begin twice; a crash loses it.

Redis keeps what is known of the run until its end is stored, so that a crash leaves its event, too.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from ..core.job import Settlement
from . import decision
from .decision import Policy
from .orphans import crashed_early
from .run import NEVER, Run

logger: Final = logging.getLogger(__name__)


def ack_early(run: Run, policy: Policy) -> bool:
    """Ack the jobs of ``run``. Of those that may not begin, the settlement is left behind.

    Returns:
        Whether any of them may begin.
    """
    parts = run.live
    deadlines = [part.deadline for part in parts]
    for part in parts:
        part.deadline = NEVER  # before the call: the heartbeat shall not take a lease that is gone for a lost one
    try:
        counted = run.queue.settle([Settlement(part.job, "ack_early", event=False) for part in parts])
    except Exception as error:
        # It may have been applied or not. If not, giving back puts the job in again; if it was, giving back does
        # nothing, and the job is lost rather than begun twice. Its run is open then in Redis, and nobody would look for
        # it while this worker lives, so its end is stored too; that does nothing if there is no such run.
        logger.warning("%s: not begun, its early ack could not be made: %s", run.job.id, error)
        counted, is_unsure = [False] * len(parts), True
        reason = "its early ack could not be made"
    else:
        is_unsure = False
        reason = "the lease was lost before the run could start"
        for part, good in zip(parts, counted, strict=True):
            part.lost = part.lost or not good
    for part, deadline, good in zip(parts, deadlines, counted, strict=True):
        if not good:
            part.deadline = deadline
            part.settlement = decision.give_back(part.job, policy, reason=reason)
            if is_unsure:
                job = replace(part.job, deadline_ms=int(part.now_ms))
                part.settlement.also = crashed_early(job, reason, part.now_ms)
    return any(counted)
