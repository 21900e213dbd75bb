"""Queue data for the page "What happens"."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.conf import settings

from django_delayq import QueueUnavailable
from django_delayq.connections import broker
from django_delayq.core.task import registry
from django_delayq.worker.recurring import works_of

if TYPE_CHECKING:
    from django_delayq.core import Counts, JobView

NEXT = 8
BURIED = 4


@dataclass(slots=True)
class Look:
    """State of the queues at one moment, or the ``error`` that prevented reading it."""

    counts: list[Counts] = field(default_factory=list)
    waiting: list[JobView] = field(default_factory=list)
    buried: list[JobView] = field(default_factory=list)
    workers: list[dict[str, Any]] = field(default_factory=list)
    recurring: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""


def look() -> Look:
    """Return the counts of every queue, the next due jobs, the buried jobs, and the registered workers."""
    try:
        redis = broker()
        inspector = redis.inspector
        counts = sorted(inspector.all_counts(), key=lambda one: one.queue)
        waiting = [job for one in counts if one.ready + one.delayed for job in inspector.peek(one.queue, NEXT)]
        buried = [
            job
            for one in counts
            if one.morgue
            for job in inspector.page(one.queue, "morgue", limit=BURIED, reverse=True).jobs
        ]
        now_ms = redis.now_ms()
        workers = [{**worker, "ago": max(0.0, now_ms - worker["seen_ms"]) / 1000} for worker in redis.workers()]
    except QueueUnavailable as error:
        return Look(error=f"The queue cannot be reached: {error}")
    return Look(
        counts=counts,
        waiting=sorted(waiting, key=lambda job: job.due_ms)[:NEXT],
        buried=sorted(buried, key=lambda job: job.buried_ms or 0, reverse=True)[:BURIED],
        workers=workers,
        recurring=recurring(now_ms),
    )


def recurring(now_ms: float) -> list[dict[str, Any]]:
    """Return the recurring tasks with their next times."""
    works = works_of(registry, settings.TIME_ZONE)
    found = [(work.recurrence.following(now_ms) or 0, work) for work in works]
    return [
        {"task": work.task.name, "schedule": work.recurrence.text, "next_ms": next_ms}
        for next_ms, work in sorted(found, key=lambda one: one[0])
    ]
