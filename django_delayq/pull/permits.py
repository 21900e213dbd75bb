"""Permits of pulled jobs of limited tasks and queues: each reserved job holds one as long as its lease.

The permit is named after the job and its token, so that every process that settles or touches the job finds it. Pulled
jobs are not counted in limits of each process.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from ..core.errors import DelayQError
from ..core.job import Job
from ..core.options import Concurrency
from ..core.outcomes import Batch, Settlement
from ..core.permits import Holding, change
from ..core.queue import Queue
from ..core.records.frames import Allowance
from ..core.task import registry
from ..core.times import USUAL_TTR_MS
from ..settings.conf import conf

logger: Final = logging.getLogger("django_delayq.pull.slots")

#: reserves so many jobs with these allowances
Send: TypeAlias = Callable[[int, Sequence[Allowance]], Batch]
#: ms after which a shard without a free permit is tried again, if no holder of a permit is known
_RETRY_MS: Final = 5000.0


def _total_of(concurrency: object) -> int | None:
    return concurrency.total if isinstance(concurrency, Concurrency) else None


def _limited_tasks() -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return task → its limit over all workers, and its names."""
    totals = {task.name: _total_of(task.options.concurrency) for task in registry.limited.values()}
    return {
        name: (total, tuple(other for other, task in registry.limited.items() if task.name == name))
        for name, total in totals.items()
        if total is not None
    }


def _limits_of(queue: str, task: str) -> Iterator[tuple[str, int]]:
    """Yield the limits of a job: name and number of permits."""
    limited = registry.limited.get(task)
    for name, concurrency in (
        (f"queue:{queue}", conf().queue(queue).concurrency),
        (f"task:{limited.name}" if limited else "", limited.options.concurrency if limited else None),
    ):
        if (total := _total_of(concurrency)) is not None:
            yield name, total


def _holder(job: Job) -> str:
    return f"job:{job.shard}:{job.token}:{job.queue}:{job.id}"


def _change_all(queue: Queue, jobs: Iterable[Job], n: int, ms: int) -> None:
    by_limit: dict[tuple[str, int], list[Holding]] = {}
    for job in jobs:
        for limit in _limits_of(queue.name, job.task):
            by_limit.setdefault(limit, []).append(Holding(_holder(job), n, n, ms))
    for (name, total), holdings in by_limit.items():
        change(queue.deployment, name, total, holdings)


def are_needed(queue: str) -> bool:
    """Return True if jobs of a queue may need permits."""
    return bool(registry.limited) or conf().queue(queue).concurrency is not None


def renew(queue: Queue, jobs: Iterable[Job], ttr_ms: int) -> None:
    """Renew the permits of jobs whose leases were renewed."""
    _change_all(queue, jobs, 1, _lasting(ttr_ms))


def give_back(queue: Queue, jobs: Iterable[Job]) -> None:
    """Return the permits of jobs that were settled. Errors are logged; the permits run out then."""
    try:
        _change_all(queue, jobs, 0, 0)
    except DelayQError as error:
        logger.info("permits of jobs of %s are not returned, they run out: %s", queue.name, error)


def settle(queue: Queue, settlements: Sequence[Settlement]) -> list[bool]:
    """Settle jobs of one queue, and return their permits; see :meth:`.Queue.settle`."""
    counted = queue.settle(settlements)
    give_back(queue, [settlement.job for settlement in settlements])
    return counted


def touch(queue: Queue, job: Job, ttr_ms: int) -> str:
    """Extend the lease of a started job with its permits; see :meth:`.Queue.touch`."""
    (answer,) = queue.touch([job], {(job.id, job.token)}, ttr_ms=ttr_ms)
    if answer != "lost":
        renew(queue, [job], ttr_ms)
    return answer


def _lasting(ttr_ms: int) -> int:
    return ttr_ms + ttr_ms // 10


class _Call:
    """Permits that one reserve takes before its jobs are known."""

    def __init__(self, queue: Queue, shard: int, ttr_ms: int | None) -> None:
        self._queue = queue
        self._shard = shard
        self._ttr_ms = ttr_ms
        self._holder = f"call:{os.urandom(8).hex()}"
        self._taken: dict[str, int] = {}
        #: ms after which a limit may have free permits again
        self.retry_ms: float | None = None

    def take(self, name: str, total: int, n: int) -> int:
        """Return how many permits of ``n`` there are; if there is none, the shard waits for one."""
        self._taken[name] = total
        place = self._queue.name, self._shard
        reply = change(
            self._queue.deployment,
            name,
            total,
            [Holding(self._holder, 0, n, _lasting(self._ttr_ms or USUAL_TTR_MS))],
            place,
        )
        if not reply.granted[0]:
            self.retry_ms = min(reply.retry_ms or _RETRY_MS, self.retry_ms or _RETRY_MS)
        return reply.granted[0]

    def _ms_of(self, job: Job) -> int:
        return _lasting(self._ttr_ms or job.ttr_ms or USUAL_TTR_MS)

    def hand_over(self, jobs: Sequence[Job]) -> None:
        """Give the permits to the jobs, and return the others."""
        deployment = self._queue.deployment
        for name, total in self._taken.items():
            mine = [job for job in jobs if name in dict(_limits_of(self._queue.name, job.task))]
            holdings = [
                Holding(self._holder, 0, 0, 0),
                *(Holding(_holder(job), 1, 1, self._ms_of(job)) for job in mine),
            ]
            change(deployment, name, total, holdings)


def reserve(queue: Queue, shard: int, room: int, ttr_ms: int | None, send: Send) -> Batch:
    """Reserve jobs of a shard by ``send``, no more of a limited task or queue than there are permits."""
    tasks, total = _limited_tasks() if registry.limited else {}, _total_of(conf().queue(queue.name).concurrency)
    if not tasks and total is None:
        return send(room, ())
    call = _Call(queue, shard, ttr_ms)
    batch = Batch()
    try:
        if total is not None:
            room = call.take(f"queue:{queue.name}", total, room)
        batch = _reserve(call, tasks, room, send) if room else batch
    except BaseException:
        with contextlib.suppress(DelayQError):
            call.hand_over([])
        raise
    call.hand_over(batch.jobs)
    if call.retry_ms is not None and not batch.jobs:
        batch.next_due_ms = min(call.retry_ms, batch.next_due_ms if batch.next_due_ms is not None else call.retry_ms)
    return batch


def _reserve(call: _Call, tasks: dict[str, tuple[int, tuple[str, ...]]], room: int, send: Send) -> Batch:
    batch = send(room, [Allowance(names, 0) for _, names in tasks.values()])
    if batch.jobs or not any(batch.parked):
        return batch
    allowances = [
        Allowance(names, call.take(f"task:{task}", total, min(parked, room)) if parked else 0)
        for (task, (total, names)), parked in zip(tasks.items(), batch.parked, strict=True)
    ]
    return send(room, allowances) if any(one.left for one in allowances) else batch


def admit(queue: Queue, job: Job, ttr_ms: int) -> bool:
    """Return True if a job that was reserved by its id gets the permits that it needs."""
    for name, total in _limits_of(queue.name, job.task):
        reply = change(queue.deployment, name, total, [Holding(_holder(job), 0, 1, _lasting(ttr_ms))])
        if not reply.granted[0]:
            give_back(queue, [job])
            return False
    return True
