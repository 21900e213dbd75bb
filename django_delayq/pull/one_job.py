"""Reserve of the job of an id. Nothing waits here."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.limits import Ask, Limiter, lasting_ms, offer_of
from ..core.queue import Queue
from ..core.reading import Inspector
from ..core.times import USUAL_TTR_MS
from .held import HeldJob, give_back
from .limits import limits_here, may_be_limited


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
    return _reserve(queue, ident, holder, asks=may_be_limited(queue.name))


def _reserve(queue: Queue, ident: str, holder: Holder, *, asks: bool) -> HeldJob | None:
    """Reserve the job; with ``asks`` its permit is taken before. Else it goes back if its group turns out limited."""
    limiter, grant = Limiter(queue.registry), None
    if asks and (ask := _ask(queue, ident, holder)) is not None:
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
        held = HeldJob(queue, job, batch, ttr_ms=holder.ttr_ms)
        if asks or not limits_here(queue.name, offer_of(job)):
            return held
        give_back([held])
        return _reserve(queue, ident, holder, asks=True)
    if grant:
        limiter.give_back((), [grant.unused(())])
    return None


def _ask(queue: Queue, ident: str, holder: Holder) -> Ask | None:
    """Return the request for the permit of a job; None if no limit counts it, or there is no such job."""
    view = Inspector(queue.registry).get(queue.name, ident, most_bytes=0)
    if view is None:
        return None
    job = view.job
    offer = offer_of(job, lasting_ms(holder.ttr_ms or job.ttr_ms or USUAL_TTR_MS))
    limits = limits_here(queue.name, offer)
    return Ask.of((queue.name, job.shard), offer, 1, limits) if limits else None
