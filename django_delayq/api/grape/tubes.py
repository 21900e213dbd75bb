"""Grape's tube routes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.urls import URLPattern, path
from rest_framework.response import Response

from .. import brokers, policy
from ..describe import extend_schema
from ..permissions import may_use
from ..problems import Problem
from . import errors
from .base import GrapeView

if TYPE_CHECKING:
    from rest_framework.request import Request

    from ...core.queue import Queue


@extend_schema(exclude=True)
class Create(GrapeView):
    """``POST /tube/create?tube``: true, also if it is there."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "admin"}

    def post(self, request: Request) -> Response:
        """Makes a queue of kind pull."""
        name = self.tube_name(request)
        try:
            policy.make(brokers.broker(), name, {"kind": "pull"})
        except Problem as error:
            raise errors.GrapeError(errors.TUBE_INVALID, str(error.detail)) from None
        return Response(True)


@extend_schema(exclude=True)
class Delete(GrapeView):
    """``POST /tube/delete?tube``: true. ITS JOBS ARE LOST, as in Grape; v1 asks for ``force`` first."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "admin"}

    def post(self, request: Request) -> Response:
        """Deletes it with all that is in it."""
        brokers.broker().delete_queue(self.tube(request).name, force=True)
        return Response(True)


@extend_schema(exclude=True)
class List(GrapeView):
    """``GET /tube/list``: the names of all tubes."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    def get(self, request: Request) -> Response:
        """Those that the caller may see."""
        return Response([queue.name for queue in tubes(request)])


@extend_schema(exclude=True)
class Stats(GrapeView):
    """``GET /tube/stats`` and ``/tube/stats/<tube>``: how many jobs lie where, of all tubes or of one."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    def get(self, request: Request, tube: str | None = None) -> Response:
        """A list, or one."""
        if tube is None:
            return Response(stats(tubes(request)))
        return Response(stats([self.tube(request, tube)])[0])


def tubes(request: Request) -> list[Queue]:
    """The tubes that the caller may see."""
    found = brokers.broker().queues()
    return [queue for queue in found if queue.kind == "pull" and may_use(request, "view", queue.name)]


def stats(queues: Sequence[Queue]) -> list[dict[str, Any]]:
    """How many jobs lie where, in one round trip."""
    now_ms = int(time.time() * 1000)
    return [
        {"dateTime": now_ms, "tubeName": one.queue, "delayQueueSize": one.delayed + one.ready,
         "retainQueueSize": one.reserved, "failedQueueSize": one.morgue}
        for one in brokers.broker().inspector.all_counts(queues=queues)
    ]  # fmt: skip


urlpatterns: Final[list[URLPattern]] = [
    path("tube/create", Create.as_view(), name="tube_create"),
    path("tube/delete", Delete.as_view(), name="tube_delete"),
    path("tube/list", List.as_view(), name="tube_list"),
    path("tube/stats", Stats.as_view(), name="tube_stats"),
    path("tube/stats/<str:tube>", Stats.as_view(), name="tube_stats_one"),
]
