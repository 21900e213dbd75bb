"""Recurring tasks that are registered in this process, with their ticks, and pauses of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.conf import settings

from ..core.registry import recurring_pauses
from ..core.task import registry
from ..worker.recurring import Work, works_of
from .snapshot import RecurringStatus

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue


def read_recurring(broker: Broker) -> tuple[RecurringStatus, ...]:
    """Return the status of the recurring tasks of this process and the pauses of others, ordered by task name."""
    return recurring_of(broker, broker.queues(), broker.now_ms())


def recurring_of(broker: Broker, queues: Sequence[Queue], now_ms: float) -> tuple[RecurringStatus, ...]:
    """Return the status of recurring tasks and the pauses of unknown ones, ordered by task name.

    A task whose queue is not among ``queues`` has no last tick.
    """
    by_name = {queue.name: queue for queue in queues}
    works = works_of(registry, settings.TIME_ZONE or "UTC")
    of_known_queues = [work for work in works if work.task.options.queue in by_name]
    ticks = broker.inspector.last_ticks([(by_name[work.task.options.queue], work.id) for work in of_known_queues])
    last = dict(zip((work.id for work in of_known_queues), ticks, strict=True))
    paused = recurring_pauses(broker)
    since = {work.id: _paused_ms(work, paused) for work in works}
    known = {name for work in works for name in work.task.names}
    statuses = [
        RecurringStatus(
            task=work.task.name,
            queue=work.task.options.queue,
            schedule=work.recurrence.text,
            timezone=work.recurrence.zone,
            missed=work.task.options.missed,
            last_tick_ms=last.get(work.id),
            next_tick_ms=work.recurrence.following(now_ms) if since[work.id] is None else None,
            paused_ms=since[work.id],
        )
        for work in works
    ]
    statuses += [RecurringStatus(name, paused_ms=since_ms) for name, since_ms in paused.items() if name not in known]
    return tuple(sorted(statuses, key=lambda one: one.task))


def _paused_ms(work: Work, paused: dict[str, int]) -> int | None:
    """Return since when a task is paused, under whichever of its names."""
    return min((paused[name] for name in work.task.names if name in paused), default=None)
