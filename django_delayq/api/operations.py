"""Endpoints for operators: workers, recurring tasks, the status of the deployment, this API itself, health checks.

The running jobs of a worker are those it reported with its last heartbeat, at most 64. The ends of their leases are
read from Redis only where one worker is shown, since that costs another round trip.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from django.db import Error as DatabaseTrouble, connections as databases
from drf_spectacular.types import OpenApiTypes
from redis.exceptions import RedisError
from rest_framework.exceptions import NotFound
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from .. import connections, status
from ..access.problems import Problem, queue_not_found
from ..access.views import GuardedView, allows, may_use
from ..core.broker import Broker
from ..core.errors import DelayQError, InvalidJob, QueueUnavailable
from ..core.redis.scripts import clear_errors
from ..core.registry import pause_recurring
from ..core.task import registry
from ..core.times import iso_of
from ..settings.conf import conf
from ..status import RecurringStatus, Snapshot, WorkerStatus, read_recurring
from ..status.json_form import as_json, recurring_as_json
from ..status.snapshot import worker_status
from ..worker.recurring import Work, resume, run_now, work_of
from . import requests, responses
from .base import ApiView, operation

logger: Final = logging.getLogger("django_delayq.api")

_HERE: Final = "v1/openapi.json"


class Workers(ApiView):
    """Worker processes. A command is read by a worker with its next heartbeat, by default within five seconds."""

    tag = "workers"

    @operation("GET v1/workers", "view", returns=responses.Workers)
    def list_workers(self, request: Request) -> Response:
        """List the worker processes, including lost ones."""
        broker = connections.hurried_broker()
        now_ms, visible = broker.now_ms(), VisibleQueues(request)
        workers = [visible.worker(worker_status(heartbeat, now_ms)) for heartbeat in broker.workers()]
        return Response({"workers": [responses.Worker.render(worker) for worker in workers]})

    @operation("GET v1/workers/{worker}", "view", returns=responses.Worker)
    def get_worker(self, request: Request, worker: str) -> Response:
        """Show a worker, with the ends of the leases of its jobs."""
        broker = connections.hurried_broker()
        now_ms = broker.now_ms()
        for heartbeat in broker.workers():
            if heartbeat["name"] == worker:
                found = VisibleQueues(request).worker(worker_status(heartbeat, now_ms))
                rendered, ends = responses.Worker.render(found), lease_ends(broker, found)
                for job in rendered["jobs"]:
                    job["lease_ends"] = iso_of(ends.get((job["queue"], job["id"])))
                return Response(rendered)
        raise _unknown(worker)

    @operation("POST v1/workers/{worker}/stop", "admin", returns={202: responses.Command})
    def stop_worker(self, request: Request, worker: str) -> Response:
        """Stop a worker, like SIGTERM to its program.

        All its processes reserve nothing more, finish their jobs within the grace period, and end. The response does
        not wait for the worker.
        """
        return _send(worker, "stop")

    @operation("POST v1/workers/{worker}/drain", "admin", returns={202: responses.Command})
    def drain_worker(self, request: Request, worker: str) -> Response:
        """Let a worker finish its jobs and reserve no more.

        Like SIGUSR1 to its program.
        """
        return _send(worker, "drain")

    @operation("POST v1/workers/{worker}/dump", "operate", returns={202: responses.Command})
    def dump_worker(self, request: Request, worker: str) -> Response:
        """Request the stacks of a worker's threads.

        They are logged, and stored for ten minutes.
        """
        return _send(worker, "dump")

    @operation("GET v1/workers/{worker}/dump", "view", returns=responses.Dump)
    def get_dump(self, request: Request, worker: str) -> Response:
        """Read the requested stacks of a worker.

        404 `not_found`: none were requested, the worker has not read the command yet, or ten minutes have passed.
        """
        dump = connections.hurried_broker().dump_of(worker)
        if dump is None:
            raise Problem(
                "not_found",
                f"there are no stacks of worker {worker[:300]!r}; POST to this address to request them, then repeat "
                "this after its next heartbeat",
            )
        taken_ms, stacks = dump
        return Response({"worker": worker, "taken": iso_of(taken_ms), "stacks": stacks})

    def queues_of_body(self, request: Request) -> Sequence[str]:
        """Return the queue that a worker is to serve, or no longer."""
        return (self.read(request)["queue"],) if self.described.reads is not None else ()

    @operation(
        "POST v1/workers/{worker}/watch", "operate", reads=requests.WatchedQueue, returns={202: responses.Command}
    )
    def watch_queue(self, request: Request, worker: str) -> Response:
        """Let a running worker serve one more queue.

        All processes of its program reserve from the queue, also those that it starts later. A restart of the program
        ends this.
        """
        return self._choose(request, worker, "watch")

    @operation(
        "POST v1/workers/{worker}/ignore", "operate", reads=requests.WatchedQueue, returns={202: responses.Command}
    )
    def ignore_queue(self, request: Request, worker: str) -> Response:
        """Let a running worker reserve no more from a queue.

        All processes of its program stop reserving from the queue and finish the jobs that they hold. A restart of the
        program ends this.
        """
        return self._choose(request, worker, "ignore")

    def _choose(self, request: Request, worker: str, command: str) -> Response:
        queue = self.read(request)["queue"]
        if connections.hurried_broker().known_queue(queue) is None:
            raise queue_not_found(queue)
        return _send(worker, command, queue)


def _unknown(worker: str) -> Problem:
    return Problem("not_found", f"there is no worker {worker[:300]!r}; GET v1/workers lists the workers")


def _send(worker: str, command: str, queue: str = "") -> Response:
    """Send a command to a worker; 202 once it is queued."""
    if not connections.hurried_broker().tell_worker(worker, command, queue):
        raise _unknown(worker)
    return Response({"worker": worker, "command": command}, status=202)


def lease_ends(broker: Broker, worker: WorkerStatus) -> dict[tuple[str, str], int]:
    """Return (queue, id) → end of the lease, Unix ms, for the jobs that the worker ran and still holds."""
    queues = {queue.name: queue for queue in broker.queues()}
    leases = broker.inspector.leases((queues[job.queue], job.id) for job in worker.jobs if job.queue in queues)
    return {name: lease.ends_ms for name, lease in leases.items() if lease.worker == worker.name}


class Recurring(ApiView):
    """Recurring tasks with their ticks."""

    tag = "queues"

    @operation("GET v1/recurring", "view", returns=responses.RecurringTasks)
    def list_recurring(self, request: Request) -> Response:
        """List the recurring tasks that the responding process has registered.

        Pauses of other tasks, renamed or removed since, are listed with them. Tasks of queues that the project's
        `allow` rule hides from the user are left out.
        """
        tasks = [one for one in read_recurring(connections.hurried_broker()) if may_use(request, "view", one.queue)]
        return Response({"recurring": [recurring_as_json(one) for one in tasks]})

    def queues_of_address(self, request: Request) -> Sequence[str]:
        """Return the queue of the task; an unknown task is of no queue."""
        known = registry.get(self.kwargs.get("task", ""))
        return ("" if known is None else known.options.queue,)

    @operation("POST v1/recurring/{task}/pause", "operate", returns=responses.Recurring)
    def pause_recurring(self, request: Request, task: str) -> Response:
        """Let no tick of a recurring task fire until it is resumed.

        A job of an earlier tick runs.
        """
        name = _work(task).task.name
        pause_recurring(connections.hurried_broker(), name)
        return _recurring(name)

    @operation("POST v1/recurring/{task}/resume", "operate", returns=responses.Recurring)
    def resume_recurring(self, request: Request, task: str) -> Response:
        """Let the ticks of a recurring task fire again.

        Of ticks that were missed meanwhile, the task's `missed` decides. Also ends the pause of a task that was renamed
        or removed.
        """
        try:
            return _recurring(resume(connections.hurried_broker(), registry, task))
        except InvalidJob as error:
            raise Problem("not_found", str(error)) from None

    @operation("POST v1/recurring/{task}/run-now", "operate", returns=responses.Outcome)
    def run_recurring_now(self, request: Request, task: str) -> Response:
        """Run a recurring task now, beside its ticks.

        Also while it is paused. At most one run is active, and at most one waits. Outcomes: `created`; `replaced`: the
        waiting run is due now; `gated`: it begins when the present one ends.
        """
        return Response({"outcome": str(run_now(connections.hurried_broker(), _work(task)))})


def _work(task: str) -> Work:
    """Return the recurring task of this name.

    Raises:
        Problem: it is no recurring task.
    """
    try:
        return work_of(registry, task)
    except InvalidJob as error:
        raise Problem("not_found", str(error)) from None


def _recurring(name: str) -> Response:
    listed = (one for one in read_recurring(connections.hurried_broker()) if one.task == name)
    return Response(recurring_as_json(next(listed, RecurringStatus(name))))


class Deployment(ApiView):
    """Status and history of the deployment, and the OpenAPI document."""

    tag = "deployment"

    @operation("GET v1/status", "view", returns=responses.Status)
    def get_status(self, request: Request) -> Response:
        """Show the full status of queues, workers and Redis.

        The output of `manage.py delayq_status --json`, in six round trips to Redis and a query of the database. Queues
        that the project's `allow` rule hides from the user are left out.
        """
        snapshot = status.take(connections.hurried_broker(), recurring=True)
        return Response(as_json(VisibleQueues(request).snapshot(snapshot)))

    @operation("GET v1/openapi.json", "view", returns=OpenApiTypes.OBJECT)
    def openapi(self, request: Request) -> Response:
        """Return this document, for writers and generators of clients."""
        from .openapi import document

        self.read_query(request)
        # The path as the client requested it, with any prefix added by a proxy or the project.
        return Response(document(request.path.removesuffix(_HERE)))


class VisibleQueues:
    """Filter that removes the queues that ``API["allow"]`` hides from a user; it calls the rule once for each queue."""

    def __init__(self, request: Request) -> None:
        self._everything = allows() is None
        self._sees: Callable[[str], bool] = cache(lambda queue: may_use(request, "view", queue))

    def worker(self, worker: WorkerStatus) -> WorkerStatus:
        """Return the worker without hidden queues and without the jobs it runs from them."""
        if self._everything:
            return worker
        queues, ignored = tuple(filter(self._sees, worker.queues)), tuple(filter(self._sees, worker.ignored))
        jobs = tuple(job for job in worker.jobs if self._sees(job.queue))
        payload = {**worker.payload, "queues": list(queues), "ignored": list(ignored)}
        return replace(worker, queues=queues, ignored=ignored, jobs=jobs, payload=payload)

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot without hidden queues; its totals cover the remaining ones."""
        if self._everything:
            return snapshot
        sees, figures = self._sees, snapshot.figures
        return replace(
            snapshot,
            queues=tuple(queue for queue in snapshot.queues if sees(queue.name)),
            workers=tuple(map(self.worker, snapshot.workers)),
            unreachable=tuple(
                replace(part, shards={name: number for name, number in part.shards.items() if sees(name)})
                for part in snapshot.unreachable
            ),
            recurring=tuple(one for one in snapshot.recurring if sees(one.queue)),
            figures=replace(
                figures,
                lateness={name: one for name, one in figures.lateness.items() if sees(name)},
                run={key: one for key, one in figures.run.items() if sees(key[0])},
            ),
        )


