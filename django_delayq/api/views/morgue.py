"""Morgue endpoints: jobs whose attempts are used up or that were buried early. List, restore and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar

from django.urls import URLPattern, path
from rest_framework.request import Request
from rest_framework.response import Response

from ...core import bulk
from ...core.actions import Kick
from ...core.job_filter import JobFilter
from ...core.queue import Queue
from ..base import ApiView
from ..describe import operation
from ..listing import graves_page, jobs_page
from ..serializers.job_verbs import DiscardSerializer, KickSerializer, results_or_bulk
from ..serializers.jobs import BURIED, GravesQuery, JobsPageSerializer, MorgueQuery
from .job_verbs import QueueVerb, queue_verb
from .jobs import ident_of


class Morgue(ApiView):
    """Route ``queues/{queue}/morgue``: list the morgue."""

    tag = "morgue"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @operation(
        "list_morgue",
        "The morgue of a queue, page by page",
        returns=JobsPageSerializer,
        query=MorgueQuery,
        examples=[BURIED],
    )
    def get(self, request: Request, queue: str) -> Response:
        """Return records in the order in which they were buried, or by id. An id may have several."""
        query = self.read_query(request, MorgueQuery)
        return Response(JobsPageSerializer.render(jobs_page(self.queue(queue), query)))


class Graves(ApiView):
    """Route ``queues/{queue}/morgue/{id}``: show the morgue records of an id."""

    tag = "morgue"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @operation(
        "get_graves",
        "All records of an id in the morgue",
        returns=JobsPageSerializer,
        query=GravesQuery,
        examples=[BURIED],
    )
    def get(self, request: Request, queue: str, id: str) -> Response:
        """Return the records of an id, page by page, up to 250 each, the last buried first.

        A page ends with the record that brings it to a MiB, so it may have fewer than `limit`. Arguments are masked,
        and left out (`cut`) if they are larger than both a MiB and `MAX_ARGS_BYTES` of the settings.
        """
        query = self.read_query(request, GravesQuery)
        page = graves_page(self.queue(queue), ident_of(id), query)
        return Response(JobsPageSerializer.render(page, payloads_of=attrgetter("payloads")))


class KickView(QueueVerb):
    """Route ``queues/{queue}/kick``: bring jobs back from the morgue."""

    tag = "morgue"

    @operation(
        "kick_jobs",
        "Bring jobs back from the morgue",
        reads=KickSerializer,
        returns=results_or_bulk("Kicked", "kicked", "live"),
    )
    def post(self, request: Request, queue: str) -> Response:
        """Bring jobs back and reset their failures. `kicked`, `live` (a live job has the same id) or `gone`."""
        body, live = self.read(request, KickSerializer), self.queue(queue)
        options = {"delay_ms": body.get("delay", 0), "replace": body.get("replace", False)}
        if "per_second" in body:
            return self.kick_at_pace(live, body)
        if "all" in body or "where" in body:
            return self.change(live, bulk.kick(**options), body)
        jobs = body["jobs"]
        outcomes = [
            live.kick(ident, key=key, request=call, **options) or "gone"
            for (ident, key), call in zip(jobs, self.call_ids(jobs), strict=True)
        ]
        return self.results([ident for ident, _ in jobs], outcomes)

    def kick_at_pace(self, live: Queue, body: Mapping[str, Any]) -> Response:
        """Bring all jobs back at a pace, which the next request continues by the cursor: the next due time, Unix ms."""
        now_ms = live.deployment.now_ms()
        first_ms = max(now_ms, body["cursor"]) if "cursor" in body else int(now_ms) + body.get("delay", 0)
        kick = Kick(per_second=body["per_second"], first_ms=first_ms, replace=body.get("replace", False))
        response = self.change(live, bulk.Verb("morgue", kick), {})
        if not response.data["complete"]:
            response.data["cursor"] = f"{kick.due_ms:.3f}"
        return response


class DiscardView(QueueVerb):
    """Route ``queues/{queue}/discard``: delete jobs from the morgue."""

    tag = "morgue"

    @operation(
        "discard_jobs",
        "Delete jobs from the morgue",
        reads=DiscardSerializer,
        returns=results_or_bulk("Discarded", "discarded", "gone"),
    )
    def post(self, request: Request, queue: str) -> Response:
        """Delete records. `discarded`, or `gone`: there was no such record."""
        body, live = self.read(request, DiscardSerializer), self.queue(queue)
        if "all" in body:
            age = body.get("older_than")
            before = None if age is None else live.deployment.now_ms() - age
            return self.change(live, bulk.DISCARD, body, JobFilter(buried_before_ms=before))
        if "where" in body:
            return self.change(live, bulk.DISCARD, body)
        jobs = body["jobs"]
        outcomes = [
            "discarded" if live.discard(ident, key=key, request=call) else "gone"
            for (ident, key), call in zip(jobs, self.call_ids(jobs), strict=True)
        ]
        return self.results([ident for ident, _ in jobs], outcomes)


urlpatterns: list[URLPattern] = [
    path("queues/<str:queue>/morgue", Morgue.as_view(), name="morgue"),
    path("queues/<str:queue>/morgue/<delayq_any:id>", Graves.as_view(), name="graves"),
    queue_verb("kick", KickView),
    queue_verb("discard", DiscardView),
]
