"""Monitoring verbs: workers, producers, metrics and the server itself."""

from __future__ import annotations

from typing import Any

from .answers import Producers, Stats, Worker, made, stats_of
from .base import Base, members
from .errors import Unavailable
from .methods import verb
from .wire import Request, Steps


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
        return stats_of((yield from self._get("stats")))

    @verb
    def status(self) -> Steps[dict[str, Any]]:
        """Return the complete status of queues, workers and Redis."""
        status: dict[str, Any] = yield from self._get("status")
        return status

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
