"""Queues: which there are and what lies in them; make, limit, pause, reshard and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, PolymorphicProxySerializer
from rest_framework.response import Response

from ... import connections
from ...core.queue import Queue
from ...outbox.retention import forget_queue
from ...settings.conf import conf
from .. import brokers, policy
from ..base import ApiView
from ..describe import extend_schema
from ..permissions import may_use
from ..problems import Problem, queue_not_found
from ..queueforms import (
    MOST_SHARDS_SHOWN,
    DeleteQuery,
    DirectionForm,
    LimitsForm,
    ListQuery,
    NewQueueForm,
    QueueDetailSerializer,
    QueueNamesSerializer,
    QueueSerializer,
    QueuesSerializer,
    ReshardForm,
)
from ..shapes import ProblemSerializer

if TYPE_CHECKING:
    from rest_framework.request import Request

_TAGS: Final = ["queues"]
_NOT_FOUND: Final = OpenApiResponse(ProblemSerializer, description="queue_not_found")
_MAIL: Final = {
    "name": "mail",
    "kind": "python",
    "shards": 4,
    "epoch": 0,
    "draining": False,
    "paused": "",
    "configured": False,
    "limits": {"max_length": 100_000, "morgue_max": None, "morgue_ttl": 604_800.0, "priorities": "strict"},
}


class Queues(ApiView):
    """All queues."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view", "POST": "admin"}

    def named_queues(self, request: Request) -> tuple[str, ...]:
        """Return the name of a new queue."""
        return (self.read(request, NewQueueForm)["name"],) if request.method == "POST" else ()

    @extend_schema(
        operation_id="list_queues",
        summary="List the queues, with what lies in them",
        tags=_TAGS,
        description="Two round trips to Redis, however many queues there are; with `names_only` one. Queues that the "
        "project's own rule does not let the user see are left out.",
        parameters=[ListQuery],
        responses={200: PolymorphicProxySerializer("QueueList", [QueuesSerializer, QueueNamesSerializer], None)},
    )
    def get(self, request: Request) -> Response:
        """Names, or everything."""
        asked = self.read_query(request, ListQuery)
        broker = brokers.broker()
        queues = [queue for queue in broker.queues() if may_use(request, "view", queue.name)]
        if asked["names_only"]:
            return Response({"names": [queue.name for queue in queues]})
        counts = broker.inspector.all_counts(queues=queues)
        return Response({"queues": [policy.with_counts(queue, one) for queue, one in zip(queues, counts, strict=True)]})

    @extend_schema(
        operation_id="create_queue",
        summary="Make a queue",
        tags=_TAGS,
        request=NewQueueForm,
        description="A queue that is there already and is what was asked for is answered with 200, so the request may "
        "be sent again. Of what is not given the settings decide, else there is one shard and no limit.",
        responses={
            201: OpenApiResponse(QueueSerializer, description="It was made."),
            200: OpenApiResponse(QueueSerializer, description="It was there."),
            409: OpenApiResponse(
                ProblemSerializer,
                description="conflict: it is there with another kind, another "
                "number of shards or other limits; set_in_settings: the settings say otherwise",
            ),
        },
        examples=[
            OpenApiExample(
                "for other languages",
                request_only=True,
                value={"name": "images", "kind": "pull", "shards": 4, "max_length": 100_000},
            )
        ],
    )
    def post(self, request: Request) -> Response:
        """Make it, or say that it is there."""
        asked = self.read(request, NewQueueForm)
        name = asked.pop("name")
        queue, made = policy.make(brokers.broker(), name, asked)
        return Response(policy.described(queue), status=201 if made else 200)


