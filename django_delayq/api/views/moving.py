"""Verbs for many live jobs of a queue: cancel, reschedule, run now, and what becomes of the failed ones.

Ids stand in bodies, because they may hold any character. With ``{"all": true}`` a verb stops after about ten seconds
and says ``complete: false``: the same call goes on with the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiExample, PolymorphicProxySerializer
from rest_framework.response import Response

from ...core import bulk
from ...scheduling.options import due
from .. import verbs
from ..base import ApiView
from ..describe import extend_schema
from ..shapes import BulkSerializer
from .asked import IdsOrAll, IdsWhen, Nothing, ResultsSerializer

if TYPE_CHECKING:
    from rest_framework.request import Request

TAG: Final = "jobs"


def either(name: str) -> PolymorphicProxySerializer:
    """The answer of a verb that takes ids or all."""
    return PolymorphicProxySerializer(
        component_name=name, serializers=[ResultsSerializer, BulkSerializer], resource_type_field_name=None
    )


#: examples of what is asked and answered
ASKED: Final = [
    OpenApiExample("some", {"ids": ["order-17", "order-18"]}, request_only=True),
    OpenApiExample("all of the queue", {"all": True}, request_only=True),
]


class _Verb(ApiView):
    actions: ClassVar[Mapping[str, str]] = {"POST": "operate"}


class Cancel(_Verb):
    """``queues/{queue}/cancel``."""

    @extend_schema(
        operation_id="cancel_jobs",
        summary="Cancel jobs",
        tags=[TAG],
        request=IdsOrAll,
        responses={200: either("Cancelled")},
        examples=ASKED,
    )
    def post(self, request: Request, queue: str) -> Response:
        """Jobs by their ids (`cancelled`, `stopping`, `gone`, or `outbox` while Redis is away), or all that wait; those
        that run are left alone then."""
        asked, live = self.read(request, IdsOrAll), self.queue(queue)
        if "all" in asked:
            return Response(verbs.cancel_all(live))
        return Response(each(asked["ids"], verbs.cancel(live, asked["ids"], self._kept)))


class Reschedule(_Verb):
    """``queues/{queue}/reschedule``."""

    @extend_schema(
        operation_id="reschedule_jobs",
        summary="Give jobs another due time",
        tags=[TAG],
        request=IdsWhen,
        responses={200: ResultsSerializer},
        examples=[OpenApiExample("in an hour", {"ids": ["order-17"], "delay": 3600}, request_only=True)],
    )
    def post(self, request: Request, queue: str) -> Response:
        """`moved`, `not_waiting` (there is no such job, or it runs), or `outbox` while Redis is away."""
        asked, live = self.read(request, IdsWhen), self.queue(queue)
        due_ms, delay_ms = due_of(asked)
        return Response(each(asked["ids"], verbs.reschedule(live, asked["ids"], due_ms, delay_ms, self._kept)))


class RunNow(_Verb):
    """``queues/{queue}/run-now``."""

    @extend_schema(
        operation_id="run_jobs_now",
        summary="Make jobs due now",
        tags=[TAG],
        request=IdsOrAll,
        responses={200: either("RunNow")},
        examples=ASKED,
    )
    def post(self, request: Request, queue: str) -> Response:
        """`moved`, `not_waiting` or `outbox`, as for reschedule. What is overdue keeps its place."""
        asked, live = self.read(request, IdsOrAll), self.queue(queue)
        if "all" in asked:
            return Response(verbs.run_all_now(live))
        return Response(each(asked["ids"], verbs.run_now(live, asked["ids"], self._kept)))


class _Failed(_Verb):
    act: Callable[..., dict[str, int]]

    def answer(self, request: Request, queue: str) -> Response:
        """Does it to all jobs that have failed."""
        self.read(request, Nothing)
        live, act = self.queue(queue), type(self).act
        return Response(verbs.swept(lambda progress: act(live, progress=progress)))


class KillFailed(_Failed):
    """``queues/{queue}/kill-failed``."""

    act = staticmethod(bulk.kill_failed)

    @extend_schema(
        operation_id="kill_failed_jobs",
        summary="Bury all jobs that have failed",
        tags=[TAG],
        request=None,
        responses={200: BulkSerializer},
    )
    def post(self, request: Request, queue: str) -> Response:
        """Waiting jobs that have failed go to the morgue (`killed`); those that run are left alone."""
        return self.answer(request, queue)


class DeleteFailed(_Failed):
    """``queues/{queue}/delete-failed``."""

    act = staticmethod(bulk.delete_failed)

    @extend_schema(
        operation_id="delete_failed_jobs",
        summary="Delete all jobs that have failed",
        tags=[TAG],
        request=None,
        responses={200: BulkSerializer},
    )
    def post(self, request: Request, queue: str) -> Response:
        """Waiting jobs that have failed go for good (`deleted`); those that run are left alone."""
        return self.answer(request, queue)


def each(idents: Sequence[str], outcomes: Sequence[str]) -> dict[str, Any]:
    """The answer about jobs that were named."""
    results = [{"id": ident, "outcome": outcome} for ident, outcome in zip(idents, outcomes, strict=True)]
    return {"results": results, "counts": dict(Counter(outcomes))}


def due_of(asked: dict[str, Any]) -> tuple[int | None, int | None]:
    """``(due_ms, delay_ms)`` of a checked request, of which one is None.

    Raises:
        InvalidJob: a moment that cannot be meant.
    """
    if "delay" in asked:
        return None, asked["delay"]
    at: datetime | float = asked["at"]
    return due(None, at)


def queue_verb(word: str, view: Any) -> URLPattern:
    """The address of a verb of a queue."""
    found: URLPattern = path(f"queues/<str:queue>/{word}", view.as_view(), name=word)
    return found


urlpatterns: list[URLPattern] = [
    queue_verb("cancel", Cancel),
    queue_verb("reschedule", Reschedule),
    queue_verb("run-now", RunNow),
    queue_verb("kill-failed", KillFailed),
    queue_verb("delete-failed", DeleteFailed),
]
