"""History endpoints: hours, series of the charts, CSV download, pipeline runs, and the forecast."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.urls import URLPattern, path
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiResponse
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

from ...history import csvfile, histograms
from ...history.forecast import QueueForecast, forecast
from ...history.moments import from_row
from ...history.paging import page
from ...history.records import DIED, SILENT, state_of
from ...history.rows import FIELDS
from ...history.series import COUNTS, SeriesSum, Summary, summary
from ...models.history import HourlyStat, PipelineRun
from ...settings.conf import mask
from .. import brokers
from ..base import ApiView
from ..describe import extend_schema
from ..historyqueries import (
    CURSOR,
    LIMIT,
    NAMES,
    PERIOD,
    RUNS,
    HoursQuery,
    PeriodQuery,
    QueueQuery,
    RunsQuery,
    bounded,
    limit_of,
    period_of,
    visible_runs,
    wish_of,
)
from ..historyshapes import (
    EXAMPLES,
    ForecastSerializer,
    HoursPageSerializer,
    RunsPageSerializer,
    SummarySerializer,
)
from ..permissions import allows, may_use
from ..problems import invalid
from ..values import moment

if TYPE_CHECKING:
    from rest_framework.request import Request

TAG: Final = "history"
#: maximum number of tasks in a summary
_MOST_TASKS: Final = 200
_LARGEST: Final = 2**63
_CSV: Final = "text/csv"


def _example(operation: str) -> list[OpenApiExample]:
    return [OpenApiExample("example", EXAMPLES[operation], response_only=True)]


class Hours(ApiView):
    """``history/hours``."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @extend_schema(
        operation_id="list_hours",
        summary="What became of runs, hour by hour",
        tags=[TAG],
        parameters=[*NAMES, *PERIOD, CURSOR, LIMIT],
        responses={200: HoursPageSerializer},
        examples=_example("list_hours"),
    )
    def get(self, request: Request) -> Response:
        """Return the hours, newest first.

        The pipeline fills them. Queues that the project's own rule does not let the user see are left out.
        """
        asked = self.read_query(request, HoursQuery)
        rows = bounded(wish_of(request, asked).rows(HourlyStat._default_manager.all()), asked)
        try:
            found = page(rows, limit_of(asked["limit"]), after=asked["cursor"])
        except ValueError as error:
            raise invalid(str(error), ("/cursor", "this is no cursor")) from None
        return Response({"hours": list(map(_hour, found.rows)), "cursor": found.older or None})


class HistoryView(ApiView):
    """``history/summary``."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @extend_schema(
        operation_id="get_history",
        summary="A period of the history as its charts show it",
        tags=[TAG],
        parameters=[*NAMES, *PERIOD],
        responses={200: SummarySerializer},
        examples=_example("get_history"),
    )
    def get(self, request: Request) -> Response:
        """Return the sums for the period in up to 170 slots; without `from` and `to` for the last 24 hours.

        Every hour that lies in the period, wholly or in part, is included.
        """
        asked = self.read_query(request, PeriodQuery)
        period = period_of(asked)
        return Response(_summary(summary(wish_of(request, asked, period), period)))


class CsvRenderer(JSONRenderer):
    """Declares the content type of the view, which renders the CSV itself; only problems are rendered here."""

    media_type = _CSV
    format = "csv"


class HoursFile(ApiView):
    """``history/hours.csv``."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}
    renderer_classes = (CsvRenderer,)

    @extend_schema(
        operation_id="download_hours",
        summary="The same hours as CSV",
        tags=[TAG],
        parameters=[*NAMES, *PERIOD],
        responses={(200, _CSV): OpenApiResponse(OpenApiTypes.STR, "a head, and a line for each hour, queue and task")},
        examples=[OpenApiExample("the beginning", ",".join(FIELDS) + "\r\n", response_only=True, media_type=_CSV)],
    )
    def get(self, request: Request) -> Any:
        """Stream all hours, newest first.

        A text that a spreadsheet would take for a formula is prefixed with an apostrophe.
        """
        asked = self.read_query(request, PeriodQuery)
        rows = wish_of(request, asked).rows(HourlyStat._default_manager.all())
        return csvfile.response(request._request, bounded(rows, asked))


class Runs(ApiView):
    """``history/runs``."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @extend_schema(
        operation_id="list_runs",
        summary="Runs of the pipeline",
        tags=[TAG],
        parameters=RUNS,
        responses={200: RunsPageSerializer},
        examples=_example("list_runs"),
    )
    def get(self, request: Request) -> Response:
        """Return the pipeline runs, newest first.

        Where the project has a rule of its own, runs about queues that it hides are left out, and those without a queue
        have neither `detail` nor `error`.
        """
        asked = self.read_query(request, RunsQuery)
        limit = limit_of(asked["limit"])
        runs = visible_runs(request).filter(**_conditions(asked)).order_by("-pk")
        found = list(runs[: limit + 1])
        cursor = str(found[limit - 1].pk) if len(found) > limit else None
        return Response({"runs": [_run(one) for one in found[:limit]], "cursor": cursor})


class ForecastView(ApiView):
    """``history/forecast``."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @extend_schema(
        operation_id="get_forecast",
        summary="What falls due in the next 24 hours",
        tags=[TAG],
        parameters=NAMES[:1],
        responses={200: ForecastSerializer},
        examples=_example("get_forecast"),
    )
    def get(self, request: Request) -> Response:
        """Return the jobs that fall due in each hour, and the expected backlog.

        Workers are assumed to continue at the pace of each queue's busiest hour of the last week. Queues that the
        project's own rule does not let the user see are left out.
        """
        asked = self.read_query(request, QueueQuery)
        broker = brokers.broker()
        queues = [
            queue
            for queue in broker.queues()
            if asked["queue"] in ("", queue.name) and may_use(request, "view", queue.name)
        ]
        found = forecast(broker, queues)
        return Response(
            {
                "now": _moment(found.now),
                "total": _ahead(found.total),
                "queues": [{"queue": one.queue, **_ahead(one)} for one in found.queues],
            }
        )


