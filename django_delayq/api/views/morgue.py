"""Morgue endpoints: jobs whose attempts are used up or that were buried early. List, restore and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiExample
from rest_framework.response import Response

from ...core import bulk
from .. import verbs
from ..base import ApiView
from ..describe import extend_schema
from ..idempotency import calls
from ..listing import GRAVES_PARAMETERS, MORGUE, MORGUE_PARAMETERS, GravesQuery, ListingQuery, MorgueQuery, graves_page
from ..shapes import JobsPageSerializer, ProblemSerializer
from .asked import Discard, Kick
from .jobs import ident_of
from .moving import each, either, queue_verb

if TYPE_CHECKING:
    from rest_framework.request import Request

TAG: Final = "morgue"


class Morgue(ApiView):
    """``queues/{queue}/morgue``."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @extend_schema(
        operation_id="list_morgue",
        summary="The morgue of a queue, page by page",
        tags=[TAG],
        parameters=MORGUE_PARAMETERS,
        responses={200: JobsPageSerializer},
    )
    def get(self, request: Request, queue: str) -> Response:
        """Return records in the order in which they were buried, or by id. An id may have several."""
        return Response(ListingQuery.of(self.read_query(request, MorgueQuery), *MORGUE).answer(self.queue(queue)))


class Graves(ApiView):
    """``queues/{queue}/morgue/{id}``."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @extend_schema(
        operation_id="get_graves",
        summary="All records of an id in the morgue",
        tags=[TAG],
        parameters=GRAVES_PARAMETERS,
        responses={200: JobsPageSerializer, 404: ProblemSerializer},
    )
    def get(self, request: Request, queue: str, id: str) -> Response:
        """Return the records of an id, page by page, up to 250 each, the last buried first.

        A page ends with the record that brings it to a MiB, so it may have fewer than `limit`. Arguments are masked,
        and left out (`cut`) if they are larger than both a MiB and `MAX_ARGS_BYTES` of the settings.
        """
        query = self.read_query(request, GravesQuery)
        return Response(graves_page(self.queue(queue), ident_of(id), query))


class KickView(ApiView):
    """``queues/{queue}/kick``."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "operate"}

    @extend_schema(
        operation_id="kick_jobs",
        summary="Bring jobs back from the morgue",
        tags=[TAG],
        request=Kick,
        responses={200: either("Kicked")},
        examples=[
            OpenApiExample("some", {"ids": ["order-17"], "delay": 60}, request_only=True),
            OpenApiExample("a certain record", {"jobs": [{"id": "order-17", "key": "7f" * 16}]}, request_only=True),
            OpenApiExample("all, ten in a second", {"all": True, "per_second": 10}, request_only=True),
        ],
    )
    def post(self, request: Request, queue: str) -> Response:
        """Bring jobs back and reset their failures. `kicked`, `live` (a live job has the same id) or `gone`."""
        asked, live = self.read(request, Kick), self.queue(queue)
        delay_ms, replace = asked.get("delay", 0), asked.get("replace", False)
        if "all" in asked:
            pace = asked.get("per_second")
            return Response(
                verbs.swept(
                    lambda progress: bulk.kick_all(
                        live, delay_ms=delay_ms, per_second=pace, replace=replace, progress=progress
                    )
                )
            )
        wanted = _wanted(asked)
        outcomes = [
            live.kick(ident, key=key, delay_ms=delay_ms, replace=replace, request=call) or verbs.GONE
            for (ident, key), call in zip(wanted, calls(self._kept, len(wanted)), strict=True)
        ]
        return Response(each([ident for ident, _ in wanted], outcomes))


class DiscardView(ApiView):
    """``queues/{queue}/discard``."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "operate"}

    @extend_schema(
        operation_id="discard_jobs",
        summary="Throw jobs out of the morgue",
        tags=[TAG],
        request=Discard,
        responses={200: either("Discarded")},
        examples=[
            OpenApiExample("some", {"ids": ["order-17"]}, request_only=True),
            OpenApiExample("what is older than a week", {"all": True, "older_than": 604800}, request_only=True),
        ],
    )
    def post(self, request: Request, queue: str) -> Response:
        """Delete records. `discarded`, or `gone`: there was no such record."""
        asked, live = self.read(request, Discard), self.queue(queue)
        if "all" in asked:
            age = asked.get("older_than")
            before = None if age is None else live.broker.now_ms() - age
            return Response(verbs.swept(lambda progress: bulk.discard_all(live, before_ms=before, progress=progress)))
        wanted = _wanted(asked)
        outcomes = [
            "discarded" if live.discard(ident, key=key, request=call) else verbs.GONE
            for (ident, key), call in zip(wanted, calls(self._kept, len(wanted)), strict=True)
        ]
        return Response(each([ident for ident, _ in wanted], outcomes))


def _wanted(asked: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    """Return ``(id, key)`` pairs; a pair without a key means the record that was buried last."""
    graves: list[tuple[str, bytes | None]] | None = asked.get("jobs")
    return [(ident, None) for ident in asked["ids"]] if graves is None else graves


urlpatterns: list[URLPattern] = [
    path("queues/<str:queue>/morgue", Morgue.as_view(), name="morgue"),
    path("queues/<str:queue>/morgue/<delayq_any:id>", Graves.as_view(), name="graves"),
    queue_verb("kick", KickView),
    queue_verb("discard", DiscardView),
]
