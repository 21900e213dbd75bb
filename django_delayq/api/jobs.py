"""Job endpoints: produce, list, show, cancel and reschedule jobs, and the morgue.

Ids are sent in bodies, because they may contain any character. With ``{"all": true}`` a verb stops after
:data:`LONGEST` seconds and returns ``complete: false``: the same call resumes with the rest. With ``where`` it returns
a cursor, too.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from rest_framework.request import Request
from rest_framework.response import Response

from .. import connections
from ..access.problems import Problem, invalid, job_not_found
from ..core import actions, bulk
from ..core.errors import InvalidJob
from ..core.inputs import check_id
from ..core.job_filter import EVERY_JOB, JobFilter
from ..core.job_view import JobView
from ..core.queue import Queue
from ..core.reading import Accepts, Page
from ..core.times import iso_of
from ..outbox import row_verbs
from ..outbox.row_verbs import NOT_WAITING
from ..outbox.rows import NOW, DueTime
from ..settings.conf import conf
from ..status.job_content import text_search
from . import requests, responses
from .base import ApiView, operation
from .content import payloads_of
from .entries import PRODUCE, Reader, Together, kind_of, produce_many, produce_one

#: maximum seconds of an operation on all jobs of a queue
LONGEST: Final = 10.0
#: bytes of arguments, payloads and errors after which a page of whole records ends
PAGE_BYTES: Final = 1024 * 1024
#: maximum bytes of arguments that a list shows; larger ones are left out
MOST_BYTES: Final = 10_000
#: seconds after which a page with conditions ends
PAGE_SECONDS: Final = 2.0


class Jobs(ApiView):
    """Jobs of a queue that are alive."""

    tag = "jobs"

    @operation("GET v1/queues/{queue}/jobs", "view", returns=responses.JobsPage, query=requests.JobsQuery)
    def list_jobs(self, request: Request, queue: str) -> Response:
        """List the jobs of a queue of one state in one order, page by page.

        Arguments are masked, and left out if they are large (`cut`).
        """
        return Response(jobs_page(self.queue(queue), self.read_query(request)))

    @operation(
        "POST v1/queues/{queue}/jobs",
        "produce",
        reads=PRODUCE,
        returns={200: responses.PRODUCED, 201: responses.Produced, 202: responses.PRODUCED},
    )
    def produce_jobs(self, request: Request, queue: str) -> Response:
        """Schedule one job, or up to 1,000 as `jobs`.

        201: one job was stored; 200: it was there already, or there are many. If one of many is invalid, nothing is
        stored. If one of many is refused (`full`, `exists`, …), the others are stored, but with `all_or_none` none of
        the same shard: those that were not refused themselves are `withheld`. 202: Redis is unavailable; durable jobs
        are in the database, and are sent as soon as Redis answers. Only tasks with `@task(api=True)` can be called.
        """
        body = request.data
        if not isinstance(body, dict):
            raise invalid('the body is an object: one job, or {"jobs": […]}')
        many = "jobs" in body
        reader = Reader(queue, kind_of(queue), self._record, many=many)
        if many:
            together = Together.read({name: value for name, value in body.items() if name != "jobs"})
            status, answer = produce_many(body["jobs"], reader, queue, all_or_none=together["all_or_none"])
            return Response(answer, status=status)
        status, answer = produce_one(body, reader)
        response = Response(answer, status=status)
        if answer["id"] is not None:
            response["Location"] = location(request, queue, answer["queue"], answer["id"])
        return response

    @operation("GET v1/queues/{queue}/jobs/{id}", "view", returns=responses.Job)
    def get_job(self, request: Request, queue: str, id: str) -> Response:
        """Show the live job of this id, else the one that was buried last."""
        live, ident = self.queue(queue), ident_of(id)
        inspector = connections.hurried_broker().inspector
        view = inspector.get(live.name, ident, most_bytes=most_bytes())
        if view is None:
            raise job_not_found(live.name, id)
        rendered = responses.Job.render(view)
        if view.job.merged:
            payloads = view.payloads if view.state == "morgue" else inspector.payloads(live.name, ident)
            rendered |= payloads_of(view, payloads)
        return Response(rendered)

    @operation(
        "DELETE v1/queues/{queue}/jobs/{id}", "operate", returns={200: responses.Outcome, 202: responses.Outcome}
    )
    def cancel_job(self, request: Request, queue: str, id: str) -> Response:
        """Cancel one job.

        `cancelled`: it was waiting and is gone. `stopping`: it is running, is notified with its next heartbeat, and is
        not retried. 202 `outbox`: Redis is unavailable, or another process is sending the job; it is cancelled as soon
        as that ends.
        """
        live, ident = self.queue(queue), ident_of(id)
        (outcome,) = row_verbs.change_many(live, [ident], "cancel", None, [None])
        if outcome == row_verbs.GONE:
            raise job_not_found(live.name, id)
        return Response({"outcome": outcome}, status=_status(outcome))

    @operation(
        "PATCH v1/queues/{queue}/jobs/{id}",
        "operate",
        reads=requests.Due,
        returns={200: responses.Moved, 202: responses.Moved},
    )
    def reschedule_job(self, request: Request, queue: str, id: str) -> Response:
        """Give one job another due time, also while it waits behind a running attempt.

        202 `outbox`: as for a cancel. 409: the job is running, and nothing waits.
        """
        when: DueTime = self.read(request)["due"]
        live, ident = self.queue(queue), ident_of(id)
        (outcome,) = row_verbs.change_many(live, [ident], "reschedule", when, [None])
        if outcome == NOT_WAITING:
            raise _not_waiting(live, ident)
        # approximate: Redis's clock decides
        due = when["due_ms"] if when["due_ms"] is not None else time.time() * 1000 + (when["delay_ms"] or 0)
        return Response({"outcome": outcome, "due": iso_of(due)}, status=_status(outcome))

    # -- verbs for many jobs -------------------------------------------------------------------------------------------

    @operation("POST v1/queues/{queue}/cancel", "operate", reads=requests.IdsOrAll, returns=responses.CHANGED)
    def cancel_jobs(self, request: Request, queue: str) -> Response:
        """Cancel jobs by their ids, all waiting jobs, or the waiting ones that match.

        Outcomes by id: `cancelled`, `stopping`, `gone`, or `outbox` (a relay sends it). With `all`, running jobs are
        left alone.
        """
        return self._ids_or_all(request, queue, "cancel", None, row_verbs.cancel_all, bulk.CANCEL)

    @operation("POST v1/queues/{queue}/run-now", "operate", reads=requests.IdsOrAll, returns=responses.CHANGED)
    def run_jobs_now(self, request: Request, queue: str) -> Response:
        """Make jobs due now.

        Outcomes: `moved`, `not_waiting` or `outbox`, as for reschedule. Overdue jobs keep their places.
        """
        return self._ids_or_all(request, queue, "run_now", NOW, row_verbs.run_all_now, bulk.RUN_NOW)

    @operation("POST v1/queues/{queue}/reschedule", "operate", reads=requests.Reschedule, returns=responses.Results)
    def reschedule_jobs(self, request: Request, queue: str) -> Response:
        """Give many jobs another due time.

        Outcomes: `moved`, `not_waiting` (no such job, or it is running), or `outbox` (a relay sends it).
        """
        body, live = self.read(request), self.queue(queue)
        return self._change_ids(live, body["ids"], "reschedule", body["due"])

    @operation("POST v1/queues/{queue}/kill-failed", "operate", reads=requests.Matching, returns=responses.Bulk)
    def kill_failed_jobs(self, request: Request, queue: str) -> Response:
        """Bury waiting jobs that have failed (`killed`), all or those that match.

        Running ones are left alone.
        """
        return self._change(self.queue(queue), bulk.KILL_FAILED, self.read(request))

    @operation("POST v1/queues/{queue}/delete-failed", "operate", reads=requests.Matching, returns=responses.Bulk)
    def delete_failed_jobs(self, request: Request, queue: str) -> Response:
        """Delete waiting jobs that have failed (`deleted`), all or those that match.

        Running ones are left alone.
        """
        return self._change(self.queue(queue), bulk.DELETE_FAILED, self.read(request))

    def _ids_or_all(
        self,
        request: Request,
        queue: str,
        verb: str,
        when: DueTime | None,
        to_all: Callable[..., bulk.Changed],
        matching: bulk.Verb,
    ) -> Response:
        body, live = self.read(request), self.queue(queue)
        if "all" in body:
            return _totals(to_all(live, seconds=LONGEST))
        if "where" in body:
            return self._change(live, matching, body)
        return self._change_ids(live, body["ids"], verb, when)

    def _change(
        self, live: Queue, verb: bulk.Verb, body: Mapping[str, Any], otherwise: JobFilter = EVERY_JOB
    ) -> Response:
        """Apply a verb to the jobs in Redis that meet the conditions of a request, and return the response.

        Without conditions it applies to those of ``otherwise``; then the same request finds those that are left.
        """
        where, cursor = body.get("where", otherwise), body.get("cursor", "")
        changed = bulk.change(live, verb, where, accepts=_text_of(where), cursor=cursor, seconds=LONGEST)
        more = {"cursor": changed.cursor} if "where" in body and changed.cursor else {}
        return _totals(changed, **more)

    def _change_ids(self, live: Queue, idents: Sequence[str], verb: str, when: DueTime | None) -> Response:
        """Cancel jobs named by id, or set their due time, and return the response."""
        return _results(idents, row_verbs.change_many(live, idents, verb, when, self._call_ids(idents)))

    def _call_ids(self, entries: Sequence[Any]) -> list[bytes | None]:
        """Return the request id of the call to Redis for each entry; None = a random one."""
        return [None if self._record is None else self._record.call(place) for place in range(len(entries))]


class Morgue(Jobs):
    """Jobs whose attempts are used up, or that were buried early."""

    tag = "morgue"

    @operation("GET v1/queues/{queue}/morgue", "view", returns=responses.JobsPage, query=requests.MorgueQuery)
    def list_morgue(self, request: Request, queue: str) -> Response:
        """List the morgue of a queue, page by page.

        Records come in the order in which they were buried, or by id. An id may have several.
        """
        return Response(jobs_page(self.queue(queue), self.read_query(request)))

    @operation("GET v1/queues/{queue}/morgue/{id}", "view", returns=responses.JobsPage, query=requests.GravesQuery)
    def get_graves(self, request: Request, queue: str, id: str) -> Response:
        """Show all records of an id in the morgue, the last buried first.

        Pages have up to 250. A page ends with the record that brings it to a MiB, so it may have fewer than `limit`.
        Arguments are masked, and left out (`cut`) if they are larger than both a MiB and `MAX_ARGS_BYTES` of the
        settings.
        """
        query, live, ident = self.read_query(request), self.queue(queue), ident_of(id)
        page = connections.hurried_broker().inspector.graves_page(
            live.name,
            ident,
            cursor=query["cursor"],
            limit=query["limit"],
            most_bytes=most_bytes(),
            page_bytes=PAGE_BYTES,
        )
        if not (page.jobs or page.cursor or query["cursor"]):
            raise Problem(
                "job_not_found",
                f"the morgue of queue {live.name!r} has no job {ident!r}; it was kicked, discarded or never there",
            )
        return Response(_rendered(page, whole=True))

    @operation("POST v1/queues/{queue}/kick", "operate", reads=requests.Kick, returns=responses.CHANGED)
    def kick_jobs(self, request: Request, queue: str) -> Response:
        """Bring jobs back from the morgue and reset their failures.

        Outcomes: `kicked`, `live` (a live job has the same id) or `gone`.
        """
        body, live = self.read(request), self.queue(queue)
        options = {"delay_ms": body.get("delay", 0), "replace": body.get("replace", False)}
        if "per_second" in body:
            return self._kick_at_pace(live, body)
        if "jobs" not in body:
            return self._change(live, bulk.kick(**options), body)
        jobs = body["jobs"]
        outcomes = [
            live.kick(ident, key=key, request=call, **options) or "gone"
            for (ident, key), call in zip(jobs, self._call_ids(jobs), strict=True)
        ]
        return _results([ident for ident, _ in jobs], outcomes)

    def _kick_at_pace(self, live: Queue, body: Mapping[str, Any]) -> Response:
        """Bring all jobs back at a pace, which the next request continues by the cursor: the next due time, Unix ms."""
        now_ms = live.deployment.now_ms()
        first_ms = max(now_ms, body["cursor"]) if "cursor" in body else int(now_ms) + body.get("delay", 0)
        kick = actions.Kick(per_second=body["per_second"], first_ms=first_ms, replace=body.get("replace", False))
        response = self._change(live, bulk.Verb("morgue", kick), {})
        if not response.data["complete"]:
            response.data["cursor"] = f"{kick.due_ms:.3f}"
        return response

    @operation("POST v1/queues/{queue}/discard", "operate", reads=requests.Discard, returns=responses.CHANGED)
    def discard_jobs(self, request: Request, queue: str) -> Response:
        """Delete jobs from the morgue.

        Outcomes: `discarded`, or `gone`: there was no such record.
        """
        body, live = self.read(request), self.queue(queue)
        if "jobs" not in body:
            age = body.get("older_than")
            before = None if age is None else live.deployment.now_ms() - age
            return self._change(live, bulk.DISCARD, body, JobFilter(buried_before_ms=before))
        jobs = body["jobs"]
        outcomes = [
            "discarded" if live.discard(ident, key=key, request=call) else "gone"
            for (ident, key), call in zip(jobs, self._call_ids(jobs), strict=True)
        ]
        return _results([ident for ident, _ in jobs], outcomes)


def _totals(changed: bulk.Changed, **more: str) -> Response:
    """Return the response for jobs that were not named."""
    progress = {"complete": not changed.cursor, "seen": changed.examined, "total": changed.total}
    return Response({"counts": changed.counts, **progress, **more})


def _results(idents: Sequence[str], outcomes: Sequence[str]) -> Response:
    """Return the response for jobs named by id."""
    results = [{"id": ident, "outcome": outcome} for ident, outcome in zip(idents, outcomes, strict=True)]
    return Response({"results": results, "counts": Counter(outcomes)})


def _status(outcome: str) -> int:
    return 202 if outcome == "outbox" else 200


def ident_of(text: str) -> str:
    """Return the validated id from the URL.

    Raises:
        Problem: it is not a valid id, so there is no such job.
    """
    try:
        return check_id(text)
    except InvalidJob as error:
        raise Problem("job_not_found", str(error)) from None


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
        "conflict",
        f"job {ident!r} of queue {queue.name!r} is {view.state} now: a running job has no due time; wait for its end",
    )


# -- pages -----------------------------------------------------------------------------------------------------------


def most_bytes() -> int:
    """Return the maximum bytes of arguments shown for a job requested by id; no job should have more."""
    return max(PAGE_BYTES, conf().max_args_bytes)


def jobs_page(queue: Queue, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the page that a validated query selects: ``jobs``, ``cursor`` and ``examined``."""
    accepts = _accepts(query)
    if query["id"]:
        views = [view for view in _jobs_of_id(queue, query) if query["where"].holds(view)]
        jobs = [view for view in views if accepts is None or accepts(view)]
        return _rendered(Page(jobs, examined=len(views)))
    low, high = _range(query)
    page = connections.hurried_broker().inspector.page(
        queue.name,
        query["place"],
        query["by"],
        cursor=query["cursor"],
        limit=query["limit"],
        reverse=query["order"] == "desc",
        low=low,
        high=high,
        most_bytes=MOST_BYTES,
        where=query["where"],
        accepts=accepts,
        seconds=PAGE_SECONDS,
        partial=True,
    )
    return _rendered(page)