class OneQueue(ApiView):
    """One queue."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view", "PATCH": "operate", "DELETE": "admin"}

    @extend_schema(
        operation_id="get_queue",
        summary="Show a queue, also shard by shard",
        tags=_TAGS,
        description=f"Of a queue with more than {MOST_SHARDS_SHOWN} shards the newest {MOST_SHARDS_SHOWN} are shown "
        "one by one; the sums are those of all.",
        responses={200: QueueDetailSerializer, 404: _NOT_FOUND},
    )
    def get(self, request: Request, queue: str) -> Response:
        """Everything about it."""
        return Response(policy.in_detail(live(queue), MOST_SHARDS_SHOWN))

    @extend_schema(
        operation_id="limit_queue",
        summary="Change the limits of a queue",
        tags=_TAGS,
        request=LimitsForm,
        description="What is not given stays; null takes a limit away. The limits of a queue that the settings name "
        "are changed there.",
        responses={
            200: QueueSerializer,
            404: _NOT_FOUND,
            409: OpenApiResponse(ProblemSerializer, description="set_in_settings"),
        },
        examples=[
            OpenApiExample(
                "at most a million jobs, and nothing for ever",
                request_only=True,
                value={"max_length": 1_000_000, "morgue_ttl": 604_800},
            ),
            OpenApiExample("as it is now", response_only=True, value=_MAIL),
        ],
    )
    def patch(self, request: Request, queue: str) -> Response:
        """New limits."""
        asked = self.read(request, LimitsForm)
        broker, name = brokers.broker(), live(queue).name
        if asked and connections.is_configured(name):
            raise Problem(
                409,
                "set_in_settings",
                f"the limits of queue {name!r} are set in DELAYQ['QUEUES'] of the "
                "project's settings; change them there",
            )
        broker.limit(name, **policy.limits_of(asked))
        return Response(policy.described(live(name)))

    @extend_schema(
        operation_id="delete_queue",
        summary="Delete a queue",
        tags=_TAGS,
        parameters=[DeleteQuery],
        description="Whoever puts a job into it later brings it back. With `force` its jobs and its morgue are lost; "
        "workers that run one of its jobs hear that they lost it.",
        responses={
            204: OpenApiResponse(description="It is gone."),
            404: _NOT_FOUND,
            409: OpenApiResponse(ProblemSerializer, description="queue_not_empty"),
        },
    )
    def delete(self, request: Request, queue: str) -> Response:
        """Gone, if it is empty or ``force`` says so."""
        force = self.read_query(request, DeleteQuery)["force"]
        name = live(queue).name
        if not brokers.broker().delete_queue(name, force=force):
            raise queue_not_found(name)
        if force:  # what waits in the database would bring it back
            forget_queue(conf().outbox.databases, name)
        return Response(status=204)


class Pause(ApiView):
    """Stop a queue."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "operate"}

    @extend_schema(
        operation_id="pause_queue",
        summary="Pause a queue for new jobs, for workers, or for both",
        tags=_TAGS,
        description="`in`: producing is refused (503 queue_paused); `out`: nothing is handed out; `both`. What runs "
        "goes on and is settled as usual.",
        request=DirectionForm,
        responses={200: QueueSerializer, 404: _NOT_FOUND},
        examples=[OpenApiExample("for workers", request_only=True, value={"direction": "out"})],
    )
    def post(self, request: Request, queue: str) -> Response:
        """Paused from now on."""
        return order(self, request, queue, "pause")


class Resume(ApiView):
    """Let a queue go on."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "operate"}

    @extend_schema(
        operation_id="resume_queue",
        summary="End a pause",
        tags=_TAGS,
        request=DirectionForm,
        responses={200: QueueSerializer, 404: _NOT_FOUND},
        examples=[OpenApiExample("altogether", request_only=True, value={"direction": "both"})],
    )
    def post(self, request: Request, queue: str) -> Response:
        """It goes on."""
        return order(self, request, queue, "resume")


class Reshard(ApiView):
    """Another number of shards."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "admin"}

    @extend_schema(
        operation_id="reshard_queue",
        summary="Change the number of shards",
        tags=_TAGS,
        request=ReshardForm,
        description="Everybody goes on working meanwhile. New jobs go to the new shards when this answers; what lies "
        "in the old ones is worked off there, and `draining` is true until they are empty. A request "
        "that was cut off may be sent again.",
        responses={200: QueueSerializer, 404: _NOT_FOUND},
        examples=[OpenApiExample("eight", request_only=True, value={"shards": 8})],
    )
    def post(self, request: Request, queue: str) -> Response:
        """The new layout."""
        asked = self.read(request, ReshardForm)
        name = live(queue).name
        brokers.broker().reshard(name, asked["shards"])
        return Response(policy.described(live(name)))


def order(view: ApiView, request: Request, queue: str, verb: str) -> Response:
    """Pause or resume."""
    direction = view.read(request, DirectionForm)["direction"]
    name = live(queue).name
    getattr(brokers.broker(), verb)(name, direction)
    return Response(policy.described(live(name)))


def live(name: str) -> Queue:
    """The queue as the registry has it now, whoever changed it.

    Raises:
        Problem: there is none.
    """
    found = brokers.broker().known_queue(name)
    if found is None:
        raise queue_not_found(name[:64])
    return found


urlpatterns: list[URLPattern] = [
    path("queues", Queues.as_view(), name="queues"),
    path("queues/<str:queue>", OneQueue.as_view(), name="queue"),
    path("queues/<str:queue>/pause", Pause.as_view(), name="pause"),
    path("queues/<str:queue>/resume", Resume.as_view(), name="resume"),
    path("queues/<str:queue>/reshard", Reshard.as_view(), name="reshard"),
]
