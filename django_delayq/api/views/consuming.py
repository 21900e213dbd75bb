"""Consumer endpoints for any language: reserve due jobs under a lease, and report how they ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiExample, OpenApiResponse
from rest_framework.response import Response

from ...core.inputs import one_line
from ...pull.coordinator import hub
from ...pull.search import Search, Terms
from ...settings.conf import conf
from .. import brokers, settling
from ..base import ApiView, Body
from ..describe import extend_schema
from ..leases import TTR, AckField, BuryField, FailField, ReleaseField, TouchField
from ..reserveforms import NAME_BYTES, ReserveForm, ReserveFromManyForm
from ..shapes import HeldJobsSerializer, ProblemSerializer, SettledSerializer, TouchedSerializer
from ..waiting import WaitingResponse, answer, can_wait, let_go_of_databases

if TYPE_CHECKING:
    from rest_framework.request import Request

_TAGS: Final = ["consuming"]
_NOT_FOUND: Final = OpenApiResponse(ProblemSerializer, description="queue_not_found")
_HELD: Final = {
    "queue": "images",
    "id": "order-5",
    "lease": "3.1795432101234567",
    "key": "6f1c" * 8,
    "task": "raw",
    "body": '{"url": "https://example.org/5.png"}',
    "due": "2026-11-21T11:23:43.123Z",
    "attempt": 1,
    "failures": 0,
    "noe": 0,
    "lives": 26,
    "context": {},
    "lease_ends": "2026-11-21T11:24:45.500Z",
}
_ONE: Final = {"id": _HELD["id"], "lease": _HELD["lease"]}
_STALE: Final = (
    "`counted` is false where the lease was lost (it ended, the job was ended before, or it is somebody else's): then "
    "nothing was changed. After a 503 some may have counted. Sent again with the same Idempotency-Key, these say true "
    "if all jobs of the request ended in one way, as a single job does; otherwise they may say false."
)


class _Reserving(ApiView):
    """Base of both reserve views."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "consume"}

    def take(self, request: Request, names: tuple[str, ...], asked: Mapping[str, Any]) -> Response:
        """Return the response, or one that is to be awaited."""
        for name in names:
            self.queue(name)  # reserving must not create a queue
        if self._kept is not None:
            self._kept.keep_at_most(asked["ttr"])
        terms = Terms(asked["max"], asked["ttr"], asked["worker"] or _name_of(request))
        search = Search(hub(brokers.broker()), names, terms)
        seconds = min(asked["wait"], conf().api.max_wait)
        return WaitingResponse(request, search, seconds) if seconds and can_wait(request) else answer(search)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Hand the key's record to a waiting response, which stores itself, and close the database connections."""
        if isinstance(response, WaitingResponse):
            response.kept, self._kept = self._kept, None
            let_go_of_databases()
        return super().finalize_response(request, response, *args, **kwargs)


class Reserve(_Reserving):
    """Reserve from one queue."""

    @extend_schema(
        operation_id="reserve",
        summary="Take due jobs of a queue",
        tags=_TAGS,
        request=ReserveForm,
        description="Each job is the caller's until `lease_ends`: nobody else gets it before, unless the caller gives "
        "it back. End it with ack, fail, release or bury, or hold it longer with touch; each wants its id "
        "and `lease`. A lease that runs out counts as a crash. With `wait`, a server under ASGI answers as "
        "soon as something is due; the answer is an empty list when nothing was. `Retry-After` says when "
        "to ask again; without it, at once. In a queue of kind python this competes with its workers.",
        responses={200: HeldJobsSerializer, 404: _NOT_FOUND},
        examples=[
            OpenApiExample("up to ten, wait for the first", request_only=True, value={"max": 10, "wait": 20}),
            OpenApiExample("one", response_only=True, value={"jobs": [_HELD]}),
        ],
    )
    def post(self, request: Request, queue: str) -> Response:
        """Reserve jobs."""
        return self.take(request, (queue,), self.read(request, ReserveForm))


class ReserveFromMany(_Reserving):
    """Reserve from several queues."""

    names_queues: ClassVar[bool] = True

    def named_queues(self, request: Request) -> tuple[str, ...]:
        """Return the queues to reserve from."""
        names: tuple[str, ...] = self.read(request, ReserveFromManyForm)["queues"]
        return names

    @extend_schema(
        operation_id="reserve_from_many",
        summary="Take due jobs of several queues",
        tags=_TAGS,
        request=ReserveFromManyForm,
        description="The queues are served in turn: each call begins with another one. Otherwise it is the reserve of "
        "one queue.",
        responses={200: HeldJobsSerializer, 404: _NOT_FOUND},
        examples=[
            OpenApiExample("of two queues", request_only=True, value={"queues": ["images", "mail"], "wait": 20}),
            OpenApiExample("one", response_only=True, value={"jobs": [_HELD]}),
        ],
    )
    def post(self, request: Request) -> Response:
        """Reserve jobs."""
        asked = self.read(request, ReserveFromManyForm)
        return self.take(request, asked["queues"], asked)


class AckForm(Body):
    """Jobs to acknowledge."""

    jobs = AckField()


class FailForm(Body):
    """Jobs whose attempts failed."""

    jobs = FailField()


class ReleaseForm(Body):
    """Jobs to release."""

    jobs = ReleaseField()


class BuryForm(Body):
    """Jobs to bury."""

    jobs = BuryField()


class TouchForm(Body):
    """Jobs whose leases are to be extended."""

    jobs = TouchField()


