"""Queues that occur in the history."""

from __future__ import annotations

from django.db import router

from ..models.history import HourlyStat


def known_queues() -> list[str]:
    """Return all queues in the history, sorted."""
    rows = HourlyStat._default_manager.using(router.db_for_read(HourlyStat))
    return list(rows.order_by("queue").values_list("queue", flat=True).distinct())
