"""``ack="early"``: the job is done when its attempt begins, so it can never begin twice, and a crash loses it.

Redis keeps a record of the attempt until its end is stored, so that a crash also leaves an event.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from ..core.options import TaskOptions
from ..core.outcomes import Settlement
from .attempt import Attempt
from .ends import give_back
from .orphans import crashed_early

logger: Final = logging.getLogger(__name__)


def ack_early(attempt: Attempt, policy: TaskOptions) -> bool:
    """Ack the jobs of ``attempt``. Of those that may not begin, the settlement is left behind.

    Returns:
        Whether any of them may begin.
    """
    parts = attempt.live
    for part in parts:
        part.acked = True  # before the call: the heartbeat shall not take a lease that is gone for a lost one
    try:
        counted = attempt.queue.settle([Settlement(part.job, verb="ack_early", event=False) for part in parts])
    except Exception as error:
        # The ack may have been applied or not. If not, the release returns the job to its queue. If it was, the
        # release does nothing, and the job is lost rather than begun twice. Its attempt is then open in Redis, and no
        # process would close it while this worker lives, so its end is stored too; without such an attempt that does
        # nothing.
        logger.warning("%s: not begun, its early ack failed: %s", attempt.job.id, error)
        counted, is_unsure = [False] * len(parts), True
        reason = "its early ack failed"
    else:
        is_unsure = False
        reason = "the lease was lost before the attempt could begin"
        for part, good in zip(parts, counted, strict=True):
            part.lost = part.lost or not good
    for part, good in zip(parts, counted, strict=True):
        if not good:
            part.acked = False
            part.settlement = give_back(part.job, policy, reason=reason)
            if is_unsure:
                job = replace(part.job, deadline_ms=int(part.now_ms))
                part.settlement.also = crashed_early(job, reason, part.now_ms)
    return any(counted)