class _Ending(ApiView):
    """Base of the views that end held jobs."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "consume"}

    def end(self, request: Request, name: str, form: type[Body], how: settling.How) -> Response:
        """End the jobs and return the results."""
        queue = self.queue(name)
        jobs = self.read(request, form)["jobs"]
        seed = None if self._kept is None else self._kept.call()
        counted = settling.settle(queue, jobs, how, _name_of(request), seed)
        return Response({"results": [{"id": job.id, "counted": one} for job, one in zip(jobs, counted, strict=True)]})


_COUNTED: Final = OpenApiExample(
    "it counted", response_only=True, value={"results": [{"id": _HELD["id"], "counted": True}]}
)


class Ack(_Ending):
    """Acknowledgement of jobs."""

    @extend_schema(
        operation_id="ack",
        summary="The jobs are done",
        tags=_TAGS,
        request=AckForm,
        description=f"Nothing of them stays. {_STALE}",
        responses={200: SettledSerializer, 404: _NOT_FOUND},
        examples=[OpenApiExample("one", request_only=True, value={"jobs": [_ONE]}), _COUNTED],
    )
    def post(self, request: Request, queue: str) -> Response:
        """Acknowledge jobs."""
        return self.end(request, queue, AckForm, settling.acked)


class Fail(_Ending):
    """Report of failed attempts."""

    @extend_schema(
        operation_id="fail",
        summary="The attempts failed",
        tags=_TAGS,
        request=FailForm,
        description="Each counts as an attempt. The job is due again after its back-off, or `delay`; after its last "
        f"attempt it is in the morgue. {_STALE}",
        responses={200: SettledSerializer, 404: _NOT_FOUND},
        examples=[
            OpenApiExample("with a text", request_only=True, value={"jobs": [{**_ONE, "error": "503 from the host"}]}),
            OpenApiExample(
                "with everything",
                request_only=True,
                value={
                    "jobs": [
                        {
                            **_ONE,
                            "delay": 30,
                            "error": {
                                "class": "TimeoutError",
                                "message": "no answer",
                                "traceback": "at fetch (w.js:12)",
                            },
                        }
                    ]
                },
            ),
            _COUNTED,
        ],
    )
    def post(self, request: Request, queue: str) -> Response:
        """Fail attempts."""
        return self.end(request, queue, FailForm, settling.failed)


class Release(_Ending):
    """Release of jobs."""

    @extend_schema(
        operation_id="release",
        summary="Give the jobs back",
        tags=_TAGS,
        request=ReleaseForm,
        description=f"No attempt is counted. They are due after `delay`, or at their old places. {_STALE}",
        responses={200: SettledSerializer, 404: _NOT_FOUND},
        examples=[OpenApiExample("for later", request_only=True, value={"jobs": [{**_ONE, "delay": 60}]}), _COUNTED],
    )
    def post(self, request: Request, queue: str) -> Response:
        """Release jobs."""
        return self.end(request, queue, ReleaseForm, settling.released)


class Bury(_Ending):
    """Burial of jobs."""

    @extend_schema(
        operation_id="bury",
        summary="The jobs can never succeed",
        tags=_TAGS,
        request=BuryForm,
        description=f"They go to the morgue, where a person finds the reason. {_STALE}",
        responses={200: SettledSerializer, 404: _NOT_FOUND},
        examples=[
            OpenApiExample("with a reason", request_only=True, value={"jobs": [{**_ONE, "reason": "no such order"}]}),
            _COUNTED,
        ],
    )
    def post(self, request: Request, queue: str) -> Response:
        """Bury jobs."""
        return self.end(request, queue, BuryForm, settling.buried)


class Touch(ApiView):
    """Extension of leases."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "consume"}

    @extend_schema(
        operation_id="touch",
        summary="Hold the jobs longer",
        tags=_TAGS,
        request=TouchForm,
        description=f"The leases last `ttr` seconds from now on, {TTR} if nothing else is said. `held` is false where "
        "the lease was lost. `stopping` says that somebody cancelled the job: it may be ended in any way, "
        "and does not come back.",
        responses={200: TouchedSerializer, 404: _NOT_FOUND},
        examples=[
            OpenApiExample("two minutes", request_only=True, value={"jobs": [{**_ONE, "ttr": 120}]}),
            OpenApiExample(
                "held",
                response_only=True,
                value={
                    "results": [{"id": _HELD["id"], "held": True, "stopping": False, "lease_ends": _HELD["lease_ends"]}]
                },
            ),
        ],
    )
    def post(self, request: Request, queue: str) -> Response:
        """Extend leases."""
        found = self.queue(queue)
        return Response({"results": settling.touch(found, self.read(request, TouchForm)["jobs"])})


def _name_of(request: Request) -> str:
    """Return the user's name, made fit to be stored as a holder's."""
    name = one_line(request.user.get_username())
    return name.encode()[:NAME_BYTES].decode(errors="ignore")


urlpatterns: list[URLPattern] = [
    path("reserve", ReserveFromMany.as_view(), name="reserve-from-many"),
    path("queues/<str:queue>/reserve", Reserve.as_view(), name="reserve"),
    path("queues/<str:queue>/ack", Ack.as_view(), name="ack"),
    path("queues/<str:queue>/fail", Fail.as_view(), name="fail"),
    path("queues/<str:queue>/release", Release.as_view(), name="release"),
    path("queues/<str:queue>/bury", Bury.as_view(), name="bury"),
    path("queues/<str:queue>/touch", Touch.as_view(), name="touch"),
]
