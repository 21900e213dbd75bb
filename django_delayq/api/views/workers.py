"""Worker endpoints: list and show worker processes, and send them commands.

The running jobs are those a worker reported with its last heartbeat, at most 64. The ends of their leases are read from
Redis only where one worker is shown, since that costs another round trip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiResponse
from rest_framework.response import Response

from ...access.problems import Problem
from ...status import WorkerStatus
from ...status.taking import worker_status
from .. import brokers
from ..base import ApiView
from ..describe import extend_schema
from ..serializers.problems import ProblemSerializer
from ..serializers.workers import CommandSerializer, DumpSerializer, WorkerSerializer, WorkersSerializer
from ..visibility import VisibleQueues

if TYPE_CHECKING:
    from rest_framework.request import Request

    from ...core.broker import Broker

_TAGS: Final = ["workers"]
_NOT_FOUND: Final = OpenApiResponse(ProblemSerializer, description="not_found: no such worker is registered")
_LATER: Final = (
    "The answer is there at once; the worker hears of it with its next heartbeat, five seconds unless the settings say "
    "otherwise."
)


class Workers(ApiView):
    """``workers``."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @extend_schema(
        operation_id="list_workers", summary="List the worker processes", tags=_TAGS, responses={200: WorkersSerializer}
    )
    def get(self, request: Request) -> Response:
        """Return all registered workers, including lost ones."""
        broker = brokers.broker()
        now_ms, visible = broker.now_ms(), VisibleQueues(request)
        found = [visible.worker(worker_status(heartbeat, now_ms)) for heartbeat in broker.workers()]
        return Response(WorkersSerializer.render({"workers": found}))


class OneWorker(ApiView):
    """``workers/{worker}``."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @extend_schema(
        operation_id="get_worker",
        summary="Show a worker, and until when it holds what it runs",
        tags=_TAGS,
        responses={200: WorkerSerializer, 404: _NOT_FOUND},
    )
    def get(self, request: Request, worker: str) -> Response:
        """Return the worker, with the ends of its leases."""
        broker = brokers.broker()
        now_ms = broker.now_ms()
        for heartbeat in broker.workers():
            if heartbeat["name"] == worker:
                status = VisibleQueues(request).worker(worker_status(heartbeat, now_ms))
                return Response(WorkerSerializer.render(status, lease_ends=lease_ends(broker, status)))
        raise unknown(worker)


class _Command(ApiView):
    """Base of the views that send a worker a command."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "admin"}
    word: ClassVar[str] = ""

    def send(self, worker: str) -> Response:
        """Send the command; 202 once it is queued."""
        if not brokers.broker().tell_worker(worker, self.word):
            raise unknown(worker)
        return Response(CommandSerializer.render({"worker": worker, "told": self.word}), status=202)


class Stop(_Command):
    """``workers/{worker}/stop``."""

    word = "stop"

    @extend_schema(
        operation_id="stop_worker",
        summary="Stop a worker",
        tags=_TAGS,
        request=None,
        description="As SIGTERM to its program: all its processes take nothing new, finish what they run "
        f"within their grace period, and end. {_LATER}",
        responses={202: CommandSerializer.of("stop"), 404: _NOT_FOUND},
    )
    def post(self, request: Request, worker: str) -> Response:
        """Send the command."""
        return self.send(worker)


class Drain(_Command):
    """``workers/{worker}/drain``."""

    word = "drain"

    @extend_schema(
        operation_id="drain_worker",
        summary="Let a worker finish what it has, and take nothing new",
        tags=_TAGS,
        request=None,
        description=f"As SIGUSR1 to its program. {_LATER}",
        responses={202: CommandSerializer.of("drain"), 404: _NOT_FOUND},
    )
    def post(self, request: Request, worker: str) -> Response:
        """Send the command."""
        return self.send(worker)


class Dump(_Command):
    """``workers/{worker}/dump``."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view", "POST": "operate"}
    word = "dump"

    @extend_schema(
        operation_id="dump_worker",
        summary="Ask a worker for the stacks of its threads",
        tags=_TAGS,
        request=None,
        description=f"They are logged, and kept for ten minutes. {_LATER}",
        responses={202: CommandSerializer.of("dump"), 404: _NOT_FOUND},
    )
    def post(self, request: Request, worker: str) -> Response:
        """Send the command."""
        return self.send(worker)

    @extend_schema(
        operation_id="get_dump",
        summary="Read the stacks that a worker was asked for",
        tags=_TAGS,
        responses={
            200: DumpSerializer,
            404: OpenApiResponse(
                ProblemSerializer,
                description="not_found: it was not asked, has not heard of it yet, or it is ten minutes ago",
            ),
        },
    )
    def get(self, request: Request, worker: str) -> Response:
        """Return the latest stacks."""
        found = brokers.broker().dump_of(worker)
        if found is None:
            raise Problem(
                404,
                "not_found",
                f"there are no stacks of worker {worker[:300]!r}; POST to this address asks"
                " for them, and they are there after its next heartbeat",
            )
        taken_ms, stacks = found
        return Response(DumpSerializer.render({"worker": worker, "taken": taken_ms, "stacks": stacks}))


def unknown(worker: str) -> Problem:
    """Return a 404 problem: no such worker is registered."""
    return Problem(404, "not_found", f"there is no worker {worker[:300]!r}; GET v1/workers lists those that there are")


def lease_ends(broker: Broker, worker: WorkerStatus) -> dict[tuple[str, str], int]:
    """Return (queue, id) → end of the lease, Unix ms, for the jobs that the worker ran and still holds."""
    queues = {queue.name: queue for queue in broker.queues()}
    wanted = [(queues[job.queue], job.id) for job in worker.jobs if job.queue in queues]
    leases = broker.inspector.leases(wanted)
    return {
        (queue.name, ident): lease.ends_ms
        for (queue, ident), lease in zip(wanted, leases, strict=True)
        if lease and lease.worker == worker.name
    }


urlpatterns: list[URLPattern] = [
    path("workers", Workers.as_view(), name="workers"),
    # Worker names may contain slashes (host name, project settings), so the verbs come first.
    path("workers/<path:worker>/stop", Stop.as_view(), name="worker_stop"),
    path("workers/<path:worker>/drain", Drain.as_view(), name="worker_drain"),
    path("workers/<path:worker>/dump", Dump.as_view(), name="worker_dump"),
    path("workers/<path:worker>", OneWorker.as_view(), name="worker"),
]
