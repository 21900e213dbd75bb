"""Grape's job routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.http.request import RawPostDataException
from django.urls import URLPattern, path
from rest_framework.response import Response

from ...conf import conf
from ...core.chunks import CHUNK
from ...core.job import ack, bury, release
from ..describe import extend_schema
from ..problems import Problem
from . import holding
from .base import GrapeView, dtr_ms, how_many, job_id, ttr_ms

if TYPE_CHECKING:
    from rest_framework.request import Request


@extend_schema(exclude=True)
class Produce(GrapeView):
    """``POST /job/produce?tube&jid&dtr=0&ttr=1000``, the body is the data: true, or false where the id lives."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "produce"}

    def post(self, request: Request) -> Response:
        """Stores it."""
        queue, ident, delay_ms, lease_ms = self.tube(request), job_id(request), dtr_ms(request), ttr_ms(request)
        return Response(holding.put(queue, ident, body_of(request), delay_ms, lease_ms))


@extend_schema(exclude=True)
class Delete(GrapeView):
    """``DELETE /job/delete?tube&jid``: true if it waited; a job that is being consumed does not come back."""

    actions: ClassVar[Mapping[str, str]] = {"DELETE": "operate"}

    def delete(self, request: Request) -> Response:
        """Cancels it."""
        return Response(self.tube(request).cancel(job_id(request)) == "cancelled")


@extend_schema(exclude=True)
class Consume(GrapeView):
    """``GET /job/consume?tube&max=1``: takes due jobs.

    THIS GET CHANGES SOMETHING: each job that it answers is the caller's for its ttr. Grape has it so; it is the only
    one of its kind, and POST does the same. HEAD is refused: it would take jobs that nobody gets to see.
    """

    actions: ClassVar[Mapping[str, str]] = {"GET": "consume", "POST": "consume"}
    http_method_names = ["get", "post", "options"]  # noqa: RUF012

    def get(self, request: Request) -> Response:
        """Takes them."""
        user = str(request.user)[:200]
        return Response(holding.take(self.tube(request), how_many(request, CHUNK), f"grape-{user}"))

    post = get


@extend_schema(exclude=True)
class Finish(GrapeView):
    """``DELETE /job/finish?tube&jid``: true if somebody held it; it is done then."""

    actions: ClassVar[Mapping[str, str]] = {"DELETE": "consume"}

    def delete(self, request: Request) -> Response:
        """Acks the present lease."""
        return Response(holding.settle(self.tube(request), job_id(request), ack))


@extend_schema(exclude=True)
class Release(GrapeView):
    """``PUT /job/release?tube&jid&dtr=0``: true if somebody held it; it is due again after ``dtr``."""

    actions: ClassVar[Mapping[str, str]] = {"PUT": "consume"}

    def put(self, request: Request) -> Response:
        """Releases the present lease, without counting an attempt."""
        queue, ident, delay_ms = self.tube(request), job_id(request), dtr_ms(request)
        return Response(holding.settle(queue, ident, lambda job, _start, _run: release(job, delay_ms=delay_ms)))


@extend_schema(exclude=True)
class Bury(GrapeView):
    """``PUT /job/bury?tube&jid`` (and ``/job/failure``): true if somebody held it; it is in the morgue then."""

    actions: ClassVar[Mapping[str, str]] = {"PUT": "consume"}

    def put(self, request: Request) -> Response:
        """Buries it."""
        queue, ident = self.tube(request), job_id(request)
        return Response(holding.settle(queue, ident, lambda job, start, run: bury(job, start, run, reason="buried")))


@extend_schema(exclude=True)
class Peek(GrapeView):
    """``GET /job/peek?tube&max=1``: the jobs that were buried first. Nothing is taken or thrown away."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    def get(self, request: Request) -> Response:
        """Shows them."""
        queue = self.tube(request)
        found = queue.broker.inspector.page(queue.name, "morgue", limit=how_many(request, CHUNK))
        return Response(holding.buried(found.jobs))


@extend_schema(exclude=True)
class Kick(GrapeView):
    """``PUT /job/kick?tube&jid&dtr=0``: true if it was buried; it is due after ``dtr``, as if new."""

    actions: ClassVar[Mapping[str, str]] = {"PUT": "operate"}

    def put(self, request: Request) -> Response:
        """Brings it back."""
        queue, ident, delay_ms = self.tube(request), job_id(request), dtr_ms(request)
        return Response(queue.kick(ident, delay_ms=delay_ms) == "kicked")


@extend_schema(exclude=True)
class Discard(GrapeView):
    """``DELETE /job/discard?tube&jid``: true if it was buried; it is gone then."""

    actions: ClassVar[Mapping[str, str]] = {"DELETE": "operate"}

    def delete(self, request: Request) -> Response:
        """Throws it out of the morgue."""
        return Response(self.tube(request).discard(job_id(request)))


def body_of(request: Request) -> bytes:
    """The raw body, whatever its type says.

    Raises:
        Problem: it is larger than a body may be.
    """
    http: Any = request._request
    most = conf().api.max_body
    # Not request.data: a body without a length (chunked) would be none to it, and the data would be lost.
    try:
        raw: bytes = http.body if http._read_started else http.read(most + 1)
    except RawPostDataException:
        raise Problem(400, "malformed", "the body was read as a form before it came here; send it as raw bytes, not as "
                                        "multipart/form-data") from None  # fmt: skip
    if len(raw) > most:
        raise Problem(413, "too_large", f"the body has more than {most} bytes")
    return raw


urlpatterns: Final[list[URLPattern]] = [
    path("job/produce", Produce.as_view(), name="produce"),
    path("job/delete", Delete.as_view(), name="delete"),
    path("job/consume", Consume.as_view(), name="consume"),
    path("job/finish", Finish.as_view(), name="finish"),
    path("job/release", Release.as_view(), name="release"),
    path("job/bury", Bury.as_view(), name="bury"),
    path("job/failure", Bury.as_view(), name="failure"),
    path("job/peek", Peek.as_view(), name="peek"),
    path("job/kick", Kick.as_view(), name="kick"),
    path("job/discard", Discard.as_view(), name="discard"),
]