class NotFoundView(GuardedView):
    """404 for authenticated users; others get 401 or 403."""

    schema = None
    permission_classes = (IsAuthenticated,)
    throttle_classes = ()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Raise NotFound for every method."""
        super().initial(request, *args, **kwargs)
        raise NotFound("there is nothing at this address; GET v1/openapi.json lists the addresses")


# -- health ------------------------------------------------------------------------------------------------------------

#: seconds in which the database has to answer
BUDGET: Final = 1.0
#: any name: the script only reads, and its shard need not exist
_NOWHERE: Final = "readyz"


class Health(ApiView):
    """Checks for load balancers."""

    tag = "deployment"
    permission_classes = ()
    throttle_classes = ()

    def get_authenticators(self) -> list[Any]:
        """Return none: the checks are open to everybody."""
        return []

    @operation("GET healthz", "", returns=responses.Health)
    def healthz(self, request: Request) -> Response:
        """Return 200 as long as the process responds; no other system is checked."""
        return Response({"status": "ok"})

    @operation("GET readyz", "", returns={200: responses.Health, 503: responses.Health})
    def readyz(self, request: Request) -> Response:
        """Return 200 if the process can serve requests, else 503.

        Redis has to run our scripts, and the databases of durable jobs have to answer.
        The timeout for Redis is the same as after a commit (`OUTBOX["budget"]`, at most a second for each step), so the
        check leaves no thread blocked.
        """
        states = {"redis": _state_of("redis", redis_answers), "database": _state_of("database", databases_answer)}
        ready = all(state == "ok" for state in states.values())
        return Response({"status": "ok" if ready else "away", **states}, status=200 if ready else 503)


def redis_answers() -> None:
    """Send a PING, and a script that only reads, to Redis.

    Raises:
        DelayQError: Redis does not answer in time, or not correctly.
    """
    broker = connections.swift_broker()
    with clear_errors():
        broker.client.ping()
    shard = broker.shard(_NOWHERE, 0)
    broker.scripts.call("stats", shard.keys, b"", shard.constants)


def databases_answer() -> None:
    """Run SELECT 1 in each database that has an outbox.

    A connection that broke since its last use is reopened, as its next user would do.

    Raises:
        DatabaseTrouble: a database does not answer.
        QueueUnavailable: a database answered too late.
    """
    for alias in conf().outbox.databases:
        began, connection = time.monotonic(), databases[alias]
        may_be_broken = connection.connection is not None and not connection.in_atomic_block
        try:
            _select_one(connection)
        except DatabaseTrouble:
            if not may_be_broken:
                raise
            connection.close()
            _select_one(connection)
        took = time.monotonic() - began
        if took > BUDGET:
            raise QueueUnavailable(f"the database {alias!r} took {took:.1f} s to answer SELECT 1")


def _select_one(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _state_of(what: str, ask: Callable[[], None]) -> str:
    """Return ok or away; the reason is only logged."""
    try:
        ask()
    except _TROUBLES as error:
        logger.warning("not ready, %s is away: %s", what, error)
        return "away"
    return "ok"


_TROUBLES: Final[tuple[type[Exception], ...]] = (DelayQError, DatabaseTrouble, RedisError, OSError)
