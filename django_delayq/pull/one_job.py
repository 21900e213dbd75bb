"""Reserve of one certain job: by its id, or the first one that matches. Nothing waits here."""

from __future__ import annotations

import math
import time

from ..core.matching import USUAL_TTR_MS, Holder, Position
from ..core.matching import reserve_match as calls_of
from ..core.operations.job_filter import JobFilter
from ..core.outcomes import Batch
from ..core.queue import Queue
from . import permits
from .held import HeldJob, give_back


def reserve_id(queue: Queue, ident: str, holder: Holder) -> HeldJob | None:
    """Reserve the waiting (or buried) job of an id; return None if there is none, or it is not due."""
    batch = queue.reserve_id(
        ident,
        worker=holder.worker,
        ttr_ms=holder.ttr_ms or USUAL_TTR_MS,
        started=holder.started,
        prefer_own_ttr=holder.ttr_ms is None,
        early=holder.early,
        buried=holder.buried,
    )
    return _held(queue, batch, holder)


def reserve_match(
    queue: Queue, where: JobFilter, holder: Holder, after: Position | None = None, *, seconds: float = math.inf
) -> tuple[HeldJob | None, Position | None]:
    """Reserve the first job that matches.

    Args:
        after: position behind which to begin; None = at the beginning.
        seconds: time after which no further call is made.

    Returns:
        The job or None; without a job also the position where to continue, None if all jobs were examined.
    """
    give_up = time.monotonic() + seconds
    for batch, position in calls_of(queue, where, holder, after):
        held = _held(queue, batch, holder)
        if held is not None:
            return held, None
        if time.monotonic() >= give_up:
            return None, position
    return None, None


def _held(queue: Queue, batch: Batch, holder: Holder) -> HeldJob | None:
    """Return the job of a batch, if it gets the permits of its limits; otherwise give it back."""
    for job in batch.jobs:
        held = HeldJob(queue, job, batch, ttr_ms=holder.ttr_ms)
        if permits.admit(queue, job, holder.ttr_ms or job.ttr_ms or USUAL_TTR_MS):
            return held
        give_back([held])
    return None
