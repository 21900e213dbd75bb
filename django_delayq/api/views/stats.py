"""Figures: a few of each queue, and everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiExample
from rest_framework import serializers
from rest_framework.response import Response

from ... import status
from .. import brokers
from ..base import ApiView
from ..describe import extend_schema
from ..permissions import may_use
from ..shapes import ListField, ObjectField, Shape
from ..visible import Visible

if TYPE_CHECKING:
    from rest_framework.request import Request

    from ...core.operations.counts import Counts

_TAGS: Final = ["figures"]


class LengthsSerializer(Shape):
    """A queue in three numbers."""

    length = serializers.IntegerField(help_text="jobs that wait, due or not")
    morgue_length = serializers.IntegerField()
    lag = serializers.FloatField(help_text="seconds by which the longest waiting ready job is overdue")


class StatsSerializer(Shape):
    """All queues in three numbers each. The total lag is the longest."""

    total = LengthsSerializer()
    by_queue = serializers.DictField(child=LengthsSerializer())


class StatusSerializer(Shape):
    """Everything that is known. New members may come with any release."""

    now = serializers.DateTimeField(help_text="Redis's clock")
    totals = ObjectField(help_text="of all queues; `busy` of `threads` run something")
    queues = ListField(help_text="counts, counters, orders, lateness and length of the runs of each")
    workers = ListField(help_text="what each of them last said")
    recurring = ListField(help_text="recurring tasks that the answering process knows, with their last and next tick")
    redis = ObjectField(help_text="version, memory, persistence, clients")
    outbox = ObjectField(required=False, help_text="durable jobs in the database")


class Stats(ApiView):
    """A few figures."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @extend_schema(
        operation_id="get_stats",
        summary="Length, morgue and lag of every queue",
        tags=_TAGS,
        description="Cheap enough to be asked every second. Queues that the project's own rule does not let the user "
        "see are left out.",
        responses={200: StatsSerializer},
        examples=[
            OpenApiExample(
                "one queue",
                response_only=True,
                value={
                    "total": {"length": 1200, "morgue_length": 3, "lag": 0.25},
                    "by_queue": {"mail": {"length": 1200, "morgue_length": 3, "lag": 0.25}},
                },
            )
        ],
    )
    def get(self, request: Request) -> Response:
        """Three numbers of each queue, and of all."""
        broker = brokers.broker()
        queues = [queue for queue in broker.queues() if may_use(request, "view", queue.name)]
        found = broker.inspector.all_counts(queues=queues)
        return Response({"total": lengths(*found), "by_queue": {one.queue: lengths(one) for one in found}})


class Status(ApiView):
    """All figures."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @extend_schema(
        operation_id="get_status",
        summary="Everything that is known of queues, workers and Redis",
        tags=_TAGS,
        description="What `manage.py delayq_status --json` prints, in six round trips to Redis and a look into the "
        "database. Queues that the project's own rule does not let the user see are left out.",
        responses={200: StatusSerializer},
    )
    def get(self, request: Request) -> Response:
        """The whole snapshot."""
        return Response(Visible(request).snapshot(status.take(brokers.broker(), recurring=True)).as_json())


def lengths(*counts: Counts) -> dict[str, float]:
    """Some queues together in three numbers."""
    return {
        "length": sum(one.delayed + one.ready for one in counts),
        "morgue_length": sum(one.morgue for one in counts),
        "lag": round(max((one.lag_seconds for one in counts), default=0.0), 3),
    }


urlpatterns: list[URLPattern] = [
    path("stats", Stats.as_view(), name="stats"),
    path("status", Status.as_view(), name="status"),
]
