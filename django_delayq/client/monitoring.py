"""Monitoring verbs: workers, producers, recurring tasks, metrics, history and the server itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from .answers import Producers, RecurringTask, Stats, Worker, made
from .base import Base, members
from .errors import Unavailable
from .methods import Pages, listing, verb
from .wire import Request, Steps

#: a datetime, or Unix seconds
Moment = datetime | float | None


class MonitorVerbs(Base):
    """Monitoring verbs of the clients."""

    @verb
    def workers(self) -> Steps[list[Worker]]:
        """Return all workers, as of their last heartbeats."""
        return [made(Worker, one) for one in (yield from self._get("workers"))["workers"]]

    @verb
    def worker(self, name: str) -> Steps[Worker]:
        """Return one worker, and when the leases of its jobs end.

        Raises:
            NotFound: there is no such worker.
        """
        return made(Worker, (yield from self._get("workers", name)))

    @verb
    def stop_worker(self, name: str) -> Steps[None]:
        """Stop a worker like SIGTERM to its program.

        Raises:
            NotFound: there is no such worker.
        """
        yield from self._post("workers", name, "stop")

    @verb
    def drain_worker(self, name: str) -> Steps[None]:
        """Drain a worker: it finishes its jobs and reserves no new ones.

        Raises:
            NotFound: there is no such worker.
        """
        yield from self._post("workers", name, "drain")

    @verb
    def watch_queue(self, worker: str, queue: str) -> Steps[None]:
        """Let all processes of a worker's program reserve from one more queue, until the program ends.

        Raises:
            NotFound, QueueNotFound: there is no such worker or queue.
        """
        yield from self._post("workers", worker, "watch", body={"queue": queue})

    @verb
    def ignore_queue(self, worker: str, queue: str) -> Steps[None]:
        """Let all processes of a worker's program reserve no more from a queue, until the program ends.

        Raises:
            NotFound, QueueNotFound: there is no such worker or queue.
        """
        yield from self._post("workers", worker, "ignore", body={"queue": queue})

    @verb
    def dump_worker(self, name: str) -> Steps[None]:
        """Request a dump of the stacks of a worker's threads; see :meth:`dump_of`.

        Raises:
            NotFound: there is no such worker.
        """
        yield from self._post("workers", name, "dump")

    @verb
    def dump_of(self, name: str) -> Steps[str]:
        """Return the requested stacks of a worker.

        Raises:
            NotFound: the stacks have not arrived yet, or there is no such worker.
        """
        return str((yield from self._get("workers", name, "dump"))["stacks"])

    @verb
    def producers(self) -> Steps[Producers]:
        """Return whether the producers of all queues are paused."""
        return made(Producers, (yield from self._get("producers")))

    @verb
    def pause_producers(self) -> Steps[Producers]:
        """Refuse new jobs in all queues, also in those that are created later; stored jobs run."""
        return made(Producers, (yield from self._post("producers", "pause")))

    @verb
    def resume_producers(self) -> Steps[Producers]:
        """Accept new jobs again."""
        return made(Producers, (yield from self._post("producers", "resume")))

    @verb
    def recurring(self) -> Steps[list[RecurringTask]]:
        """Return the recurring tasks of the project, with their last and next ticks."""
        return [made(RecurringTask, one) for one in (yield from self._get("recurring"))["recurring"]]

    @verb
    def pause_recurring(self, task: str) -> Steps[RecurringTask]:
        """Let no tick of a recurring task fire until :meth:`resume_recurring`.

        Raises:
            NotFound: there is no such recurring task.
        """
        return made(RecurringTask, (yield from self._post("recurring", task, "pause")))

    @verb
    def resume_recurring(self, task: str) -> Steps[RecurringTask]:
        """Let its ticks fire again; of those missed meanwhile its ``missed`` decides."""
        return made(RecurringTask, (yield from self._post("recurring", task, "resume")))

    @verb
    def run_recurring_now(self, task: str) -> Steps[str]:
        """Run a recurring task now, beside its ticks; return the outcome: created, replaced or gated."""
        return str((yield from self._post("recurring", task, "run-now"))["outcome"])

    @verb
    def depth(self, name: str, *, minutes: int | None = None) -> Steps[list[dict[str, Any]]]:
        """Return the depth of a queue over the last ``minutes`` (an hour unless given), a dict for each minute.

        Raises:
            QueueNotFound: there is no such queue.
        """
        points: list[dict[str, Any]] = (yield from self._get("queues", name, "depth", **members(minutes=minutes)))[
            "points"
        ]
        return points

    @verb
    def stats(self) -> Steps[Stats]:
        """Return length, morgue length and lag of all queues."""
        return made(Stats, (yield from self._get("stats")))

    @verb
    def status(self) -> Steps[dict[str, Any]]:
        """Return the complete status of queues, workers and Redis."""
        status: dict[str, Any] = yield from self._get("status")
        return status

    # -- history; dicts, as described in the OpenAPI document --------------------------------------------------------

    @listing
    def hours(
        self, *, queue: str = "", task: str = "", since: Moment = None, until: Moment = None
    ) -> Pages[dict[str, Any]]:
        """Yield the metrics of each hour, queue and task, the latest first. Pages are fetched as needed."""
        return self._rows("hours", _query(queue, task, since, until))

    @verb
    def history(
        self, *, queue: str = "", task: str = "", since: Moment = None, until: Moment = None
    ) -> Steps[dict[str, Any]]:
        """Return metrics summed over queues: in total, over time, and by task.

        Without ``since`` and ``until`` they cover the last 24 hours.
        """
        summary: dict[str, Any] = yield from self._get("history", "summary", **_query(queue, task, since, until))
        return summary

    @listing
    def pipeline_runs(
        self, *, kind: str | None = None, state: str | None = None, run_id: str | None = None
    ) -> Pages[dict[str, Any]]:
        """Yield the pipeline runs, the latest first."""
        return self._rows("runs", members(kind=kind, state=state, run_id=run_id))

    @verb
    def forecast(self, queue: str = "") -> Steps[dict[str, Any]]:
        """Return the jobs that fall due in the next 24 hours, and when they will be done."""
        forecast: dict[str, Any] = yield from self._get("history", "forecast", **members(queue=queue or None))
        return forecast

    # -- the server ---------------------------------------------------------------------------------------------------

    @verb
    def openapi(self) -> Steps[dict[str, Any]]:
        """Return the OpenAPI document."""
        document: dict[str, Any] = yield from self._get("openapi.json")
        return document

    @verb
    def healthy(self) -> Steps[bool]:
        """Return True if the server process is alive; needs no token."""
        answer = yield from self._wire.exchange(Request("GET", ("healthz",)))
        return bool(answer.data["status"] == "ok")

    @verb
    def ready(self) -> Steps[bool]:
        """Return True if the server is ready to work."""
        try:
            answer = yield from self._wire.exchange(Request("GET", ("readyz",), attempts=1))
            return bool(answer.data["status"] == "ok")
        except Unavailable as error:
            if error.status == 503:
                return False
            raise

    def _rows(self, name: str, query: Mapping[str, Any]) -> Pages[dict[str, Any]]:
        return self._pages(("history", name), name, query, dict)


def _query(queue: str, task: str, since: Moment, until: Moment) -> dict[str, Any]:
    return members(queue=queue or None, task=task or None, **{"from": since, "to": until})