def _conditions(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filter conditions of a query for pipeline runs.

    Raises:
        Problem: the cursor is invalid.
    """
    found: dict[str, Any] = {name: asked[name] for name in ("kind", "run_id") if asked[name]}
    if asked["state"]:
        running = asked["state"] in (DIED, PipelineRun.State.RUNNING)
        found["state"] = PipelineRun.State.RUNNING if running else asked["state"]
        if running:
            word = "lt" if asked["state"] == DIED else "gte"
            found[f"seen_at__{word}"] = timezone.now() - SILENT
    text = asked["cursor"]
    if text:
        if not (text.isascii() and text.isdigit() and int(text) < _LARGEST):
            raise invalid("this is no cursor; start again without one", ("/cursor", "this is no cursor"))
        found["pk__lt"] = int(text)
    return found


# -- rows in JSON ----------------------------------------------------------------------------------------------------


def _moment(when: datetime | None) -> str | None:
    return None if when is None else moment(when.timestamp() * 1000)


def _hour(row: HourlyStat) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in FIELDS}, "hour": _moment(from_row(row.hour))}


def _summary(found: Summary) -> dict[str, Any]:
    tasks = sorted(found.tasks.items(), key=lambda one: (-one[1]["runs"], one[0]))
    return {
        "from": _moment(found.period.start),
        "to": _moment(found.period.end),
        "step_hours": found.period.step,
        "total": _tally(found.total),
        "slots": [
            {"start": _moment(start), **_tally(tally), "lateness_histogram": tally.lateness}
            for start, tally in zip(found.period.slots, found.slots, strict=True)
        ],
        "tasks": [{"queue": queue, "task": task, **_tally(tally)} for (queue, task), tally in tasks[:_MOST_TASKS]],
        "tasks_left_out": max(0, len(tasks) - _MOST_TASKS),
        "bounds_ms": [high for place in range(histograms.BUCKETS) if (high := histograms.bounds_of(place)[1])],
    }


def _tally(tally: SeriesSum) -> dict[str, Any]:
    percentiles: dict[str, float | None] = {}
    for kind, of, most in (
        ("lateness", tally.lateness_ms, tally.lateness_max),
        ("duration", tally.duration_ms, tally.duration_max),
    ):
        percentiles |= {f"{kind}_p{percent}_ms": _rounded(of(percent)) for percent in (50, 95, 99)}
        percentiles[f"{kind}_max_ms"] = _rounded(most)
    return {
        **dict(zip(COUNTS, tally.counts, strict=True)),
        "failures": tally.failures,
        "failure_rate": tally.failure_rate,
        **percentiles,
    }


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(float(ms), 3)


def _run(row: PipelineRun) -> dict[str, Any]:
    state = state_of(row)
    end = row.ended_at or (timezone.now() if state == PipelineRun.State.RUNNING else row.seen_at)
    told = bool(row.queue) or allows() is None
    detail = mask().value(row.detail) if told and isinstance(row.detail, dict) else {}
    return {
        "number": row.pk,
        "run_id": row.run_id,
        "kind": row.kind,
        "state": state,
        "queue": row.queue,
        "task": row.task,
        "started": _moment(row.started_at),
        "seen": _moment(row.seen_at),
        "ended": _moment(row.ended_at),
        "seconds": round(max(0.0, (end - row.started_at).total_seconds()), 3),
        "total": row.total,
        "rows": row.rows,
        "created": row.created,
        "known": row.known,
        "bad": row.bad,
        "detail": detail,
        "error": mask().text(row.error) if told else "",
    }


def _ahead(one: QueueForecast) -> dict[str, Any]:
    pace = one.pace
    return {
        "due": one.due,
        "hours": list(one.hours),
        "later": one.later,
        "runs_per_hour": None if pace is None else pace.per_hour,
        "mean_duration": None if pace is None else round(pace.mean_ms / 1000, 6),
        "work": None if one.work_s is None else round(one.work_s, 3),
        "behind": [round(left, 3) for left in one.behind],
        "drained_in": None if one.drained_s is None else round(one.drained_s, 3),
    }


urlpatterns: list[URLPattern] = [
    path("history/hours", Hours.as_view(), name="history-hours"),
    path("history/hours.csv", HoursFile.as_view(), name="history-file"),
    path("history/summary", HistoryView.as_view(), name="history"),
    path("history/runs", Runs.as_view(), name="history-runs"),
    path("history/forecast", ForecastView.as_view(), name="history-forecast"),
]
