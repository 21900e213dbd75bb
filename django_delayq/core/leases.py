"""Lookup of the leases of many jobs in many queues at once, without their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .job import MAX_ID_BYTES
from .operations.views import unpack_views
from .records.schedule_frames import pack_id
from .redis.scripts import Call

if TYPE_CHECKING:
    from .broker import Broker
    from .queue import Queue


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease of a job: its worker, and its end (Unix ms on Redis's clock) unless it is renewed."""

    worker: str
    ends_ms: int


def leases(broker: Broker, jobs: Sequence[tuple[Queue, str]]) -> list[Lease | None]:
    """Return the leases of jobs; see :meth:`Inspector.leases`."""
    leases_by_job: list[Lease | None] = [None] * len(jobs)
    targets: list[tuple[int, int]] = []
    calls: list[Call] = []
    for place, (queue, ident) in enumerate(jobs):
        if not 0 < len(ident.encode()) <= MAX_ID_BYTES:
            continue  # no job has such an id, and the script cannot take it
        for number in queue.homes(ident):
            targets.append((place, number))
            # One id in each call: a reply for several may be cut short, which would need another call.
            calls.append(Call.on_shard("view", queue.shard(number), pack_id(ident), b"0"))
    for (place, number), frame in zip(targets, broker.scripts.call_many(calls), strict=True):
        queue, ident = jobs[place]
        for view in unpack_views(queue.name, number, [ident], frame):
            if view is not None and view.deadline_ms is not None:
                leases_by_job[place] = Lease(view.job.worker, view.deadline_ms)
    return leases_by_job
