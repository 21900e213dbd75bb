"""Endpoints for the history: attempts by hour, and pipeline runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from django.db.models import Q
from django.utils import timezone
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import CharField, FloatField, IntegerField, ListField

from ..access.problems import invalid
from ..access.views import allows, may_use
from ..core.times import datetime_of
from ..history.records import DIED, SILENT, seconds_of, state_of
from ..history.rows import FIELDS
from ..history.series import COUNTS, SeriesQuery, from_row, known_queues, to_row
from ..models.history import HourlyStat, PipelineRun
from .base import ApiView, operation
from .fields import (
    ADDED,
    MOMENT,
    MaskedObjectField,
    MaskedTextField,
    Member,
    Resource,
    Shown,
    TimeField,
    choice,
    text,
    whole,
)
from .requests import ms_of_moment

STATES: Final = (*PipelineRun.State.values, DIED)
KINDS: Final = tuple(PipelineRun.Kind.values)
_PERCENTILES: Final = tuple(name for name in FIELDS if "_p" in name or "_max" in name)


class HistoryQuery(Resource):
    """Query of a page of a list of the history.

    Attributes:
        cursor: that of the page before; the other parameters stay as they were.
    """

    cursor = text(200, default="")
    limit = whole(1, 1000, default=100)


class HoursQuery(HistoryQuery):
    """Query of the list of hours.

    Attributes:
        queue: of this queue only.
        task: of this task only.
        from: hours that begin at this moment or later: ISO 8601 with offset, or Unix seconds.
        to: hours that begin before this moment.
    """

    queue = text(255, default="")
    task = text(255, default="")
    vars()["from"] = Member(MOMENT, default=None)
    to = Member(MOMENT, default=None)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the moments in UTC."""
        for name in ("from", "to"):
            try:
                attrs[name] = None if attrs[name] is None else datetime_of(ms_of_moment(attrs[name]))
            except (OverflowError, ValueError, OSError):
                raise ValidationError({name: "this is a moment that no calendar has"}) from None
        return attrs


class RunsQuery(HistoryQuery):
    """Query of the list of pipeline runs.

    Attributes:
        kind: of this kind only.
        state: in this state only.
        run_id: runs with this run_id only.
    """

    kind = choice(*KINDS, default=None)
    state = choice(*STATES, default=None)
    run_id = text(255, default="")


class _HourField(TimeField):
    def to_representation(self, value: Any) -> str | None:  # type: ignore[override]
        return super().to_representation(from_row(value))


class Hour(Shown):
    """Outcomes of the attempts of one task in one queue that ended within one hour.

    `lateness` is the time between the due time and the start of an attempt. `lateness` and `duration` cover the `timed`
    attempts, those that started; both are in milliseconds. `sla_missed` counts attempts that started later than
    `DELAYQ["PIPELINE"]["sla"]` allows.

    Attributes:
        hour: when it begins.
        lateness_histogram: 32 counts, of 0 ms, then from 2^(i-1) to below 2^i ms, then longer; empty if unknown.
        duration_histogram: the same of the duration.
    """

    hour = _HourField()
    queue = CharField()
    task = CharField()
    vars().update({name: IntegerField() for name in COUNTS})
    vars().update({name: IntegerField(allow_null=True) for name in _PERCENTILES})
    lateness_histogram = ListField(child=IntegerField())
    duration_histogram = ListField(child=IntegerField())


class HoursPage(Shown):
    """One page of hours, newest first.

    Attributes:
        cursor: for the next page; null at the end.
    """

    hours = Hour(many=True)
    cursor = CharField(allow_null=True)


class Run(Shown):
    """Pipeline run.

    Attributes:
        number: unique.
        run_id: a resumed run keeps it.
        kind: as in the query of the list.
        state: as in the query of the list; died: no progress for an hour.
        seen: its last progress.
        seconds: duration so far, or in total.
        total: rows of the input; null if unknown.
        known: rows that were stored before.
        bad: rows that were refused.
    """

    number = IntegerField(source="pk")
    run_id = CharField()
    kind = CharField()
    state = CharField(**ADDED)
    queue = CharField()
    task = CharField()
    started = TimeField(source="started_at", allow_null=True)
    seen = TimeField(source="seen_at", allow_null=True)
    ended = TimeField(source="ended_at", allow_null=True)
    seconds = FloatField(**ADDED)
    total = IntegerField(allow_null=True)
    vars().update({name: IntegerField() for name in ("rows", "created", "known", "bad")})
    detail = MaskedObjectField()
    error = MaskedTextField()

    def to_representation(self, row: PipelineRun) -> Any:
        """Return the run. Details of a run without a queue may be about queues that the project's rule hides."""
        rendered = super().to_representation(row) | {"state": state_of(row), "seconds": round(seconds_of(row), 3)}
        hidden = {"detail": {}, "error": ""} if not row.queue and allows() is not None else {}
        return rendered | hidden | ({} if isinstance(row.detail, dict) else {"detail": {}})


