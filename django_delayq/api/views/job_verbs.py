"""Verbs for many live jobs of a queue: cancel, reschedule, run now, kill or delete the failed ones.

Ids are sent in bodies, because they may contain any character. With ``{"all": true}`` a verb stops after about ten
seconds and returns ``complete: false``: the same call resumes with the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from django.urls import URLPattern, path
from rest_framework.response import Response

from ...core import bulk
from .. import job_changes
from ..base import ApiView
from ..describe import operation
from ..serializers.base import Resource, with_example
from ..serializers.job_verbs import (
    BulkSerializer,
    IdsOrAllSerializer,
    RescheduleSerializer,
    ResultsSerializer,
    results_or_bulk,
)

if TYPE_CHECKING:
    from rest_framework.request import Request


class _Verb(ApiView):
    tag = "jobs"
    actions: ClassVar[Mapping[str, str]] = {"POST": "operate"}


class Cancel(_Verb):
    """``queues/{queue}/cancel``."""

    @operation(
        "cancel_jobs",
        "Cancel jobs",
        reads=IdsOrAllSerializer,
        returns=results_or_bulk("Cancelled", "cancelled", "stopping"),
    )
    def post(self, request: Request, queue: str) -> Response:
        """Cancel jobs by their ids, or all waiting jobs.

        Outcomes by id: `cancelled`, `stopping`, `gone`, or `outbox` while Redis is unavailable. With `all`, running
        jobs are left alone.
        """
        jobs, live = self.read(request, IdsOrAllSerializer), self.queue(queue)
        if "all" in jobs:
            return Response(BulkSerializer.render(job_changes.cancel_all(live)))
        return results(jobs["ids"], job_changes.cancel(live, jobs["ids"], self._kept))


class Reschedule(_Verb):
    """``queues/{queue}/reschedule``."""

    @operation(
        "reschedule_jobs",
        "Give jobs another due time",
        reads=RescheduleSerializer,
        returns=with_example(ResultsSerializer, ResultsSerializer.example_of("moved", "not_waiting")),
    )
    def post(self, request: Request, queue: str) -> Response:
        """Set a new due time for jobs.

        Outcomes: `moved`, `not_waiting` (no such job, or it is running), or `outbox` while Redis is unavailable.
        """
        jobs, live = self.read(request, RescheduleSerializer), self.queue(queue)
        due_ms, delay_ms = jobs["due"]
        return results(jobs["ids"], job_changes.reschedule(live, jobs["ids"], due_ms, delay_ms, self._kept))


class RunNow(_Verb):
    """``queues/{queue}/run-now``."""

    @operation(
        "run_jobs_now",
        "Make jobs due now",
        reads=IdsOrAllSerializer,
        returns=results_or_bulk("RunNow", "moved", "not_waiting"),
    )
    def post(self, request: Request, queue: str) -> Response:
        """Make jobs due now.

        Outcomes: `moved`, `not_waiting` or `outbox`, as for reschedule. Overdue jobs keep their places.
        """
        jobs, live = self.read(request, IdsOrAllSerializer), self.queue(queue)
        if "all" in jobs:
            return Response(BulkSerializer.render(job_changes.run_all_now(live)))
        return results(jobs["ids"], job_changes.run_now(live, jobs["ids"], self._kept))


class _Failed(_Verb):
    act: Callable[..., dict[str, int]]

    def answer(self, request: Request, queue: str) -> Response:
        """Apply the verb to all failed jobs."""
        self.read(request, Resource)
        live, act = self.queue(queue), type(self).act
        return Response(BulkSerializer.render(job_changes.swept(lambda progress: act(live, progress=progress))))


class KillFailed(_Failed):
    """``queues/{queue}/kill-failed``."""

    act = staticmethod(bulk.kill_failed)

    @operation(
        "kill_failed_jobs",
        "Bury all jobs that have failed",
        returns=with_example(BulkSerializer, BulkSerializer.example_of("killed")),
    )
    def post(self, request: Request, queue: str) -> Response:
        """Bury waiting jobs that have failed (`killed`); running ones are left alone."""
        return self.answer(request, queue)


class DeleteFailed(_Failed):
    """``queues/{queue}/delete-failed``."""

    act = staticmethod(bulk.delete_failed)

    @operation(
        "delete_failed_jobs",
        "Delete all jobs that have failed",
        returns=with_example(BulkSerializer, BulkSerializer.example_of("deleted")),
    )
    def post(self, request: Request, queue: str) -> Response:
        """Delete waiting jobs that have failed (`deleted`); running ones are left alone."""
        return self.answer(request, queue)


def results(idents: Sequence[str], outcomes: Sequence[str]) -> Response:
    """Return the response for jobs named by id."""
    found = [{"id": ident, "outcome": outcome} for ident, outcome in zip(idents, outcomes, strict=True)]
    return Response(ResultsSerializer.render({"results": found, "counts": Counter(outcomes)}))


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
