"""Consumer endpoints for any language: reserve due jobs under a lease, and report how they ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from django.urls import URLPattern, path
from rest_framework.request import Request
from rest_framework.response import Response

from ... import connections
from ...core.inputs import one_line
from ...pull.coordinator import coordinator_of
from ...pull.one_job import Holder, reserve_id
from ...pull.search import Search, Terms
from ...settings.conf import conf
from .. import settling
from ..base import ApiView
from ..describe import operation
from ..leases import TTR
from ..serializers.base import Resource
from ..serializers.consume import HeldJobsSerializer, ReserveFromManySerializer, ReserveSerializer
from ..serializers.ends import (
    AckSerializer,
    BurySerializer,
    FailSerializer,
    ReleaseSerializer,
    SettledSerializer,
    TouchedSerializer,
    TouchSerializer,
)
from ..waiting import WaitingResponse, answer, can_wait, let_go_of_databases, reserved
from .job_verbs import queue_verb

#: maximum bytes of a holder's name
_NAME_BYTES: Final = 255
_STALE: Final = (
    "`counted` is false if the lease was lost (it ran out, the job was settled before, or another client holds it): "
    "then nothing was changed. After a 503 some jobs may be settled. If the request is repeated with the same "
    "Idempotency-Key, these are `true` again, provided that all jobs of the request have the same outcome."
)


class _Reserving(ApiView):
    """Base of both reserve views."""

    tag = "consuming"
    actions: ClassVar[Mapping[str, str]] = {"POST": "consume"}

    def take(self, request: Request, names: tuple[str, ...], options: Mapping[str, Any]) -> Response:
        """Return the response, or one that is to be awaited."""
        for name in names:
            self.queue(name)  # reserving must not create a queue
        holder = self.holder(request, options)
        terms = Terms(options["max"], holder.ttr_ms, holder.worker)
        search = Search(coordinator_of(connections.hurried_broker()), names, terms)
        wait, left = min(options["wait"], conf().api.max_wait), _until_deadline(options)
        if min(wait, left) > 0 and can_wait(request):
            return WaitingResponse(request, search, min(wait, left), to_deadline=left < wait)
        return answer(search, self._record, deadline_soon=left <= 0)

    def holder(self, request: Request, options: Mapping[str, Any]) -> Holder:
        """Return the holder that a request names."""
        worker = options["worker"] or _name_of(request)
        early, buried = options.get("early", False), options.get("buried", False)
        return Holder(worker, options.get("ttr"), early=early, buried=buried)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Hand the key's record to a waiting response, which stores itself, and close the database connections."""
        if isinstance(response, WaitingResponse):
            response.record, self._record = self._record, None
            let_go_of_databases()
        return super().finalize_response(request, response, *args, **kwargs)


class Reserve(_Reserving):
    """Reserve from one queue."""

    @operation(
        "reserve",
        "Reserve due jobs of a queue",
        reads=ReserveSerializer,
        returns=HeldJobsSerializer,
        text="The caller holds each job until `lease_ends`. Settle it with ack, fail, release or bury, or extend the "
        "lease with touch; each needs its id and `lease`. A lease that runs out counts as a crash. With `wait`, "
        "a server under ASGI responds as soon as a job is due, and with an empty list if none was due in time. "
        "Send the next request after `Retry-After`, or at once if there is none. A caller that holds jobs during the "
        "wait gives their `lease_ends` as `holding`: the wait ends `deadline_margin` seconds before the first of them, "
        "with `deadline_soon`. In a queue of kind python "
        "this competes with its workers. With `id` the job of this id is reserved (with `buried` also from the morgue, "
        "its failures reset).",
    )
    def post(self, request: Request, queue: str) -> Response:
        """Reserve jobs."""
        options = self.read(request, ReserveSerializer)
        if "id" not in options:
            return self.take(request, (queue,), options)
        held = reserve_id(self.queue(queue), options["id"], self.holder(request, options))
        return reserved(held, self._record)