class RunsPage(Shown):
    """One page of pipeline runs, newest first.

    Attributes:
        cursor: for the next page; null at the end.
    """

    runs = Run(many=True)
    cursor = CharField(allow_null=True)


class History(ApiView):
    """History of the deployment."""

    tag = "deployment"

    @operation("GET v1/history/hours", "view", returns=HoursPage, query=HoursQuery)
    def list_hours(self, request: Request) -> Response:
        """List the attempts by hour, newest first.

        The pipeline fills them. Queues that the project's own rule does not let the user see are left out.
        """
        query = self.read_query(request)
        visible = (
            None if allows() is None else frozenset(name for name in known_queues() if may_use(request, "view", name))
        )
        limit, rows = query["limit"], HourlyStat._default_manager.order_by("-hour", "-pk")
        rows = SeriesQuery(query["queue"], query["task"], None, visible).rows(rows)
        for name, condition in (("from", "hour__gte"), ("to", "hour__lt")):
            if query[name] is not None:
                rows = rows.filter(**{condition: to_row(query[name])})
        if query["cursor"]:
            seconds, pk = _numbers_of(query["cursor"], r"(\d{1,10})-(\d{1,18})")
            hour = to_row(datetime.fromtimestamp(seconds, UTC))
            # Not just `a OR b`: the first condition lets the database use a range of the index.
            rows = rows.filter(Q(hour__lt=hour) | Q(pk__lt=pk), hour__lte=hour)
        found = list(rows[: limit + 1])
        last = found[limit - 1] if len(found) > limit else None
        cursor = last and f"{from_row(last.hour).timestamp():.0f}-{last.pk}"
        return Response({"hours": [Hour.render(row) for row in found[:limit]], "cursor": cursor})

    @operation("GET v1/history/runs", "view", returns=RunsPage, query=RunsQuery)
    def list_runs(self, request: Request) -> Response:
        """List the pipeline runs, newest first.

        Where the project has a rule of its own, runs about queues that it hides are left out, and those without a queue
        have neither `detail` nor `error`.
        """
        query = self.read_query(request)
        limit, runs = query["limit"], PipelineRun._default_manager.filter(**_conditions(query)).order_by("-pk")
        if allows() is not None:
            names = PipelineRun._default_manager.order_by("queue").values_list("queue", flat=True).distinct()
            runs = runs.filter(queue__in=[name for name in names if not name or may_use(request, "view", name)])
        rows = list(runs[: limit + 1])
        cursor = str(rows[limit - 1].pk) if len(rows) > limit else None
        return Response({"runs": [Run.render(row) for row in rows[:limit]], "cursor": cursor})


def _conditions(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions by which a query chooses pipeline runs.

    Raises:
        Problem: the cursor is invalid.
    """
    conditions: dict[str, Any] = {name: query[name] for name in ("kind", "run_id") if query[name]}
    if query["state"]:
        running = query["state"] in (DIED, PipelineRun.State.RUNNING)
        conditions["state"] = PipelineRun.State.RUNNING if running else query["state"]
        if running:
            word = "lt" if query["state"] == DIED else "gte"
            conditions[f"seen_at__{word}"] = timezone.now() - SILENT
    if query["cursor"]:
        (conditions["pk__lt"],) = _numbers_of(query["cursor"], r"(\d{1,18})")
    return conditions


def _numbers_of(cursor: str, form: str) -> list[int]:
    """Return the numbers in a cursor of this form.

    Raises:
        Problem: it has another form.
    """
    match = re.fullmatch(form, cursor, re.ASCII)
    if match is None:
        raise invalid("this is no cursor; start again without one", ("/cursor", "this is no cursor"))
    return [int(digits) for digits in match.groups()]
