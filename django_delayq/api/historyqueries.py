"""Query parameters of the history endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from ..core.errors import InvalidJob
from ..core.inputs import short
from ..history.moments import to_row
from ..history.names import known_queues
from ..history.periods import Period, SeriesQuery
from ..models.history import HourlyStat, PipelineRun
from .base import Body
from .fields import moment_of, number_of
from .historyshapes import KINDS, STATES
from .permissions import allows, may_use
from .problems import invalid

if TYPE_CHECKING:
    from rest_framework.request import Request

MOST: Final = 1000
_USUAL: Final = timedelta(days=1)


class QueueQuery(Body):
    """Query filter by queue."""

    queue = serializers.CharField(default="", allow_blank=True, trim_whitespace=False, max_length=255)


class NamesQuery(QueueQuery):
    """Query filter by queue and task."""

    task = serializers.CharField(default="", allow_blank=True, trim_whitespace=False, max_length=255)


class PeriodQuery(NamesQuery):
    """Query filter by queue, task and period."""

    vars()["from"] = serializers.CharField(default="", allow_blank=True, max_length=100)
    to = serializers.CharField(default="", allow_blank=True, max_length=100)


class HoursQuery(PeriodQuery):
    """Query of the paginated list of hours."""

    cursor = serializers.CharField(default="", allow_blank=True, max_length=200, trim_whitespace=False)
    limit = serializers.CharField(default="100", max_length=20)


class RunsQuery(Body):
    """Query of the list of pipeline runs."""

    kind = serializers.ChoiceField(choices=KINDS, default="")
    state = serializers.ChoiceField(choices=STATES, default="")
    run_id = serializers.CharField(default="", allow_blank=True, trim_whitespace=False, max_length=255)
    cursor = serializers.CharField(default="", allow_blank=True, max_length=200, trim_whitespace=False)
    limit = serializers.CharField(default="100", max_length=20)


def limit_of(text: str) -> int:
    """Return the page size given in a query.

    Raises:
        Problem: it is not a number from 1 to ``MOST``.
    """
    if text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MOST:
        return int(text)
    said = f"limit must be 1 to {MOST}, got {short(text)}"
    raise invalid(said, ("/limit", said))


def bound(name: str, text: str) -> datetime | None:
    """Return a bound of a query as an aware datetime in UTC; None if it is empty.

    Raises:
        Problem: it is not a moment.
    """
    if not text:
        return None
    seconds = number_of(text)
    try:
        return moment_of(text).astimezone(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except InvalidJob as error:
        said = str(error)
    except (OverflowError, ValueError, OSError):
        said = f"{short(text)} is a moment that no calendar has"
    raise invalid(said, (f"/{name}", said))


def bounded(rows: QuerySet[HourlyStat], asked: Mapping[str, Any]) -> QuerySet[HourlyStat]:
    """Return the hours that begin within the bounds of a query; a missing bound does not limit."""
    start, end = bound("from", asked["from"]), bound("to", asked["to"])
    if start is not None:
        rows = rows.filter(hour__gte=to_row(start))
    return rows if end is None else rows.filter(hour__lt=to_row(end))


def period_of(asked: Mapping[str, Any]) -> Period:
    """Return the period of a query; without bounds the last 24 hours.

    Raises:
        Problem: it is empty, or too long.
    """
    end = bound("to", asked["to"]) or datetime.now(UTC)
    start = bound("from", asked["from"])
    try:
        return Period.between(end - _USUAL if start is None else start, end)
    except (ValueError, OverflowError) as error:
        raise invalid(str(error), ("/from", str(error))) from None


def wish_of(request: Request, asked: Mapping[str, Any], period: Period | None = None) -> SeriesQuery:
    """Return the row filter of a query, limited to queues its user may see."""
    return SeriesQuery(asked["queue"], asked["task"], period, visible_queues(request))


def visible_queues(request: Request) -> frozenset[str] | None:
    """Return the queues that the project's ``allow`` rule lets the user see; None = all."""
    if allows() is None:
        return None
    return frozenset(name for name in known_queues() if may_use(request, "view", name))


def visible_runs(request: Request) -> QuerySet[PipelineRun]:
    """Return the pipeline runs that have no queue or one the user may see."""
    runs = PipelineRun._default_manager.all()
    if allows() is None:
        return runs
    names = runs.order_by("queue").values_list("queue", flat=True).distinct()
    return runs.filter(queue__in=[name for name in names if not name or may_use(request, "view", name)])


def _parameter(name: str, text: str, schema: Any = str, **more: Any) -> OpenApiParameter:
    return OpenApiParameter(name, schema, OpenApiParameter.QUERY, description=text, **more)


NAMES: Final = [_parameter("queue", "of this queue only"), _parameter("task", "of this task only")]
PERIOD: Final = [
    _parameter("from", "hours that begin at this moment or later: ISO 8601 with offset, or Unix seconds"),
    _parameter("to", "hours that begin before this moment"),
]
CURSOR: Final = _parameter("cursor", "that of the page before; the other parameters stay as they were")
LIMIT: Final = _parameter("limit", "1 to 1000, default 100", {"type": "integer", "minimum": 1, "maximum": MOST})
RUNS: Final = [
    _parameter("kind", "of this kind only", enum=KINDS),
    _parameter("state", "in this state only", enum=STATES),
    _parameter("run_id", "the tries of this run only"),
    CURSOR,
    LIMIT,
]
