"""Worker processes: which live, what they run now, and what they are told.

What the threads of a worker run is what it said with its last heartbeat, at most 64 jobs. When the leases of these end
is looked up in Redis, and only where one worker is shown: it costs a round trip more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiExample, OpenApiResponse
from rest_framework import serializers
from rest_framework.response import Response

from ...status import WorkerStatus
from ...status.taking import worker_status
from .. import brokers
from ..base import ApiView
from ..describe import extend_schema
from ..problems import Problem
from ..shapes import ProblemSerializer, Shape
from ..values import moment, seconds
from ..visible import Visible

if TYPE_CHECKING:
    from rest_framework.request import Request

    from ...core.broker import Broker

_TAGS: Final = ["workers"]
_NOT_FOUND: Final = OpenApiResponse(ProblemSerializer, description="not_found: no such worker is registered")
_TOLD: Final = (
    "The answer is there at once; the worker hears of it with its next heartbeat, five seconds unless the settings say "
    "otherwise."
)


class RunningJobSerializer(Shape):
    """What one thread ran at the last heartbeat."""

    slot = serializers.IntegerField(help_text="number of the thread")
    queue = serializers.CharField()
    id = serializers.CharField()
    task = serializers.CharField()
    started = serializers.DateTimeField(allow_null=True)
    ids = serializers.IntegerField(help_text="jobs that this run takes together; `id` is the first of them")
    lease_ends = serializers.DateTimeField(
        allow_null=True,
        required=False,
        help_text="only where one worker is shown; null if the worker does not hold the job any more",
    )


class WorkerSerializer(Shape):
    """A worker process, as it last said."""

    name = serializers.CharField()
    host = serializers.CharField()
    pid = serializers.IntegerField(allow_null=True)
    queues = serializers.ListField(child=serializers.CharField(), help_text="that it serves")
    threads = serializers.IntegerField()
    running = serializers.IntegerField(help_text="threads that are busy")
    dispatcher = serializers.BooleanField(help_text="it also keeps house")
    quarantine = serializers.BooleanField(help_text="it runs jobs whose process died under them, one at a time")
    stopping = serializers.BooleanField()
    started = serializers.DateTimeField(allow_null=True)
    rss_mib = serializers.IntegerField(allow_null=True)
    seen = serializers.DateTimeField(allow_null=True)
    seconds_ago = serializers.FloatField(help_text="since it was last heard of")
    lost = serializers.BooleanField(help_text="it was not heard of for half a minute")
    jobs = RunningJobSerializer(many=True, help_text="at most 64, the longest running first")


class WorkersSerializer(Shape):
    """All worker processes, by name."""

    workers = WorkerSerializer(many=True)


class ToldSerializer(Shape):
    """What a worker was told."""

    worker = serializers.CharField()
    told = serializers.ChoiceField(("stop", "drain", "dump"))


class DumpSerializer(Shape):
    """What all threads of a worker were doing."""

    worker = serializers.CharField()
    taken = serializers.DateTimeField(allow_null=True)
    stacks = serializers.CharField(help_text="as Python prints them, at most 64 KiB")


class Workers(ApiView):
    """All of them."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @extend_schema(
        operation_id="list_workers", summary="List the worker processes", tags=_TAGS, responses={200: WorkersSerializer}
    )
    def get(self, request: Request) -> Response:
        """Those that are registered, the lost ones too."""
        broker = brokers.broker()
        now_ms, seen = broker.now_ms(), Visible(request)
        return Response({"workers": [described(seen.worker(worker_status(said, now_ms))) for said in broker.workers()]})


