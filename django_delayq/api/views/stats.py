"""Statistics endpoints: three numbers for each queue, and the full status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from django.urls import URLPattern, path
from rest_framework.request import Request
from rest_framework.response import Response

from ... import connections, status
from ...access.permissions import may_use
from ...core.counts import Counts
from ..base import ApiView
from ..describe import operation
from ..serializers.stats import StatsSerializer, StatusSerializer
from ..visibility import VisibleQueues


class Stats(ApiView):
    """Route ``stats``: three numbers for each queue."""

    tag = "figures"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @operation(
        "get_stats",
        "Length, morgue and lag of every queue",
        returns=StatsSerializer,
        text="Cheap enough for a request every second. Queues that the project's `allow` rule hides from the "
        "user are left out.",
    )
    def get(self, request: Request) -> Response:
        """Return three numbers for each queue and in total."""
        broker = connections.hurried_broker()
        queues = [queue for queue in broker.reachable_queues() if may_use(request, "view", queue.name)]
        rows = broker.inspector.all_counts(queues=queues, partial=True)
        by_queue = {counts.queue: lengths(counts) for counts in rows}
        missing = sum(counts.unreachable_shards for counts in rows)
        unreachable = {"unreachable_shards": missing} if missing else {}
        return Response(StatsSerializer.render({"total": lengths(*rows), "by_queue": by_queue, **unreachable}))


class Status(ApiView):
    """Route ``status``: the whole status of the deployment."""

    tag = "figures"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @operation(
        "get_status",
        "Full status of queues, workers and Redis",
        returns=StatusSerializer,
        text="The output of `manage.py delayq_status --json`, in six round trips to Redis and a query of the "
        "database. Queues that the project's `allow` rule hides from the user are left out.",
    )
    def get(self, request: Request) -> Response:
        """Return the whole snapshot."""
        snapshot = status.take(connections.hurried_broker(), recurring=True)
        return Response(VisibleQueues(request).snapshot(snapshot).as_json())


def lengths(*counts: Counts) -> dict[str, float]:
    """Return length, morgue length and lag of several queues together."""
    return {
        "length": sum(one.delayed + one.ready for one in counts),
        "morgue_length": sum(one.morgue for one in counts),
        "lag": max((one.lag_seconds for one in counts), default=0.0),
    }


urlpatterns: list[URLPattern] = [
    path("stats", Stats.as_view(), name="stats"),
    path("status", Status.as_view(), name="status"),
]
