"""Reserve of the job of an id. Nothing waits here."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.limits import Ask, Limiter, lasting_ms
from ..core.outcomes import Offer
from ..core.queue import Queue
from ..core.reading import Inspector
from ..core.times import USUAL_TTR_MS
from .held import HeldJob
from .limits import are_needed, limits_of_job


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

    Return None if there is none, if it is not due, or if a limit of it has no free permit.
    """
    limiter, grant = Limiter(queue.registry), None
    if are_needed(queue.name) and (ask := _ask(queue, ident, holder)) is not None:
        (grant,) = limiter.call([ask]).grants
        if grant is None:
            return None
    batch = queue.reserve_id(
        ident,
        worker=holder.worker,
        ttr_ms=holder.ttr_ms or USUAL_TTR_MS,
        started=True,
        prefer_own_ttr=holder.ttr_ms is None,
        early=holder.early,
        buried=holder.buried,
        permit=grant.permits[0] if grant else b"",
    )
    for job in batch.jobs:
        return HeldJob(queue, job, batch, ttr_ms=holder.ttr_ms)
    if grant:
        limiter.give_back((), [grant.unused(())])
    return None


def _ask(queue: Queue, ident: str, holder: Holder) -> Ask | None:
    """Return the request for the permit of a job; None if no limit counts it, or there is no such job."""
    view = Inspector(queue.registry).get(queue.name, ident, most_bytes=0)
    limits = limits_of_job(queue.name, view.job.task) if view else []
    if view is None or not limits:
        return None
    ms = lasting_ms(holder.ttr_ms or view.job.ttr_ms or USUAL_TTR_MS)
    offer = Offer(b"", view.job.task, 1, ms, 0)
    return Ask.of((queue.name, view.job.shard), offer, 1, limits)
