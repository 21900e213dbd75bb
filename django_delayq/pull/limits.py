"""Limits over all workers for pulled jobs: each job that is handed out holds a permit as long as its lease.

The permit is part of the job's state, so every process that settles or touches the job finds it. Limits of each process
do not concern pulled jobs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from ..core.job import Job
from ..core.limits import (
    Ask,
    Grant,
    LaneNotes,
    Limit,
    Limiter,
    is_counted,
    lasting_ms,
    limits_of,
    offer_of,
    pause_scope,
)
from ..core.outcomes import Batch, Offer, Settlement
from ..core.queue import Queue
from ..core.task import registry
from ..settings.conf import conf

#: reserves so many jobs with these notes for the shard
Send: TypeAlias = Callable[[int, bytes], Batch]
#: most calls of the limiter in one reserve: each lane that it does not grant is blocked for the next
_MOST_ROUNDS: Final = 10


def limits_here(queue: str, offer: Offer) -> list[Limit]:
    """Return the limits over all workers of the jobs of an offer, by the settings and tasks of this process."""
    return limits_of(queue, conf().queue(queue).limits, registry.get(offer.task), offer, _own.names)


class _OwnLimits:
    """Names of the limits that were set at run time, read again from time to time."""

    def __init__(self) -> None:
        self.names = frozenset[str]()
        self._read_at = -math.inf

    def read(self, limiter: Limiter, seconds: float) -> frozenset[str]:
        """Return the names; those of an earlier read if it is not longer ago than so many seconds."""
        now = time.monotonic()
        if now - self._read_at >= seconds:
            self.names, self._read_at = limiter.own_limits(), now
        return self.names


_own: Final = _OwnLimits()


def may_be_limited(queue: str) -> bool:
    """Return True if jobs of a queue without a group may have limits."""
    return bool(registry.limited or _own.names) or conf().queue(queue).limits is not None


def renew(queue: Queue, jobs: Iterable[Job], ttr_ms: int) -> None:
    """Renew the permits of jobs whose leases were renewed."""
    renewed = [(job.permit, lasting_ms(ttr_ms)) for job in jobs if is_counted(job.permit)]
    if renewed:
        Limiter(queue.registry).call(renew=renewed)


def give_back(queue: Queue, jobs: Iterable[Job]) -> None:
    """Return the permits of jobs that were settled; if that fails, they run out."""
    Limiter(queue.registry).give_back([job.permit for job in jobs])


def settle(queue: Queue, settlements: Sequence[Settlement]) -> list[bool]:
    """Settle jobs of one queue, and return their permits; see :meth:`.Queue.settle`."""
    for one in settlements:
        if one.pause is not None:
            pause_scope(Limiter(queue.registry), one, limits_here(queue.name, offer_of(one.job)))
    counted = queue.settle(settlements)
    give_back(queue, [settlement.job for settlement in settlements])
    return counted


def touch(queue: Queue, job: Job, ttr_ms: int) -> str:
    """Extend the lease of a started job with its permit; see :meth:`.Queue.touch`."""
    renew(queue, [job], ttr_ms)
    (answer,) = queue.touch([job], {(job.id, job.token)}, ttr_ms=ttr_ms)
    return answer


def reserve(queue: Queue, shard: int, room: int, send: Send, *, only: str | None = None) -> Batch:
    """Reserve jobs of a shard by ``send``, of limited tasks and queues those that get permits.

    ``only`` = jobs behind limits are of this task.
    """
    limiter, notes, found = Limiter(queue.registry), LaneNotes(), list[Job]()
    full = [name for name in registry.names if name != only] if only is not None else ()
    for rounds_left in reversed(range(_MOST_ROUNDS)):
        own = _own.read(limiter, queue.deployment.own_limits_seconds)
        notes.tasks, notes.most = [*registry.limited, *(n.removeprefix("task:") for n in own)], room - len(found)
        of_queue = conf().queue(queue.name).limits
        notes.whole, notes.full = (of_queue is not None and of_queue.is_shared) or f"queue:{queue.name}" in own, full
        batch = send(room - len(found), notes.pack())
        found += batch.jobs
        used = {job.permit for job in batch.jobs}
        limiter.give_back((), [grant.unused(used) for grant in notes.grants])
        if not batch.offers or len(found) >= room or not rounds_left:
            break
        notes = _ask(queue, shard, limiter, batch)
    batch.jobs = found
    return batch


def _ask(queue: Queue, shard: int, limiter: Limiter, batch: Batch) -> LaneNotes:
    notes, asks = LaneNotes(), list[Ask]()
    for offer in batch.offers:
        limits = limits_here(queue.name, offer)
        if limits:
            asks.append(Ask.of((queue.name, shard), offer, offer.jobs, limits))
        else:
            notes.grants.append(Grant(offer, offer.jobs))
    if asks:
        answer = limiter.call(asks)
        notes.grants += filter(None, answer.grants)
        notes.blocks += filter(None, answer.blocks)
    return notes
