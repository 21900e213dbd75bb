"""Queues and tasks that occur in the history."""

from __future__ import annotations

from typing import Final

from ..models.history import HourlyStat

#: maximum number of (queue, task) pairs that are looked up
MOST: Final = 500


def known_tasks(most: int = MOST) -> list[tuple[str, str]]:
    """Return the first ``most`` pairs of queue and task in the history, sorted."""
    return list(HourlyStat._default_manager.order_by("queue", "task").values_list("queue", "task").distinct()[:most])


def known_queues() -> list[str]:
    """Return all queues in the history, sorted."""
    return list(HourlyStat._default_manager.order_by("queue").values_list("queue", flat=True).distinct())
