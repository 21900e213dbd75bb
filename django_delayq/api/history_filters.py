"""Filters of the history endpoints: what a query selects, and which queues its user may see."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import QuerySet
from django.utils import timezone
from rest_framework.request import Request

from ..access.permissions import allows, may_use
from ..access.problems import invalid
from ..history.periods import Period, SeriesQuery, to_row
from ..history.records import DIED, SILENT
from ..history.series import known_queues
from ..models.history import HourlyStat, PipelineRun

_USUAL: Final = timedelta(days=1)
_LARGEST: Final = 2**63


def period_of(query: Mapping[str, Any]) -> Period:
    """Return the period of a query; without bounds the last 24 hours.

    Raises:
        Problem: it is empty, or too long.
    """
    end = query["to"] or datetime.now(UTC)
    try:
        return Period.between(query["from"] or end - _USUAL, end)
    except (ValueError, OverflowError) as error:
        raise invalid(str(error), ("/from", str(error))) from None


def hours_of(request: Request, query: Mapping[str, Any]) -> QuerySet[HourlyStat]:
    """Return the hours that a query selects; a missing bound does not limit."""
    rows = series_of(request, query).rows(HourlyStat._default_manager.all())
    if query["from"] is not None:
        rows = rows.filter(hour__gte=to_row(query["from"]))
    return rows if query["to"] is None else rows.filter(hour__lt=to_row(query["to"]))


def series_of(request: Request, query: Mapping[str, Any], period: Period | None = None) -> SeriesQuery:
    """Return the row filter of a query, limited to queues its user may see."""
    return SeriesQuery(query["queue"], query["task"], period, _visible_queues(request))


def _visible_queues(request: Request) -> frozenset[str] | None:
    """Return the queues that the project's ``allow`` rule lets the user see; None = all."""
    if allows() is None:
        return None
    return frozenset(name for name in known_queues() if may_use(request, "view", name))


def runs_of(request: Request, query: Mapping[str, Any]) -> QuerySet[PipelineRun]:
    """Return the pipeline runs that a query selects, newest first: those without a queue, or with a visible one.

    Raises:
        Problem: the cursor is invalid.
    """
    runs = PipelineRun._default_manager.filter(**_conditions(query)).order_by("-pk")
    if allows() is None:
        return runs
    names = PipelineRun._default_manager.order_by("queue").values_list("queue", flat=True).distinct()
    return runs.filter(queue__in=[name for name in names if not name or may_use(request, "view", name)])


def _conditions(query: Mapping[str, Any]) -> dict[str, Any]:
    conditions: dict[str, Any] = {name: query[name] for name in ("kind", "run_id") if query[name]}
    if query["state"]:
        running = query["state"] in (DIED, PipelineRun.State.RUNNING)
        conditions["state"] = PipelineRun.State.RUNNING if running else query["state"]
        if running:
            word = "lt" if query["state"] == DIED else "gte"
            conditions[f"seen_at__{word}"] = timezone.now() - SILENT
    text = query["cursor"]
    if text:
        if not (text.isascii() and text.isdigit() and int(text) < _LARGEST):
            raise invalid("this is no cursor; start again without one", ("/cursor", "this is no cursor"))
        conditions["pk__lt"] = int(text)
    return conditions
