"""Job endpoints: produce, list, show, cancel and reschedule. Verbs for many jobs are in :mod:`.job_verbs`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import quote

from django.urls import URLPattern, path
from rest_framework.request import Request
from rest_framework.response import Response

from ... import connections
from ...access.problems import Problem, invalid, job_not_found
from ...core.errors import InvalidJob
from ...core.inputs import check_id, short
from ...core.queue import Queue
from ...outbox import row_verbs
from ...outbox.push import NOT_WAITING
from ...outbox.rows import DueTime
from ..base import ApiView
from ..describe import operation
from ..entries import Reader
from ..listing import jobs_page, most_bytes
from ..producing import kind_of, produce_many, produce_one
from ..serializers.base import with_example
from ..serializers.job_verbs import DueSerializer, MovedSerializer, OutcomeSerializer
from ..serializers.jobs import JobSerializer, JobsPageSerializer, JobsQuery
from ..serializers.produce import POSTPONED, PRODUCE, PRODUCED, ProducedSerializer
from . import job_verbs


class Jobs(ApiView):
    """Route ``queues/{queue}/jobs``: list jobs, and store new ones."""

    tag = "jobs"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view", "POST": "produce"}

    @operation("list_jobs", "Jobs of a queue, page by page", returns=JobsPageSerializer, query=JobsQuery)
    def get(self, request: Request, queue: str) -> Response:
        """Return live jobs of one state in one order. Arguments are masked, and left out if they are large (`cut`)."""
        query = self.read_query(request, JobsQuery)
        return Response(JobsPageSerializer.render(jobs_page(self.queue(queue), query)))

    @operation(
        "produce_jobs", "Schedule jobs", reads=PRODUCE, returns={200: PRODUCED, 201: ProducedSerializer, 202: POSTPONED}
    )
    def post(self, request: Request, queue: str) -> Response:
        """Store one job (201, or 200 if nothing new was stored), or up to 1,000 as `jobs` (200).

        If one of many is invalid, nothing is stored. If one of many is refused (`full`, `exists`, …), the others are
        stored, but with `all_or_none` none of the same shard: those that were not refused themselves are `withheld`.
        202: Redis is unavailable; durable jobs are in the database, and are sent as soon as Redis answers. Only tasks
        with `@task(api=True)` can be called.
        """
        body = request.data
        if not isinstance(body, dict):
            raise invalid('the body is an object: one job, or {"jobs": […]}')
        many = "jobs" in body
        reader = Reader(queue, kind_of(queue), self._record, many=many)
        if many:
            for name in body.keys() - {"jobs", "all_or_none"}:
                text = "unknown member beside jobs; put the options of a job into its entry"
                raise invalid(text, (f"/{name[:60]}", text))
            all_or_none = body.get("all_or_none") or False
            if not isinstance(all_or_none, bool):
                text = f"all_or_none is true or false, not {short(all_or_none)}"
                raise invalid(text, ("/all_or_none", text))
            status, answer = produce_many(body["jobs"], reader, queue, all_or_none=all_or_none)
            return Response(answer, status=status)
        status, answer = produce_one(body, reader)
        response = Response(answer, status=status)
        if answer["id"] is not None:
            response["Location"] = location(request, queue, answer["queue"], answer["id"])
        return response


class OneJob(ApiView):
    """Route ``queues/{queue}/jobs/{id}``: show, cancel or reschedule a job. An id may contain any character."""

    tag = "jobs"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view", "DELETE": "operate", "PATCH": "operate"}

    @operation("get_job", "One job", returns=JobSerializer)
    def get(self, request: Request, queue: str, id: str) -> Response:
        """Return the live job of this id, else the one that was buried last."""
        live, ident = self.queue(queue), ident_of(id)
        inspector = connections.hurried_broker().inspector
        view = inspector.get(live.name, ident, most_bytes=most_bytes())
        if view is None:
            raise job_not_found(live.name, id)
        is_live = view.state != "morgue" and view.job.merged
        payloads = inspector.payloads(live.name, ident) if is_live else view.payloads
        return Response(JobSerializer.render(view, payloads_of=lambda _view: payloads))

    @operation(
        "cancel_job",
        "Cancel one job",
        returns={200: OutcomeSerializer, 202: with_example(OutcomeSerializer, {"outcome": "outbox"})},
    )
    def delete(self, request: Request, queue: str, id: str) -> Response:
        """Cancel the job.

        `cancelled`: it was waiting and is gone. `stopping`: it is running, is notified with its next heartbeat, and is
        not retried. 202 `outbox`: Redis is unavailable, or another process is sending the job; it is cancelled as soon
        as that ends.
        """
        live, ident = self.queue(queue), ident_of(id)
        (outcome,) = row_verbs.change_many(live, [ident], "cancel", None, [None])
        if outcome == row_verbs.GONE:
            raise job_not_found(live.name, id)
        return Response(OutcomeSerializer.render({"outcome": outcome}), status=_status(outcome))

    @operation(
        "reschedule_job",
        "Give one job another due time",
        reads=DueSerializer,
        returns={200: MovedSerializer, 202: with_example(MovedSerializer, {"outcome": "outbox", "due": None})},
    )
    def patch(self, request: Request, queue: str, id: str) -> Response:
        """Set the due time of the job that waits under the id, also of one that waits for the end of a running attempt.

        409: the job is running, and nothing waits.
        """
        when: DueTime = self.read(request, DueSerializer)["due"]
        live, ident = self.queue(queue), ident_of(id)
        (outcome,) = row_verbs.change_many(live, [ident], "reschedule", when, [None])
        if outcome == NOT_WAITING:
            raise _not_waiting(live, ident)
        # approximate: Redis's clock decides
        due = when["due_ms"] if when["due_ms"] is not None else time.time() * 1000 + (when["delay_ms"] or 0)
        return Response(MovedSerializer.render({"outcome": outcome, "due": due}), status=_status(outcome))


def ident_of(text: str) -> str:
    """Return the validated id from the URL.

    Raises:
        Problem: it is not a valid id, so there is no such job.
    """
    try:
        return check_id(text)
    except InvalidJob as error:
        raise Problem(404, "job_not_found", str(error)) from None


def location(request: Request, given: str, queue: str, ident: str) -> str:
    """Return the URL of a job.

    Clients remove ``.`` and ``..`` from a path, so these ids go into the query.
    """
    jobs = quote(request.path.removesuffix(f"{given}/jobs")) + f"{queue}/jobs"
    return f"{jobs}?id={ident}" if ident in (".", "..") else f"{jobs}/{quote(ident, safe='')}"


def _not_waiting(queue: Queue, ident: str) -> Problem:
    view = connections.hurried_broker().inspector.get(queue.name, ident, most_bytes=0)
    if view is None or view.state == "morgue":
        return job_not_found(queue.name, ident)
    return Problem(
        409,
        "conflict",
        f"job {ident!r} of queue {queue.name!r} is {view.state} now: a running job has no due time; wait for its end",
    )


def _status(outcome: str) -> int:
    return 202 if outcome == "outbox" else 200


urlpatterns: list[URLPattern] = [
    *job_verbs.urlpatterns,
    path("queues/<str:queue>/jobs", Jobs.as_view(), name="jobs"),
    path("queues/<str:queue>/jobs/<delayq_any:id>", OneJob.as_view(), name="job"),
]
