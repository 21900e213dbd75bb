"""Verbs for many live jobs of a queue: cancel, reschedule, run now, kill or delete the failed ones.

Ids are sent in bodies, because they may contain any character. With ``{"all": true}`` a verb stops after about ten
seconds and returns ``complete: false``: the same call resumes with the rest.
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
from ...scheduling.plans import job_rules
from .. import verbs
from ..base import ApiView
from ..describe import extend_schema
from ..shapes import BulkSerializer
from .asked import EmptyBody, IdsOrAll, IdsWhen, ResultsSerializer

if TYPE_CHECKING:
    from rest_framework.request import Request

TAG: Final = "jobs"


def either(name: str) -> PolymorphicProxySerializer:
    """Return the response schema of a verb that takes ids or all."""
    return PolymorphicProxySerializer(
        component_name=name, serializers=[ResultsSerializer, BulkSerializer], resource_type_field_name=None
    )


#: request examples
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
        """Cancel jobs by their ids, or all waiting jobs.

        Outcomes by id: `cancelled`, `stopping`, `gone`, or `outbox` while Redis is unavailable. With `all`, running
        jobs are left alone.
        """
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
        """Set a new due time for jobs.

        Outcomes: `moved`, `not_waiting` (no such job, or it is running), or `outbox` while Redis is unavailable.
        """
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
        """Make jobs due now.

        Outcomes: `moved`, `not_waiting` or `outbox`, as for reschedule. Overdue jobs keep their places.
        """
        asked, live = self.read(request, IdsOrAll), self.queue(queue)
        if "all" in asked:
            return Response(verbs.run_all_now(live))
        return Response(each(asked["ids"], verbs.run_now(live, asked["ids"], self._kept)))


class _Failed(_Verb):
    act: Callable[..., dict[str, int]]

    def answer(self, request: Request, queue: str) -> Response:
        """Apply the verb to all failed jobs."""
        self.read(request, EmptyBody)
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
        """Bury waiting jobs that have failed (`killed`); running ones are left alone."""
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
        """Delete waiting jobs that have failed (`deleted`); running ones are left alone."""
        return self.answer(request, queue)


def each(idents: Sequence[str], outcomes: Sequence[str]) -> dict[str, Any]:
    """Return the response body for jobs named by id."""
    results = [{"id": ident, "outcome": outcome} for ident, outcome in zip(idents, outcomes, strict=True)]
    return {"results": results, "counts": dict(Counter(outcomes))}


def due_of(asked: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return ``(due_ms, delay_ms)`` of a validated request; one of them is None.

    Raises:
        InvalidJob: the moment is out of range.
    """
    if "delay" in asked:
        return None, asked["delay"]
    at: datetime | float = asked["at"]
    return job_rules().due(None, at)


def queue_verb(word: str, view: Any) -> URLPattern:
    """Return the URL pattern of a verb of a queue."""
    found: URLPattern = path(f"queues/<str:queue>/{word}", view.as_view(), name=word)
    return found


urlpatterns: list[URLPattern] = [
    queue_verb("cancel", Cancel),
    queue_verb("reschedule", Reschedule),
    queue_verb("run-now", RunNow),
    queue_verb("kill-failed", KillFailed),
    queue_verb("delete-failed", DeleteFailed),
]
