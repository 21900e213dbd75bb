"""Consumer endpoints for any language: reserve due jobs under a lease, and report how they ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.urls import URLPattern, path
from rest_framework.response import Response

from ...core.inputs import one_line
from ...pull.coordinator import hub
from ...pull.search import Search, Terms
from ...settings.conf import conf
from .. import brokers, settling
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
from ..waiting import WaitingResponse, answer, can_wait, let_go_of_databases

if TYPE_CHECKING:
    from rest_framework.request import Request

#: maximum bytes of a holder's name
_NAME_BYTES: Final = 255
_STALE: Final = (
    "`counted` is false where the lease was lost (it ended, the job was ended before, or it is somebody else's): then "
    "nothing was changed. After a 503 some may have counted. Sent again with the same Idempotency-Key, these say true "
    "if all jobs of the request ended in one way, as a single job does; otherwise they may say false."
)


class _Reserving(ApiView):
    """Base of both reserve views."""

    tag = "consuming"
    actions: ClassVar[Mapping[str, str]] = {"POST": "consume"}

    def take(self, request: Request, names: tuple[str, ...], options: Mapping[str, Any]) -> Response:
        """Return the response, or one that is to be awaited."""
        for name in names:
            self.queue(name)  # reserving must not create a queue
        if self._record is not None:
            self._record.keep_at_most(options["ttr"])
        terms = Terms(options["max"], options["ttr"], options["worker"] or _name_of(request))
        search = Search(hub(brokers.broker()), names, terms)
        seconds = min(options["wait"], conf().api.max_wait)
        return WaitingResponse(request, search, seconds) if seconds and can_wait(request) else answer(search)

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
        "Take due jobs of a queue",
        reads=ReserveSerializer,
        returns=HeldJobsSerializer,
        text="Each job is the caller's until `lease_ends`: nobody else gets it before, unless the caller gives "
        "it back. End it with ack, fail, release or bury, or hold it longer with touch; each wants its id "
        "and `lease`. A lease that runs out counts as a crash. With `wait`, a server under ASGI answers as "
        "soon as something is due; the answer is an empty list when nothing was. `Retry-After` says when "
        "to ask again; without it, at once. In a queue of kind python this competes with its workers.",
    )
    def post(self, request: Request, queue: str) -> Response:
        """Reserve jobs."""
        return self.take(request, (queue,), self.read(request, ReserveSerializer))


class ReserveFromMany(_Reserving):
    """Reserve from several queues."""

    names_queues: ClassVar[bool] = True

    def named_queues(self, request: Request) -> tuple[str, ...]:
        """Return the queues to reserve from."""
        names: tuple[str, ...] = self.read(request, ReserveFromManySerializer)["queues"]
        return names

    @operation(
        "reserve_from_many",
        "Take due jobs of several queues",
        reads=ReserveFromManySerializer,
        returns=HeldJobsSerializer,
        text="The queues are served in turn: each call begins with another one. Otherwise it is the reserve of "
        "one queue.",
    )
    def post(self, request: Request) -> Response:
        """Reserve jobs."""
        options = self.read(request, ReserveFromManySerializer)
        return self.take(request, options["queues"], options)


class _Ending(ApiView):
    """Base of the views that end held jobs."""

    tag = "consuming"
    actions: ClassVar[Mapping[str, str]] = {"POST": "consume"}

    def end(self, request: Request, name: str, kind: type[Resource], build: settling.Builder) -> Response:
        """End the jobs and return the results."""
        queue = self.queue(name)
        jobs = self.read(request, kind)["jobs"]
        seed = None if self._record is None else self._record.call()
        counted = settling.settle(queue, jobs, build, _name_of(request), seed)
        return Response({"results": [{"id": job.id, "counted": one} for job, one in zip(jobs, counted, strict=True)]})


class Ack(_Ending):
    """Acknowledgement of jobs."""

    @operation(
        "ack",
        "The jobs are done",
        reads=AckSerializer,
        returns=SettledSerializer,
        text=f"Nothing of them stays. {_STALE}",
    )
    def post(self, request: Request, queue: str) -> Response:
        """Acknowledge jobs."""
        return self.end(request, queue, AckSerializer, settling.acked)


class Fail(_Ending):
    """Report of failed attempts."""

    @operation(
        "fail",
        "The attempts failed",
        reads=FailSerializer,
        returns=SettledSerializer,
        text="Each counts as an attempt. The job is due again after its back-off, or `delay`; after its last "
        f"attempt it is in the morgue. {_STALE}",
    )
    def post(self, request: Request, queue: str) -> Response:
        """Fail attempts."""
        return self.end(request, queue, FailSerializer, settling.failed)


class Release(_Ending):
    """Release of jobs."""

    @operation(
        "release",
        "Give the jobs back",
        reads=ReleaseSerializer,
        returns=SettledSerializer,
        text=f"No attempt is counted. They are due after `delay`, or at their old places. {_STALE}",
    )
    def post(self, request: Request, queue: str) -> Response:
        """Release jobs."""
        return self.end(request, queue, ReleaseSerializer, settling.released)


class Bury(_Ending):
    """Burial of jobs."""

    @operation(
        "bury",
        "The jobs can never succeed",
        reads=BurySerializer,
        returns=SettledSerializer,
        text=f"They go to the morgue, where a person finds the reason. {_STALE}",
    )
    def post(self, request: Request, queue: str) -> Response:
        """Bury jobs."""
        return self.end(request, queue, BurySerializer, settling.buried)


class Touch(ApiView):
    """Extension of leases."""

    tag = "consuming"
    actions: ClassVar[Mapping[str, str]] = {"POST": "consume"}

    @operation(
        "touch",
        "Hold the jobs longer",
        reads=TouchSerializer,
        returns=TouchedSerializer,
        text=f"The leases last `ttr` seconds from now on, {TTR} if nothing else is said. `held` is false where "
        "the lease was lost. `stopping` says that somebody cancelled the job: it may be ended in any way, "
        "and does not come back.",
    )
    def post(self, request: Request, queue: str) -> Response:
        """Extend leases."""
        found = self.queue(queue)
        return Response({"results": settling.touch(found, self.read(request, TouchSerializer)["jobs"])})


def _name_of(request: Request) -> str:
    """Return the user's name, made fit to be stored as a holder's."""
    name = one_line(request.user.get_username())
    return name.encode()[:_NAME_BYTES].decode(errors="ignore")


urlpatterns: list[URLPattern] = [
    path("reserve", ReserveFromMany.as_view(), name="reserve-from-many"),
    path("queues/<str:queue>/reserve", Reserve.as_view(), name="reserve"),
    path("queues/<str:queue>/ack", Ack.as_view(), name="ack"),
    path("queues/<str:queue>/fail", Fail.as_view(), name="fail"),
    path("queues/<str:queue>/release", Release.as_view(), name="release"),
    path("queues/<str:queue>/bury", Bury.as_view(), name="bury"),
    path("queues/<str:queue>/touch", Touch.as_view(), name="touch"),
]
