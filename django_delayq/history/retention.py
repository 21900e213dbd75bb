"""Deletion of old hours and pipeline runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import router
from django.db.models import Model, Q, QuerySet
from django.utils import timezone

from ..models.history import HourlyStat, PipelineRun
from .moments import to_row
from .records import SILENT

#: rows per DELETE, so that no lock is held for long
CHUNK: Final = 5_000


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Number of rows that were deleted because of their age."""

    hours: int
    runs: int


def forget_hours(days: float) -> Forgotten:
    """Delete hours older than ``days`` days, and the records of pipeline runs that began before that.

    Runs in progress are kept, however old they are.

    Args:
        days: the value of ``DELAYQ["PIPELINE"]["keep_hours_days"]``.

    Raises:
        ValueError: it is not a number of days above 0.
    """
    if not 0 < days < 1_000_000:
        raise ValueError(f"days must be above 0, got {days!r}; to forget nothing, do not call this")
    now = timezone.now()
    try:
        old, began = datetime.now(UTC) - timedelta(days=days), now - timedelta(days=days)
    except OverflowError:
        return Forgotten(0, 0)
    hours = _table(HourlyStat).filter(hour__lt=to_row(old))
    ended = ~Q(state=PipelineRun.State.RUNNING) | Q(seen_at__lt=now - SILENT)
    runs = _table(PipelineRun).filter(ended, started_at__lt=began)
    return Forgotten(_delete(hours), _delete(runs))


def _table(model: type[Model]) -> QuerySet[Any]:
    return model._default_manager.using(router.db_for_write(model))


def _delete(rows: QuerySet[Any]) -> int:
    gone = 0
    while pks := list(rows.order_by("pk").values_list("pk", flat=True)[:CHUNK]):
        gone += rows.model._default_manager.using(rows.db).filter(pk__in=pks).delete()[0]
    return gone
