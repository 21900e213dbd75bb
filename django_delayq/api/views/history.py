"""History endpoints: hours, series of the charts, CSV download, pipeline runs, and the forecast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from django.urls import URLPattern, path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiResponse
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from ... import connections
from ...access.permissions import may_use
from ...access.problems import invalid
from ...history import csvfile
from ...history.forecast import forecast
from ...history.rows import FIELDS, HOURS
from ...history.series import summary
from ..base import ApiView
from ..describe import operation
from ..history_filters import hours_of, period_of, runs_of, series_of
from ..serializers.forecast import ForecastSerializer
from ..serializers.history import HoursPageSerializer, HoursQuery, PeriodQuery, QueueQuery, SummarySerializer
from ..serializers.pipeline_runs import RunsPageSerializer, RunsQuery

_CSV: Final = "text/csv"


class _History(ApiView):
    """Base of the views of the history."""

    tag = "history"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}


class Hours(_History):
    """Route ``history/hours``: the hours of the history, page by page."""

    @operation("list_hours", "Attempts by hour", returns=HoursPageSerializer, query=HoursQuery)
    def get(self, request: Request) -> Response:
        """Return the hours, newest first.

        The pipeline fills them. Queues that the project's own rule does not let the user see are left out.
        """
        query = self.read_query(request, HoursQuery)
        try:
            page = HOURS.page(hours_of(request, query), query["limit"], after=query["cursor"])
        except ValueError as error:
            raise invalid(str(error), ("/cursor", "this is not a cursor")) from None
        return Response(HoursPageSerializer.render({"hours": page.rows, "cursor": page.after or None}))


class HistoryView(_History):
    """Route ``history/summary``: the history of a period, added up."""

    @operation(
        "get_history", "A period of the history as its charts show it", returns=SummarySerializer, query=PeriodQuery
    )
    def get(self, request: Request) -> Response:
        """Return the sums for the period in up to 170 slots; without `from` and `to` for the last 24 hours.

        Every hour that lies in the period, wholly or in part, is included.
        """
        query = self.read_query(request, PeriodQuery)
        period = period_of(query)
        return Response(SummarySerializer.render(summary(series_of(request, query, period), period)))


class CsvRenderer(JSONRenderer):
    """Declares the content type of the view, which renders the CSV itself; only problems are rendered here."""

    media_type = _CSV
    format = "csv"


class HoursFile(_History):
    """Route ``history/hours.csv``: the hours as a CSV download."""

    renderer_classes = (CsvRenderer,)

    @operation(
        "download_hours",
        "The same hours as CSV",
        returns={(200, _CSV): OpenApiResponse(OpenApiTypes.STR, "a head, and a line for each hour, queue and task")},
        query=PeriodQuery,
        examples=[OpenApiExample("the beginning", ",".join(FIELDS) + "\r\n", response_only=True, media_type=_CSV)],
    )
    def get(self, request: Request) -> Any:
        """Stream all hours, newest first.

        A text that a spreadsheet would take for a formula is prefixed with an apostrophe.
        """
        query = self.read_query(request, PeriodQuery)
        return csvfile.response(request._request, hours_of(request, query))


class Runs(_History):
    """Route ``history/runs``: the pipeline runs."""

    @operation("list_runs", "Pipeline runs", returns=RunsPageSerializer, query=RunsQuery)
    def get(self, request: Request) -> Response:
        """Return the pipeline runs, newest first.

        Where the project has a rule of its own, runs about queues that it hides are left out, and those without a queue
        have neither `detail` nor `error`.
        """
        query = self.read_query(request, RunsQuery)
        limit = query["limit"]
        runs = list(runs_of(request, query)[: limit + 1])
        cursor = str(runs[limit - 1].pk) if len(runs) > limit else None
        return Response(RunsPageSerializer.render({"runs": runs[:limit], "cursor": cursor}))


class ForecastView(_History):
    """Route ``history/forecast``: what falls due in the next hours, and the expected backlog."""

    @operation("get_forecast", "What falls due in the next 24 hours", returns=ForecastSerializer, query=QueueQuery)
    def get(self, request: Request) -> Response:
        """Return the jobs that fall due in each hour, and the expected backlog.

        Workers are assumed to continue at the pace of each queue's busiest hour of the last week. Queues that the
        project's own rule does not let the user see are left out.
        """
        only = self.read_query(request, QueueQuery)["queue"]
        broker = connections.hurried_broker()
        queues = [
            queue for queue in broker.queues() if only in ("", queue.name) and may_use(request, "view", queue.name)
        ]
        return Response(ForecastSerializer.render(forecast(broker, queues)))


urlpatterns: list[URLPattern] = [
    path("history/hours", Hours.as_view(), name="history-hours"),
    path("history/hours.csv", HoursFile.as_view(), name="history-file"),
    path("history/summary", HistoryView.as_view(), name="history"),
    path("history/runs", Runs.as_view(), name="history-runs"),
    path("history/forecast", ForecastView.as_view(), name="history-forecast"),
]
