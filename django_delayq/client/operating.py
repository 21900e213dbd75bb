"""Operator verbs: inspect and change queues, jobs and workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, TypedDict, Unpack

from .answers import Bulk, Job, Queue, Stats, Worker, job_of, made, moment, stats_of
from .base import AT_ONCE, Base, Seconds, chunks, plain, said
from .errors import ApiError, JobNotFound, Unavailable

#: ids that a verb applies to, None with ``all``
Ids = Sequence[str] | None
#: the same for the morgue, where records from :meth:`Operating.morgue` are accepted too
Graves = Sequence[str | Job] | None


class Listing(TypedDict, total=False):
    """Filters of a list of jobs; by default all waiting jobs (or the whole morgue).

    ``state`` is delayed, ready, waiting, reserved, gated or failed (not for the morgue), ``by`` one of the orders of
    the state, ``order`` asc or desc, ``min`` and ``max`` are bounds in the unit of ``by``, ``limit`` (up to 250) is the
    size of one page; further pages are fetched as needed.
    """

    state: str
    by: str
    order: str
    limit: int
    id: str
    task: str
    min: datetime | float | str
    max: datetime | float | str


class Operating(Base):
    """Operator verbs of the client."""

    # -- queues ------------------------------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Return all queues, with their counts."""
        return [made(Queue, one) for one in self._get("queues")["queues"]]

    def queue(self, name: str) -> Queue:
        """Return one queue, including the values of each shard.

        Raises:
            QueueNotFound: there is no such queue.
        """
        return made(Queue, self._get("queues", name))

    def create_queue(self, name: str, **policy: Any) -> Queue:
        """Create a queue: ``kind``, ``shards``, ``max_length``, ``morgue_max``, ``morgue_ttl``, ``priorities``.

        Raises:
            Conflict: it exists with other values, or the project's settings differ.
        """
        return made(Queue, self._post("queues", body={"name": name, **said(**policy)}))

    def limit_queue(self, name: str, **limits: Any) -> Queue:
        """Change limits of a queue. None removes a limit, limits that are not given stay.

        Raises:
            Conflict, QueueNotFound: the limits cannot be changed, or there is no such queue.
        """
        return made(Queue, self._wire.ask("PATCH", "v1", "queues", name, body=plain(limits)).data)

    def delete_queue(self, name: str, *, force: bool = False) -> None:
        """Delete a queue; with ``force`` its jobs are lost.

        Raises:
            QueueNotEmpty, QueueNotFound: the queue holds jobs, or there is no such queue.
        """
        self._wire.ask("DELETE", "v1", "queues", name, query={"force": True if force else None})

    def pause(self, name: str, direction: str = "both") -> Queue:
        """Stop storing new jobs ("in"), handing jobs out ("out"), or both; held jobs continue."""
        return made(Queue, self._post("queues", name, "pause", body={"direction": direction}))

    def resume(self, name: str, direction: str = "both") -> Queue:
        """End a pause."""
        return made(Queue, self._post("queues", name, "resume", body={"direction": direction}))

    def reshard(self, name: str, shards: int) -> Queue:
        """Change the number of shards during operation."""
        return made(Queue, self._post("queues", name, "reshard", body={"shards": shards}))

    # -- jobs --------------------------------------------------------------------------------------------------------

    def jobs(self, queue: str, **query: Unpack[Listing]) -> Iterator[Job]:
        """Yield all jobs of a list. Pages are fetched as needed; see :class:`Listing`."""
        return self._pages(("queues", queue, "jobs"), query)

    def morgue(self, queue: str, **query: Unpack[Listing]) -> Iterator[Job]:
        """Yield all jobs of the morgue. Pages are fetched as needed; see :class:`Listing`."""
        return self._pages(("queues", queue, "morgue"), query)

    def job(self, queue: str, id: str) -> Job | None:
        """Return one job; None if there is none (any more)."""
        if id in (".", ".."):  # path normalisation would remove such a segment
            lists = (self.jobs(queue, id=id), self.jobs(queue, id=id, state="reserved"), self.morgue(queue, id=id))
            return next(chain.from_iterable(lists), None)
        try:
            return job_of(self._get("queues", queue, "jobs", id))
        except JobNotFound:
            return None

    def graves(self, queue: str, id: str) -> list[Job]:
        """Return all records of an id in the morgue."""
        try:
            return list(self._pages(("queues", queue, "morgue", id), {}))
        except JobNotFound:
            return []

    def cancel_job(self, queue: str, id: str) -> str:
        """Cancel one job: "cancelled", "stopping" (it is running), or "outbox" while Redis is unavailable.

        Raises:
            JobNotFound: there is no such job.
        """
        return str(self._wire.ask("DELETE", "v1", "queues", queue, "jobs", id).data["outcome"])

    def reschedule_job(
        self, queue: str, id: str, *, delay: Seconds | None = None, at: datetime | float | None = None
    ) -> datetime | None:
        """Set another due time for one job and return it.

        Raises:
            JobNotFound: there is no such job.
            Conflict: it is running and nothing waits behind it.
        """
        answer = self._wire.ask("PATCH", "v1", "queues", queue, "jobs", id, body=said(delay=delay, at=at))
        return moment(answer.data["due"])

    # -- verbs for many jobs -----------------------------------------------------------------------------------------

    def cancel(self, queue: str, ids: Ids = None, *, all: bool = False) -> Bulk:
        """Cancel waiting jobs, and mark running ones to be stopped: those of ``ids``, or all waiting ones."""
        return self._order(queue, "cancel", ids, all)

    def reschedule(
        self, queue: str, ids: Sequence[str], *, delay: Seconds | None = None, at: datetime | float | None = None
    ) -> Bulk:
        """Set another due time for waiting jobs."""
        return self._order(queue, "reschedule", ids, False, delay=delay, at=at)

    def run_now(self, queue: str, ids: Ids = None, *, all: bool = False) -> Bulk:
        """Make waiting jobs due now."""
        return self._order(queue, "run-now", ids, all)

    def kill_failed(self, queue: str) -> Bulk:
        """Move failed jobs to the morgue."""
        return self._whole(queue, "kill-failed", {})

    def delete_failed(self, queue: str) -> Bulk:
        """Delete failed jobs."""
        return self._whole(queue, "delete-failed", {})

    def kick(
        self,
        queue: str,
        ids: Graves = None,
        *,
        all: bool = False,
        delay: Seconds | None = None,
        per_second: float | None = None,
        replace: bool | None = None,
    ) -> Bulk:
        """Move jobs from the morgue back into the queue: those of ``ids``, or all.

        Args:
            queue: name of the queue.
            ids: ids or records of the jobs.
            all: all jobs of the morgue.
            delay: delay until they are due; None = due now.
            per_second: spread all jobs at this rate.
            replace: replace a live job of the same id.
        """
        return self._order(queue, "kick", ids, all, delay=delay, per_second=per_second, replace=replace)

    def discard(self, queue: str, ids: Graves = None, *, all: bool = False, older_than: Seconds | None = None) -> Bulk:
        """Delete jobs of the morgue for good: those of ``ids``, or all, or all ``older_than`` a time span."""
        return self._order(queue, "discard", ids, all, older_than=older_than)

    # -- workers and metrics -----------------------------------------------------------------------------------------

    def workers(self) -> list[Worker]:
        """Return all workers, as of their last heartbeats."""
        return [made(Worker, one) for one in self._get("workers")["workers"]]

    def worker(self, name: str) -> Worker:
        """Return one worker, and when the leases of its jobs end.

        Raises:
            NotFound: there is no such worker.
        """
        return made(Worker, self._get("workers", name))

    def stop_worker(self, name: str) -> None:
        """Stop a worker like SIGTERM to its program.

        Raises:
            NotFound: there is no such worker.
        """
        self._post("workers", name, "stop")

    def drain_worker(self, name: str) -> None:
        """Drain a worker: it finishes its jobs and reserves no new ones.

        Raises:
            NotFound: there is no such worker.
        """
        self._post("workers", name, "drain")

    def dump_worker(self, name: str) -> None:
        """Request a dump of the stacks of a worker's threads; see :meth:`dump_of`.

        Raises:
            NotFound: there is no such worker.
        """
        self._post("workers", name, "dump")

    def dump_of(self, name: str) -> str:
        """Return the requested stacks of a worker.

        Raises:
            NotFound: the stacks have not arrived yet, or there is no such worker.
        """
        return str(self._get("workers", name, "dump")["stacks"])

    def stats(self) -> Stats:
        """Return length, morgue length and lag of all queues."""
        return stats_of(self._get("stats"))

    def status(self) -> dict[str, Any]:
        """Return the complete status of queues, workers and Redis."""
        found: dict[str, Any] = self._get("status")
        return found

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        found: dict[str, Any] = self._get("openapi.json")
        return found

    def healthy(self) -> bool:
        """Return True if the server process is alive; needs no token."""
        return bool(self._wire.ask("GET", "healthz").data["status"] == "ok")

    def ready(self) -> bool:
        """Return True if the server is ready to work."""
        try:
            return bool(self._wire.ask("GET", "readyz", attempts=1).data["status"] == "ok")
        except Unavailable as error:
            if error.status == 503:
                return False
            raise

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _pages(self, path: tuple[str, ...], query: Mapping[str, Any]) -> Iterator[Job]:
        cursor: str | None = None
        while True:
            page = self._get(*path, **said(**query), cursor=cursor)
            yield from map(job_of, page["jobs"])
            cursor = page["cursor"]
            if not cursor:
                return

    def _order(self, queue: str, verb: str, ids: Graves, all: bool, **members: Any) -> Bulk:
        if isinstance(ids, (str, bytes)):
            raise TypeError(f"ids are a list, got {ids!r}")
        if ids is None:
            return self._whole(queue, verb, said(all=all or None, **members))
        counts: Counter[str] = Counter()
        results: list[tuple[str, str]] = []
        for chunk in chunks(ids, AT_ONCE):
            try:
                answer = self._post("queues", queue, verb, body={**_named(chunk), **said(**members)})
            except ApiError as error:
                error.done = results
                raise
            counts.update(answer["counts"])
            results += [(one["id"], one["outcome"]) for one in answer["results"]]
        return Bulk(counts=dict(counts), results=results, seen=len(ids), total=len(ids))

    def _whole(self, queue: str, verb: str, members: Mapping[str, Any]) -> Bulk:
        """Repeat a verb for all jobs until it is complete, because one request may stop before the end."""
        counts: Counter[str] = Counter()
        seen = 0
        while True:
            part = made(Bulk, self._post("queues", queue, verb, body=members))
            counts.update(part.counts)
            seen += part.seen
            if part.complete:
                return Bulk(counts=dict(counts), seen=seen, total=max(seen, part.total))


def _named(some: Sequence[str | Job]) -> dict[str, Any]:
    """Return a selection by ids, or (if any of them is a record of the morgue) by ids and keys."""
    if all(isinstance(one, str) for one in some):
        return {"ids": some}
    return {"jobs": [{"id": one.id, "key": one.key} if isinstance(one, Job) else {"id": one} for one in some]}
