"""Producer endpoints: the switch that pauses the producers of all queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from django.urls import URLPattern, path
from rest_framework.request import Request
from rest_framework.response import Response

from ... import connections
from ..base import ApiView
from ..describe import operation
from ..serializers.base import with_example
from ..serializers.queues import ProducersSerializer


class Producers(ApiView):
    """Route ``producers``: show whether all producers are paused."""

    tag = "queues"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @operation("get_producers", "Show whether the producers of all queues are paused", returns=ProducersSerializer)
    def get(self, request: Request) -> Response:
        """Return since when all producers are paused, if they are."""
        return state()


class PauseProducers(ApiView):
    """Route ``producers/pause``: refuse new jobs in all queues."""

    tag = "queues"
    actions: ClassVar[Mapping[str, str]] = {"POST": "admin"}

    @operation(
        "pause_producers",
        "Refuse new jobs in all queues",
        returns=ProducersSerializer,
        text="Also in queues that are created later. Stored jobs run and are settled as usual. Pauses of single queues "
        "are independent of this.",
    )
    def post(self, request: Request) -> Response:
        """Pause all producers."""
        connections.hurried_broker().pause_producers()
        return state()


class ResumeProducers(ApiView):
    """Route ``producers/resume``: accept new jobs in all queues again."""

    tag = "queues"
    actions: ClassVar[Mapping[str, str]] = {"POST": "admin"}

    @operation(
        "resume_producers",
        "Accept new jobs again",
        returns=with_example(ProducersSerializer, {"paused": False, "since": None}),
    )
    def post(self, request: Request) -> Response:
        """Resume all producers."""
        connections.hurried_broker().resume_producers()
        return state()


def state() -> Response:
    """Return the state of the switch as a response."""
    since = connections.hurried_broker().producers_paused_since()
    return Response(ProducersSerializer.render({"paused": since is not None, "since": since}))


urlpatterns: list[URLPattern] = [
    path("producers", Producers.as_view(), name="producers"),
    path("producers/pause", PauseProducers.as_view(), name="producers_pause"),
    path("producers/resume", ResumeProducers.as_view(), name="producers_resume"),
]
