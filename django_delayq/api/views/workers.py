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

from ...access.problems import Problem, queue_not_found
from ...core.broker import Broker
from ...status import WorkerStatus
from ...status.reading import worker_status
from .. import brokers
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
        broker = brokers.broker()
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
        broker = brokers.broker()
        now_ms = broker.now_ms()
        for heartbeat in broker.workers():
            if heartbeat["name"] == worker:
                status = VisibleQueues(request).worker(worker_status(heartbeat, now_ms))
                return Response(WorkerSerializer.render(status, lease_ends=lease_ends(broker, status)))
        raise unknown(worker)


class _Command(ApiView):
    """Base of the views that send a worker a command."""

    tag = "workers"
    actions: ClassVar[Mapping[str, str]] = {"POST": "admin"}
    word: ClassVar[str] = ""

    def send(self, worker: str, queue: str = "") -> Response:
        """Send the command; 202 once it is queued."""
        if not brokers.broker().tell_worker(worker, self.word, queue):
            raise unknown(worker)
        return Response(CommandSerializer.render({"worker": worker, "command": self.word}), status=202)


class Stop(_Command):
    """Route ``workers/{worker}/stop``: stop the program of a worker."""

    word = "stop"

    @operation(
        "stop_worker",
        "Stop a worker",
        returns={202: CommandSerializer.of("stop")},
        text="Like SIGTERM to its program: all its processes reserve nothing more, finish their jobs "
        f"within the grace period, and end. {_LATER}",
    )
    def post(self, request: Request, worker: str) -> Response:
        """Send the command."""
        return self.send(worker)


class Drain(_Command):
    """Route ``workers/{worker}/drain``: let a worker's program finish its jobs and reserve no more."""

    word = "drain"

    @operation(
        "drain_worker",
        "Let a worker finish its jobs and reserve no more",
        returns={202: CommandSerializer.of("drain")},
        text=f"Like SIGUSR1 to its program. {_LATER}",
    )
    def post(self, request: Request, worker: str) -> Response:
        """Send the command."""
        return self.send(worker)


class Dump(_Command):
    """Route ``workers/{worker}/dump``: request the stacks of a worker, and read them."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view", "POST": "operate"}
    word = "dump"

    @operation(
        "dump_worker",
        "Request the stacks of a worker's threads",
        returns={202: CommandSerializer.of("dump")},
        text=f"They are logged, and stored for ten minutes. {_LATER}",
    )
    def post(self, request: Request, worker: str) -> Response:
        """Send the command."""
        return self.send(worker)

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
        dump = brokers.broker().dump_of(worker)
        if dump is None:
            raise Problem(
                404,
                "not_found",
                f"there are no stacks of worker {worker[:300]!r}; POST to this address to request"
                " them, then repeat this after its next heartbeat",
            )
        taken_ms, stacks = dump
        return Response(DumpSerializer.render({"worker": worker, "taken": taken_ms, "stacks": stacks}))


class _Choice(_Command):
    """Base of the views that change which queues a worker serves."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "operate"}

    def named_queues(self, request: Request) -> tuple[str, ...]:
        """Return the queue in the request."""
        return (self.read(request, WatchedQueueSerializer)["queue"],)

    def choose(self, request: Request, worker: str) -> Response:
        """Send the command for the queue in the request."""
        queue = self.read(request, WatchedQueueSerializer)["queue"]
        if brokers.broker().known_queue(queue) is None:
            raise queue_not_found(queue)
        return self.send(worker, queue)


class Watch(_Choice):
    """Route ``workers/{worker}/watch``: let a worker's program serve a queue, too."""

    word = "watch"

    @operation(
        "watch_queue",
        "Let a running worker serve one more queue",
        reads=WatchedQueueSerializer,
        returns={202: CommandSerializer.of("watch")},
        text="All processes of its program reserve from the queue, also those that it starts later. A restart of the "
        f"program ends this. {_LATER}",
    )
    def post(self, request: Request, worker: str) -> Response:
        """Send the command."""
        return self.choose(request, worker)


class Ignore(_Choice):
    """Route ``workers/{worker}/ignore``: let a worker's program reserve no more from a queue."""

    word = "ignore"

    @operation(
        "ignore_queue",
        "Let a running worker reserve no more from a queue",
        reads=WatchedQueueSerializer,
        returns={202: CommandSerializer.of("ignore")},
        text="All processes of its program stop reserving from the queue and finish the jobs that they hold. A restart "
        f"of the program ends this. {_LATER}",
    )
    def post(self, request: Request, worker: str) -> Response:
        """Send the command."""
        return self.choose(request, worker)


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


urlpatterns: list[URLPattern] = [
    path("workers", Workers.as_view(), name="workers"),
    # Worker names may contain slashes (host name, project settings), so the verbs come first.
    path("workers/<path:worker>/stop", Stop.as_view(), name="worker_stop"),
    path("workers/<path:worker>/drain", Drain.as_view(), name="worker_drain"),
    path("workers/<path:worker>/dump", Dump.as_view(), name="worker_dump"),
    path("workers/<path:worker>/watch", Watch.as_view(), name="worker_watch"),
    path("workers/<path:worker>/ignore", Ignore.as_view(), name="worker_ignore"),
    path("workers/<path:worker>", OneWorker.as_view(), name="worker"),
]
