"""Queue endpoints: list, show, create, limit, pause, reshard and delete queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiResponse
from rest_framework.request import Request
from rest_framework.response import Response

from ... import connections
from ...access.permissions import may_use
from ...access.problems import Problem, queue_not_found
from ...core.figures import read_depths
from ...core.queue import Queue
from ...outbox.retention import forget_queue
from ...settings.conf import conf
from .. import policy
from ..base import ApiView
from ..describe import operation
from ..policy import MOST_SHARDS_SHOWN, queue_view
from ..serializers.base import one_of, with_example
from ..serializers.problems import ProblemSerializer
from ..serializers.queues import (
    DeleteQuery,
    DepthQuery,
    DepthSerializer,
    DirectionSerializer,
    LimitsSerializer,
    PauseSerializer,
    QueueDetailSerializer,
    QueueNamesSerializer,
    QueueSerializer,
    QueuesQuery,
    QueuesSerializer,
    ReshardSerializer,
)


class Queues(ApiView):
    """Route ``queues``: list queues, and create one."""

    tag = "queues"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view", "POST": "admin"}

    def named_queues(self, request: Request) -> tuple[str, ...]:
        """Return the name of a new queue."""
        return (self.read(request, QueueSerializer)["name"],) if request.method == "POST" else ()

    @operation(
        "list_queues",
        "List the queues with their counts",
        returns=one_of("QueueList", QueuesSerializer, QueueNamesSerializer),
        query=QueuesQuery,
        text="Two round trips to Redis for any number of queues; with `names_only` one. Queues that the "
        "project's `allow` rule hides from the user are left out.",
    )
    def get(self, request: Request) -> Response:
        """Return the names only, or the queues with their counts."""
        query = self.read_query(request, QueuesQuery)
        broker = connections.hurried_broker()
        queues = [queue for queue in broker.reachable_queues() if may_use(request, "view", queue.name)]
        if query["names_only"]:
            return Response(QueueNamesSerializer.render({"names": [queue.name for queue in queues]}))
        counts = broker.inspector.all_counts(queues=queues, partial=True)
        return Response(QueuesSerializer.render({"queues": list(map(queue_view, queues, counts))}))

    @operation(
        "create_queue",
        "Create a queue",
        reads=QueueSerializer,
        returns={
            201: OpenApiResponse(QueueSerializer, description="The queue was created."),
            200: OpenApiResponse(QueueSerializer, description="The queue existed."),
            409: OpenApiResponse(
                ProblemSerializer,
                description="conflict: it exists with another kind, another "
                "number of shards or other limits; set_in_settings: the settings have other values",
            ),
        },
        text="If the queue exists with the requested properties, the response is 200, so the request may be "
        "repeated. Missing members are taken from the settings; else there is one shard and no limit.",
    )
    def post(self, request: Request) -> Response:
        """Create the queue unless it exists."""
        properties = self.read(request, QueueSerializer)
        name = properties.pop("name")
        queue, made = policy.make(connections.hurried_broker(), name, properties)
        return Response(QueueSerializer.render(queue_view(queue)), status=201 if made else 200)


class OneQueue(ApiView):
    """Route ``queues/{queue}``: show, limit or delete a queue."""

    tag = "queues"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view", "PATCH": "operate", "DELETE": "admin"}

    @operation(
        "get_queue",
        "Show a queue, also shard by shard",
        returns=QueueDetailSerializer,
        text=f"Of a queue with more than {MOST_SHARDS_SHOWN} shards only the newest {MOST_SHARDS_SHOWN} are "
        "listed; the totals include all.",
    )
    def get(self, request: Request, queue: str) -> Response:
        """Return the queue with all details."""
        opened = live(queue)
        (counts,) = connections.hurried_broker().inspector.all_counts(queues=[opened], by_shard=True, partial=True)
        return Response(QueueDetailSerializer.render(queue_view(opened, counts)))

    @operation(
        "limit_queue",
        "Change the limits of a queue",
        reads=LimitsSerializer,
        returns={200: QueueSerializer, 409: OpenApiResponse(ProblemSerializer, description="set_in_settings")},
        text="A missing member leaves its limit unchanged; null removes it. The limits of a queue that the "
        "settings name are changed there.",
    )
    def patch(self, request: Request, queue: str) -> Response:
        """Change the limits."""
        limits = self.read(request, LimitsSerializer)
        broker, name = connections.hurried_broker(), live(queue).name
        if limits and connections.is_configured(name):
            raise Problem(
                409,
                "set_in_settings",
                f"the limits of queue {name!r} are set in DELAYQ['QUEUES'] of the "
                "project's settings; change them there",
            )
        broker.limit(name, **limits)
        return Response(QueueSerializer.render(queue_view(live(name))))

    @operation(
        "delete_queue",
        "Delete a queue",
        returns={
            204: OpenApiResponse(description="The queue was deleted."),
            409: OpenApiResponse(ProblemSerializer, description="queue_not_empty"),
        },
        query=DeleteQuery,
        text="Scheduling into it later re-creates it. With `force` its jobs and its morgue are lost, and "
        "workers lose the leases of its running jobs.",
    )
    def delete(self, request: Request, queue: str) -> Response:
        """Delete the queue if it is empty or ``force`` is true."""
        force = self.read_query(request, DeleteQuery)["force"]
        name = live(queue).name
        if not connections.hurried_broker().delete_queue(name, force=force):
            raise queue_not_found(name)
        if force:  # outbox rows would re-create it
            forget_queue(conf().outbox.databases, name)
        return Response(status=204)


class Depth(ApiView):
    """Route ``queues/{queue}/depth``: the depth of a queue in each of the last minutes."""

    tag = "figures"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @operation(
        "get_depth",
        "Depth of a queue over time",
        returns=DepthSerializer,
        query=DepthQuery,
        text="One point for each minute, the oldest first, from samples that a dispatcher keeps in Redis for a day. "
        "Minutes without a running dispatcher have no point.",
    )
    def get(self, request: Request, queue: str) -> Response:
        """Return the points of the queue."""
        minutes = self.read_query(request, DepthQuery)["minutes"]
        broker, name = connections.hurried_broker(), live(queue).name
        points = read_depths(broker, [name], broker.now_ms(), minutes)[name]
        return Response(DepthSerializer.render({"points": points}))


class Pause(ApiView):
    """Route ``queues/{queue}/pause``: pause a queue."""

    tag = "queues"
    actions: ClassVar[Mapping[str, str]] = {"POST": "operate"}

    @operation(
        "pause_queue",
        "Pause a queue for new jobs, for workers, or for both",
        reads=PauseSerializer,
        returns=with_example(QueueSerializer, {**QueueSerializer.example, "paused": "out"}),
        text="`in`: new jobs are refused (503 queue_paused); `out`: no jobs are reserved; `both`. Running jobs "
        "continue and are settled as usual. With `seconds` the pause ends by itself.",
    )
    def post(self, request: Request, queue: str) -> Response:
        """Pause the queue."""
        data, name = self.read(request, PauseSerializer), live(queue).name
        connections.hurried_broker().pause(name, data["direction"], seconds=data.get("seconds"))
        return Response(QueueSerializer.render(queue_view(live(name))))


class Resume(ApiView):
    """Route ``queues/{queue}/resume``: end the pause of a queue."""

    tag = "queues"
    actions: ClassVar[Mapping[str, str]] = {"POST": "operate"}

    @operation("resume_queue", "End a pause", reads=DirectionSerializer, returns=QueueSerializer)
    def post(self, request: Request, queue: str) -> Response:
        """Resume the queue."""
        direction, name = self.read(request, DirectionSerializer)["direction"], live(queue).name
        connections.hurried_broker().resume(name, direction)
        return Response(QueueSerializer.render(queue_view(live(name))))


class Reshard(ApiView):
    """Route ``queues/{queue}/reshard``: change the number of shards of a queue."""

    tag = "queues"
    actions: ClassVar[Mapping[str, str]] = {"POST": "admin"}

    @operation(
        "reshard_queue",
        "Change the number of shards",
        reads=ReshardSerializer,
        returns=with_example(QueueSerializer, {**QueueSerializer.example, "shards": 8, "epoch": 1, "draining": True}),
        text="Producers and workers continue. After the response new jobs go to the new shards; the jobs of "
        "the old ones are run there, and `draining` is true until these are empty. An interrupted "
        "request may be repeated.",
    )
    def post(self, request: Request, queue: str) -> Response:
        """Change the number of shards and return the new layout."""
        shards = self.read(request, ReshardSerializer)["shards"]
        name = live(queue).name
        connections.hurried_broker().reshard(name, shards)
        return Response(QueueSerializer.render(queue_view(live(name))))


def live(name: str) -> Queue:
    """Return the queue as currently registered, including changes by other processes.

    Raises:
        Problem: there is no such queue.
    """
    registered = connections.hurried_broker().known_queue(name)
    if registered is None:
        raise queue_not_found(name[:64])
    return registered


urlpatterns: list[URLPattern] = [
    path("queues", Queues.as_view(), name="queues"),
    path("queues/<str:queue>", OneQueue.as_view(), name="queue"),
    path("queues/<str:queue>/depth", Depth.as_view(), name="depth"),
    path("queues/<str:queue>/pause", Pause.as_view(), name="pause"),
    path("queues/<str:queue>/resume", Resume.as_view(), name="resume"),
    path("queues/<str:queue>/reshard", Reshard.as_view(), name="reshard"),
]
