"""Worker endpoints: list and show worker processes, and send them commands.

The running jobs are those a worker reported with its last heartbeat, at most 64. The ends of their leases are read from
Redis only where one worker is shown, since that costs another round trip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiResponse
from rest_framework.request import Request
from rest_framework.response import Response

from ... import connections
from ...access.problems import Problem, queue_not_found
from ...core.broker import Broker
from ...status import WorkerStatus
from ...status.reading import worker_status
from ..base import ApiView
from ..describe import operation
from ..serializers.problems import ProblemSerializer
from ..serializers.workers import (
    CommandSerializer,
    DumpSerializer,
    WatchedQueueSerializer,
    WorkerSerializer,
    WorkersSerializer,
)
from ..visibility import VisibleQueues

_LATER: Final = (
    "The response does not wait for the worker, which reads the command with its next heartbeat, by default within "
    "five seconds."
)


class Workers(ApiView):
    """Route ``workers``: list worker processes."""

    tag = "workers"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @operation("list_workers", "List the worker processes", returns=WorkersSerializer)
    def get(self, request: Request) -> Response:
        """Return all registered workers, including lost ones."""
        broker = connections.hurried_broker()
        now_ms, visible = broker.now_ms(), VisibleQueues(request)
        workers = [visible.worker(worker_status(heartbeat, now_ms)) for heartbeat in broker.workers()]
        return Response(WorkersSerializer.render({"workers": workers}))


class OneWorker(ApiView):
    """Route ``workers/{worker}``: show a worker process."""

    tag = "workers"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @operation("get_worker", "Show a worker with the leases of its jobs", returns=WorkerSerializer)
    def get(self, request: Request, worker: str) -> Response:
        """Return the worker, with the ends of its leases."""
        broker = connections.hurried_broker()
        now_ms = broker.now_ms()
        for heartbeat in broker.workers():
            if heartbeat["name"] == worker:
                status = VisibleQueues(request).worker(worker_status(heartbeat, now_ms))
                return Response(WorkerSerializer.render(status, lease_ends=lease_ends(broker, status)))
        raise unknown(worker)


class Dump(ApiView):
    """Route ``workers/{worker}/dump``: request the stacks of a worker, and read them."""

    tag = "workers"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view", "POST": "operate"}

    @operation(
        "dump_worker",
        "Request the stacks of a worker's threads",
        returns={202: CommandSerializer.of("dump")},
        text=f"They are logged, and stored for ten minutes. {_LATER}",
    )
    def post(self, request: Request, worker: str) -> Response:
        """Send the command."""
        return _send(worker, "dump")

    @operation(
        "get_dump",
        "Read the requested stacks of a worker",
        returns={
            200: DumpSerializer,
            404: OpenApiResponse(
                ProblemSerializer,
                description="not_found: none were requested, the worker has not read the command yet, or ten "
                "minutes have passed",
            ),
        },
    )
    def get(self, request: Request, worker: str) -> Response:
        """Return the latest stacks."""
        dump = connections.hurried_broker().dump_of(worker)
        if dump is None:
            raise Problem(
                404,
                "not_found",
                f"there are no stacks of worker {worker[:300]!r}; POST to this address to request"
                " them, then repeat this after its next heartbeat",
            )
        taken_ms, stacks = dump
        return Response(DumpSerializer.render({"worker": worker, "taken": taken_ms, "stacks": stacks}))


def unknown(worker: str) -> Problem:
    """Return a 404 problem: no such worker is registered."""
    return Problem(404, "not_found", f"there is no worker {worker[:300]!r}; GET v1/workers lists the workers")


def lease_ends(broker: Broker, worker: WorkerStatus) -> dict[tuple[str, str], int]:
    """Return (queue, id) → end of the lease, Unix ms, for the jobs that the worker ran and still holds."""
    queues = {queue.name: queue for queue in broker.queues()}
    running = [(queues[job.queue], job.id) for job in worker.jobs if job.queue in queues]
    leases = broker.inspector.leases(running)
    return {
        (queue.name, ident): lease.ends_ms
        for (queue, ident), lease in zip(running, leases, strict=True)
        if lease and lease.worker == worker.name
    }


def _send(worker: str, command: str, queue: str = "") -> Response:
    """Send a command to a worker; 202 once it is queued."""
    if not connections.hurried_broker().tell_worker(worker, command, queue):
        raise unknown(worker)
    return Response(CommandSerializer.render({"worker": worker, "command": command}), status=202)


def _command(command: str, summary: str, text: str) -> URLPattern:
    """Return the URL pattern of a command that ends the work of a worker's program."""

    class Command(ApiView):
        """Command to a worker."""

        tag = "workers"
        actions: ClassVar[Mapping[str, str]] = {"POST": "admin"}

        @operation(f"{command}_worker", summary, returns={202: CommandSerializer.of(command)}, text=f"{text} {_LATER}")
        def post(self, request: Request, worker: str) -> Response:
            """Send the command."""
            return _send(worker, command)

    return _pattern(command, Command)


def _choice(command: str, summary: str, text: str) -> URLPattern:
    """Return the URL pattern of a command that changes which queues a worker's program serves."""

    class Choice(ApiView):
        """Command to a worker about a queue."""

        tag = "workers"
        actions: ClassVar[Mapping[str, str]] = {"POST": "operate"}

        def named_queues(self, request: Request) -> tuple[str, ...]:
            """Return the queue in the request."""
            return (self.read(request, WatchedQueueSerializer)["queue"],)

        @operation(
            f"{command}_queue",
            summary,
            reads=WatchedQueueSerializer,
            returns={202: CommandSerializer.of(command)},
            text=f"{text} {_LATER}",
        )
        def post(self, request: Request, worker: str) -> Response:
            """Send the command for the queue in the request."""
            (queue,) = self.named_queues(request)
            if connections.hurried_broker().known_queue(queue) is None:
                raise queue_not_found(queue)
            return _send(worker, command, queue)

    return _pattern(command, Choice)


def _pattern(command: str, view: type[ApiView]) -> URLPattern:
    pattern: URLPattern = path(f"workers/<path:worker>/{command}", view.as_view(), name=f"worker_{command}")
    return pattern


urlpatterns: list[URLPattern] = [
    path("workers", Workers.as_view(), name="workers"),
    # Worker names may contain slashes (host name, project settings), so the verbs come first.
    _command(
        "stop",
        "Stop a worker",
        "Like SIGTERM to its program: all its processes reserve nothing more, finish their jobs within the grace "
        "period, and end.",
    ),
    _command("drain", "Let a worker finish its jobs and reserve no more", "Like SIGUSR1 to its program."),
    _pattern("dump", Dump),
    _choice(
        "watch",
        "Let a running worker serve one more queue",
        "All processes of its program reserve from the queue, also those that it starts later. A restart of the "
        "program ends this.",
    ),
    _choice(
        "ignore",
        "Let a running worker reserve no more from a queue",
        "All processes of its program stop reserving from the queue and finish the jobs that they hold. A restart of "
        "the program ends this.",
    ),
    path("workers/<path:worker>", OneWorker.as_view(), name="worker"),
]
