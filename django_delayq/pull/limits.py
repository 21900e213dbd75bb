"""Limits over all workers for pulled jobs: each job that is handed out holds a permit as long as its lease.

The permit is part of the job's state, so every process that settles or touches the job finds it. Limits of each process
do not concern pulled jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from ..core.job import Job
from ..core.limits import (
    Ask,
    Grant,
    LaneNotes,
    Limiter,
    is_counted,
    lasting_ms,
    limits_of,
    offer_of,
    pause_scope,
)
from ..core.options import Limits
from ..core.outcomes import Batch, Offer, Settlement
from ..core.queue import Queue
from ..core.registry import QueueRegistry
from ..core.task import registry
from ..settings.conf import conf

#: reserves so many jobs with these notes for the shard
Send: TypeAlias = Callable[[int, bytes], Batch]
#: most calls of the limiter in one reserve: each lane that it does not grant is blocked for the next
_MOST_ROUNDS: Final = 10


def limits_here(queue: Queue, offer: Offer) -> dict[str, Limits]:
    """Return the limits over all workers of the jobs of an offer, by the settings and tasks of this process."""
    return limits_of(queue.name, conf().queue(queue.name).limits, registry.get(offer.task), offer, _own_limits(queue))


def _own_limits(queue: Queue) -> frozenset[str]:
    """Return the names of the limits that were set at run time, as they were a few seconds ago."""
    return _read_own_limits(queue.registry, time.monotonic() // queue.deployment.own_limits_seconds)


@lru_cache(maxsize=1)
def _read_own_limits(queues: QueueRegistry[Any], period: float) -> frozenset[str]:
    """Read the names, once in each period of some seconds."""
    return Limiter(queues).own_limits()


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
            pause_scope(Limiter(queue.registry), one, limits_here(queue, offer_of(one.job)))
    counted = queue.settle(settlements)
    give_back(queue, [settlement.job for settlement in settlements])
    return counted


def reserve(queue: Queue, shard: int, room: int, send: Send, *, only: str | None = None) -> Batch:
    """Reserve jobs of a shard by ``send``, of limited tasks and queues those that get permits.

    ``only`` = jobs behind limits are of this task.
    """
    limiter, notes, found = Limiter(queue.registry), LaneNotes(), list[Job]()
    full = [name for name in registry.names if name != only] if only is not None else ()
    for rounds_left in reversed(range(_MOST_ROUNDS)):
        notes.name(queue.name, conf().queue(queue.name).limits, registry.limited, _own_limits(queue))
        notes.full, notes.most = full, room - len(found)
        batch = send(notes.most - notes.granted, notes.pack())
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
        limits = limits_here(queue, offer)
        if limits:
            asks.append(Ask.of((queue.name, shard), offer, offer.jobs, limits))
        else:
            notes.grants.append(Grant(offer, offer.jobs))
    if asks:
        answer = limiter.call(asks)
        notes.grants += filter(None, answer.grants)
        notes.blocks += filter(None, answer.blocks)
    return notes
