"""Reserve of the job of an id. Nothing waits here."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.queue import Queue
from ..core.times import USUAL_TTR_MS
from . import permits
from .held import HeldJob, give_back


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of the job that is wanted, and its lease; see :meth:`.Queue.reserve_id`.

    Attributes:
        ttr_ms: length of the lease; None = the job's own, else :data:`USUAL_TTR_MS`.
        early: take the job also before it is due.
        buried: take the job also from the morgue.
    """

    worker: str
    ttr_ms: int | None
    early: bool = False
    buried: bool = False


def reserve_id(queue: Queue, ident: str, holder: Holder) -> HeldJob | None:
    """Reserve the waiting (or buried) job of an id.

    Return None if there is none, if it is not due, or if a limit of it has no free permit; then it is given back.
    """
    batch = queue.reserve_id(
        ident,
        worker=holder.worker,
        ttr_ms=holder.ttr_ms or USUAL_TTR_MS,
        started=True,
        prefer_own_ttr=holder.ttr_ms is None,
        early=holder.early,
        buried=holder.buried,
    )
    for job in batch.jobs:
        held = HeldJob(queue, job, batch, ttr_ms=holder.ttr_ms)
        if permits.admit(queue, job, holder.ttr_ms or job.ttr_ms or USUAL_TTR_MS):
            return held
        give_back([held])
    return None
