"""Verbs for many live jobs of a queue: cancel, reschedule, run now, kill or delete the failed ones.

Ids are sent in bodies, because they may contain any character. With ``{"all": true}`` a verb stops after
:data:`LONGEST` seconds and returns ``complete: false``: the same call resumes with the rest. With ``where`` it returns
a cursor, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from django.urls import URLPattern, path
from rest_framework.request import Request
from rest_framework.response import Response

from ...core import bulk
from ...core.job_filter import EVERY_JOB, JobFilter
from ...core.queue import Queue
from ...outbox import row_verbs
from ...outbox.rows import NOW, DueTime
from ...repair.sweeping import Sweep
from ..base import ApiView
from ..describe import operation
from ..listing import text_of
from ..serializers.base import with_example
from ..serializers.job_verbs import (
    BulkSerializer,
    IdsOrAllSerializer,
    MatchingSerializer,
    RescheduleSerializer,
    ResultsSerializer,
    results_or_bulk,
)

#: maximum seconds of an operation on all jobs of a queue
LONGEST: Final = 10.0


class QueueVerb(ApiView):
    """Base of the views that change many jobs of a queue."""

    tag = "jobs"
    actions: ClassVar[Mapping[str, str]] = {"POST": "operate"}

    def call_ids(self, entries: Sequence[Any]) -> list[bytes | None]:
        """Return the request id of the call to Redis for each entry; None = a random one."""
        return [None if self._record is None else self._record.call(place) for place in range(len(entries))]

    def sweep(self, act: Callable[..., dict[str, int]]) -> Response:
        """Apply a verb, called with ``progress=``, to all jobs of a queue and return the response."""
        bounded = Sweep(LONGEST)
        counts = bounded.run(act)
        return self.totals(counts, complete=not bounded.over, seen=bounded.seen, total=bounded.total)

    def change(
        self, live: Queue, verb: bulk.Verb, body: Mapping[str, Any], otherwise: JobFilter = EVERY_JOB
    ) -> Response:
        """Apply a verb to the jobs in Redis that meet the conditions of a request, and return the response.

        Without conditions it applies to those of ``otherwise``; then the same request finds those that are left.
        """
        where, cursor = body.get("where", otherwise), body.get("cursor", "")
        changed = bulk.change(live, verb, where, accepts=text_of(where), cursor=cursor, seconds=LONGEST)
        progress = {"complete": not changed.cursor, "seen": changed.examined, "total": changed.total}
        return self.totals(changed.counts, **progress, **({"cursor": changed.cursor} if "where" in body else {}))

    def totals(self, counts: Mapping[str, int], **progress: Any) -> Response:
        """Return the response for jobs that were not named."""
        return Response(BulkSerializer.render({"counts": counts, **progress}))

    def change_ids(self, live: Queue, idents: Sequence[str], verb: str, when: DueTime | None) -> Response:
        """Cancel jobs named by id, or set their due time, and return the response."""
        return self.results(idents, row_verbs.change_many(live, idents, verb, when, self.call_ids(idents)))

    def results(self, idents: Sequence[str], outcomes: Sequence[str]) -> Response:
        """Return the response for jobs named by id."""
        results = [{"id": ident, "outcome": outcome} for ident, outcome in zip(idents, outcomes, strict=True)]
        return Response(ResultsSerializer.render({"results": results, "counts": Counter(outcomes)}))


class Cancel(QueueVerb):
    """Route ``queues/{queue}/cancel``: cancel many jobs."""

    @operation(
        "cancel_jobs",
        "Cancel jobs",
        reads=IdsOrAllSerializer,
        returns=results_or_bulk("Cancelled", "cancelled", "stopping"),
    )
    def post(self, request: Request, queue: str) -> Response:
        """Cancel jobs by their ids, all waiting jobs, or the waiting ones that match.

        Outcomes by id: `cancelled`, `stopping`, `gone`, or `outbox` (a relay sends it). With `all`, running
        jobs are left alone.
        """
        body, live = self.read(request, IdsOrAllSerializer), self.queue(queue)
        if "all" in body:
            return self.sweep(partial(row_verbs.cancel_all, live))
        if "where" in body:
            return self.change(live, bulk.CANCEL, body)
        idents = body["ids"]
        return self.change_ids(live, idents, "cancel", None)


class Reschedule(QueueVerb):
    """Route ``queues/{queue}/reschedule``: set a new due time for many jobs."""

    @operation(
        "reschedule_jobs",
        "Give jobs another due time",
        reads=RescheduleSerializer,
        returns=with_example(ResultsSerializer, ResultsSerializer.example_of("moved", "not_waiting")),
    )
    def post(self, request: Request, queue: str) -> Response:
        """Set a new due time for jobs.

        Outcomes: `moved`, `not_waiting` (no such job, or it is running), or `outbox` (a relay sends it).
        """
        body, live = self.read(request, RescheduleSerializer), self.queue(queue)
        idents = body["ids"]
        return self.change_ids(live, idents, "reschedule", body["due"])


class RunNow(QueueVerb):
    """Route ``queues/{queue}/run-now``: make many jobs due now."""

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
        body, live = self.read(request, IdsOrAllSerializer), self.queue(queue)
        if "all" in body:
            return self.sweep(partial(row_verbs.run_all_now, live))
        if "where" in body:
            return self.change(live, bulk.RUN_NOW, body)
        idents = body["ids"]
        return self.change_ids(live, idents, "run_now", NOW)


class _Failed(QueueVerb):
    verb: bulk.Verb

    def answer(self, request: Request, queue: str) -> Response:
        """Apply the verb to all failed jobs, or to those that match."""
        body = self.read(request, MatchingSerializer)
        return self.change(self.queue(queue), self.verb, body)


class KillFailed(_Failed):
    """Route ``queues/{queue}/kill-failed``: bury failed jobs."""

    verb = bulk.KILL_FAILED

    @operation(
        "kill_failed_jobs",
        "Bury all jobs that have failed",
        reads=MatchingSerializer,
        returns=with_example(BulkSerializer, BulkSerializer.example_of("killed")),
    )
    def post(self, request: Request, queue: str) -> Response:
        """Bury waiting jobs that have failed (`killed`); running ones are left alone."""
        return self.answer(request, queue)


class DeleteFailed(_Failed):
    """Route ``queues/{queue}/delete-failed``: delete failed jobs."""

    verb = bulk.DELETE_FAILED

    @operation(
        "delete_failed_jobs",
        "Delete all jobs that have failed",
        reads=MatchingSerializer,
        returns=with_example(BulkSerializer, BulkSerializer.example_of("deleted")),
    )
    def post(self, request: Request, queue: str) -> Response:
        """Delete waiting jobs that have failed (`deleted`); running ones are left alone."""
        return self.answer(request, queue)


def queue_verb(word: str, view: Any) -> URLPattern:
    """Return the URL pattern of a verb of a queue."""
    pattern: URLPattern = path(f"queues/<str:queue>/{word}", view.as_view(), name=word)
    return pattern


urlpatterns: list[URLPattern] = [
    queue_verb("cancel", Cancel),
    queue_verb("reschedule", Reschedule),
    queue_verb("run-now", RunNow),
    queue_verb("kill-failed", KillFailed),
    queue_verb("delete-failed", DeleteFailed),
]