class OneWorker(ApiView):
    """One of them."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @extend_schema(
        operation_id="get_worker",
        summary="Show a worker, and until when it holds what it runs",
        tags=_TAGS,
        responses={200: WorkerSerializer, 404: _NOT_FOUND},
    )
    def get(self, request: Request, worker: str) -> Response:
        """It, and when its leases end."""
        broker = brokers.broker()
        now_ms = broker.now_ms()
        for said in broker.workers():
            if said["name"] == worker:
                status = Visible(request).worker(worker_status(said, now_ms))
                return Response(described(status, lease_ends(broker, status)))
        raise unknown(worker)


class _Tell(ApiView):
    """Something that a worker is told."""

    actions: ClassVar[Mapping[str, str]] = {"POST": "admin"}
    word: ClassVar[str] = ""

    def tell(self, worker: str) -> Response:
        """202, when it is on its way."""
        if not brokers.broker().tell_worker(worker, self.word):
            raise unknown(worker)
        return Response({"worker": worker, "told": self.word}, status=202)


class Stop(_Tell):
    """End it."""

    word = "stop"

    @extend_schema(
        operation_id="stop_worker",
        summary="Stop a worker",
        tags=_TAGS,
        request=None,
        description="As SIGTERM to its program: all its processes take nothing new, finish what they run "
        f"within their grace period, and end. {_TOLD}",
        responses={202: ToldSerializer, 404: _NOT_FOUND},
    )
    def post(self, request: Request, worker: str) -> Response:
        """Tells it."""
        return self.tell(worker)


class Drain(_Tell):
    """Nothing new for it."""

    word = "drain"

    @extend_schema(
        operation_id="drain_worker",
        summary="Let a worker finish what it has, and take nothing new",
        tags=_TAGS,
        request=None,
        description=f"As SIGUSR1 to its program. {_TOLD}",
        responses={202: ToldSerializer, 404: _NOT_FOUND},
    )
    def post(self, request: Request, worker: str) -> Response:
        """Tells it."""
        return self.tell(worker)


class Dump(_Tell):
    """What its threads are doing."""

    actions: ClassVar[Mapping[str, str]] = {"GET": "view", "POST": "operate"}
    word = "dump"

    @extend_schema(
        operation_id="dump_worker",
        summary="Ask a worker for the stacks of its threads",
        tags=_TAGS,
        request=None,
        description=f"They are logged, and kept for ten minutes. {_TOLD}",
        responses={202: ToldSerializer, 404: _NOT_FOUND},
    )
    def post(self, request: Request, worker: str) -> Response:
        """Tells it."""
        return self.tell(worker)

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
        examples=[
            OpenApiExample(
                "of one thread",
                response_only=True,
                value={
                    "worker": "web-1:4711:k3",
                    "taken": "2026-11-21T11:23:43.123Z",
                    "stacks": 'Thread 139 "slot-1":\n  File "shop/tasks.py", line 7, in pay\n    sleep(60)\n',
                },
            )
        ],
    )
    def get(self, request: Request, worker: str) -> Response:
        """The latest."""
        found = brokers.broker().dump_of(worker)
        if found is None:
            raise Problem(
                404,
                "not_found",
                f"there are no stacks of worker {worker[:300]!r}; POST to this address asks"
                " for them, and they are there after its next heartbeat",
            )
        taken_ms, stacks = found
        return Response({"worker": worker, "taken": moment(taken_ms), "stacks": stacks})


def unknown(worker: str) -> Problem:
    """404: no such worker is registered."""
    return Problem(404, "not_found", f"there is no worker {worker[:300]!r}; GET v1/workers lists those that there are")


def described(worker: WorkerStatus, ends: Mapping[tuple[str, str], int] | None = None) -> dict[str, Any]:
    """A worker as JSON; ``ends``: (queue, id) → end of the lease, Unix ms, where they were looked up."""
    return {
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "queues": list(worker.queues),
        "threads": worker.threads,
        "running": worker.running,
        "dispatcher": worker.dispatcher,
        "quarantine": worker.quarantine,
        "stopping": worker.stopping,
        "started": moment(worker.started_ms),
        "rss_mib": worker.rss_mib,
        "seen": moment(worker.seen_ms),
        "seconds_ago": seconds(worker.seconds_ago * 1000),
        "lost": worker.lost,
        "jobs": [
            {
                "slot": job.slot,
                "queue": job.queue,
                "id": job.id,
                "task": job.task,
                "started": moment(job.started_ms),
                "ids": job.ids,
                **({} if ends is None else {"lease_ends": moment(ends.get((job.queue, job.id)))}),
            }
            for job in worker.jobs
        ],
    }


def lease_ends(broker: Broker, worker: WorkerStatus) -> dict[tuple[str, str], int]:
    """(queue, id) → end of the lease, Unix ms, of the jobs that the worker ran and still holds."""
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
    # A name is made of a host's name and whatever a project puts into it; the verbs come first.
    path("workers/<path:worker>/stop", Stop.as_view(), name="worker_stop"),
    path("workers/<path:worker>/drain", Drain.as_view(), name="worker_drain"),
    path("workers/<path:worker>/dump", Dump.as_view(), name="worker_dump"),
    path("workers/<path:worker>", OneWorker.as_view(), name="worker"),
]