class ReserveFromMany(_Reserving):
    """Reserve from several queues."""

    names_queues: ClassVar[bool] = True

    def named_queues(self, request: Request) -> tuple[str, ...]:
        """Return the queues to reserve from."""
        names: tuple[str, ...] = self.read(request, ReserveFromManySerializer)["queues"]
        return names

    @operation(
        "reserve_from_many",
        "Reserve due jobs of several queues",
        reads=ReserveFromManySerializer,
        returns=HeldJobsSerializer,
        text="Each call begins with another of the queues. Otherwise this is the reserve of one queue.",
    )
    def post(self, request: Request) -> Response:
        """Reserve jobs."""
        options = self.read(request, ReserveFromManySerializer)
        return self.take(request, options["queues"], options)


class Touch(ApiView):
    """Extension of leases."""

    tag = "consuming"
    actions: ClassVar[Mapping[str, str]] = {"POST": "consume"}

    @operation(
        "touch",
        "Extend leases",
        reads=TouchSerializer,
        returns=TouchedSerializer,
        text=f"The leases last `ttr` seconds from now on, default {TTR}. `held` is false if the lease was "
        "lost. `stopping` is true if the job was cancelled: it may be settled in any way, and is not "
        "retried.",
    )
    def post(self, request: Request, queue: str) -> Response:
        """Extend leases."""
        opened = self.queue(queue)
        return Response({"results": settling.touch(opened, self.read(request, TouchSerializer)["jobs"])})


def _until_deadline(options: Mapping[str, Any]) -> float:
    """Return the seconds until the margin of the first lease that the caller holds; infinity if it holds none."""
    if not options.get("holding"):
        return math.inf
    now = connections.hurried_broker().now_ms()
    lefts = [(end - now) / 1000 - options["deadline_margin"] for end in options["holding"] if end > now]
    return min(lefts, default=math.inf)


def _name_of(request: Request) -> str:
    """Return the user's name, made fit to be stored as a holder's."""
    name = one_line(request.user.get_username())
    return name.encode()[:_NAME_BYTES].decode(errors="ignore")


def _ending(name: str, summary: str, reads: type[Resource], build: settling.Builder, text: str) -> URLPattern:
    """Return the URL pattern of a verb that ends held jobs.

    Args:
        name: the verb; also the id of the operation.
        summary: what it does, in a line.
        reads: serializer of the request body.
        build: builds the settlement of each job.
        text: the description.
    """

    class Ending(ApiView):
        """Verb that ends held jobs."""

        tag = "consuming"
        actions: ClassVar[Mapping[str, str]] = {"POST": "consume"}

        @operation(name, summary, reads=reads, returns=SettledSerializer, text=f"{text} {_STALE}")
        def post(self, request: Request, queue: str) -> Response:
            """End the jobs and return the results."""
            opened = self.queue(queue)
            jobs = self.read(request, reads)["jobs"]
            seed = None if self._record is None else self._record.call()
            counted = settling.settle(opened, jobs, build, _name_of(request), seed)
            results = [{"id": job.id, "counted": one} for job, one in zip(jobs, counted, strict=True)]
            return Response({"results": results})

    return queue_verb(name, Ending)


urlpatterns: list[URLPattern] = [
    path("reserve", ReserveFromMany.as_view(), name="reserve-from-many"),
    queue_verb("reserve", Reserve),
    _ending("ack", "Acknowledge jobs", AckSerializer, settling.acked, "The jobs are done and deleted."),
    _ending(
        "fail",
        "Report failed attempts",
        FailSerializer,
        settling.failed,
        "Each counts as an attempt. The job is due again after its back-off, or `delay`; after its last attempt it is "
        "in the morgue.",
    ),
    _ending(
        "release",
        "Release jobs",
        ReleaseSerializer,
        settling.released,
        "No attempt is counted. They are due after `delay`, or keep their due times.",
    ),
    _ending("bury", "Bury jobs", BurySerializer, settling.buried, "They go to the morgue with the reason."),
    queue_verb("touch", Touch),
]