def _rendered(page: Page, *, whole: bool = False) -> dict[str, Any]:
    """Return a page as JSON; a ``whole`` one also has the payloads of merged jobs."""
    jobs = [responses.Job.render(view) for view in page.jobs]
    for job, view in zip(jobs, page.jobs, strict=True):
        if whole and view.job.merged:
            job |= payloads_of(view, view.payloads)
    return {
        "jobs": jobs,
        "cursor": page.cursor or None,
        "examined": page.examined,
        "unreachable_shards": page.unreachable,
    }


def _text_of(where: JobFilter) -> Accepts | None:
    """Return the predicate for the text of a filter, which does not see masked values; None without a text."""
    return text_search(where.text) if where.text else None


def _accepts(query: Mapping[str, Any]) -> Accepts | None:
    text = _text_of(query["where"])
    if query.get("state") != "gated":
        return text
    return lambda view: view.gated_due_ms is not None and (text is None or text(view))


def _jobs_of_id(queue: Queue, query: Mapping[str, Any]) -> Sequence[JobView]:
    inspector = connections.hurried_broker().inspector
    if query["place"] == "morgue":
        return inspector.graves(queue.name, query["id"], most_bytes=MOST_BYTES)
    view = inspector.get(queue.name, query["id"], most_bytes=MOST_BYTES)
    return [view] if view is not None and _is_in_state(view, query["state"] or "") else []


def _is_in_state(view: JobView, state: str) -> bool:
    waits = view.state in ("delayed", "ready")
    return view.state != "morgue" and {
        "": True,
        "waiting": waits,
        "failed": waits and view.job.failures > 0,
        "gated": True,
    }.get(state, view.state == state)


def _range(query: Mapping[str, Any]) -> tuple[float | str | None, float | str | None]:
    """Return the bounds of the page, cut at the current time for delayed and ready jobs."""
    low, high = query["min"], query["max"]
    if query.get("state") not in ("delayed", "ready"):
        return low, high
    now_ms = math.floor(connections.hurried_broker().now_ms())
    if query["state"] == "ready":
        return low, now_ms if high is None else min(float(high), now_ms)
    return now_ms + 1 if low is None else max(float(low), now_ms + 1), high
