"""Look, and give orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, TypedDict, Unpack

from .answers import Bulk, Job, Queue, Stats, Worker, job_of, made, moment, stats_of
from .base import AT_ONCE, Base, Seconds, chunks, plain, said
from .errors import ApiError, JobNotFound, Unavailable

#: the ids that a verb is for, None with ``all``
Ids = Sequence[str] | None
#: the same of the morgue, also by its records, as :meth:`Operating.morgue` gives them
Graves = Sequence[str | Job] | None


class Listing(TypedDict, total=False):
    """What a list of jobs is to show; without anything, all that wait (or all of the morgue).

    ``state`` is delayed, ready, waiting, reserved, gated or failed (not of the morgue), ``by`` one of the orders of the
    state, ``order`` asc or desc, ``min`` and ``max`` are bounds in the unit of ``by``, ``limit`` (up to 250) is the
    size of one page: the list goes on behind it.
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
    """The verbs of who looks after the queues."""

    # -- queues ------------------------------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """All queues, with what lies in them."""
        return [made(Queue, one) for one in self._get("queues")["queues"]]

    def queue(self, name: str) -> Queue:
        """One queue, also shard by shard. Raises: QueueNotFound."""
        return made(Queue, self._get("queues", name))

    def create_queue(self, name: str, **policy: Any) -> Queue:
        """Make a queue: ``kind``, ``shards``, ``max_length``, ``morgue_max``, ``morgue_ttl``, ``priorities``.

        Raises:
            Conflict: it is there and is something else, or the project's settings say otherwise.
        """
        return made(Queue, self._post("queues", body={"name": name, **said(**policy)}))

    def limit_queue(self, name: str, **limits: Any) -> Queue:
        """Change its limits; None takes one away, what is not given stays. Raises: Conflict, QueueNotFound."""
        return made(Queue, self._wire.ask("PATCH", "v1", "queues", name, body=plain(limits)).data)

    def delete_queue(self, name: str, *, force: bool = False) -> None:
        """Delete it; with ``force`` its jobs are lost. Raises: QueueNotEmpty, QueueNotFound."""
        self._wire.ask("DELETE", "v1", "queues", name, query={"force": True if force else None})

    def pause(self, name: str, direction: str = "both") -> Queue:
        """Take no jobs in ("in"), hand none out ("out"), or both; what is held goes on."""
        return made(Queue, self._post("queues", name, "pause", body={"direction": direction}))

    def resume(self, name: str, direction: str = "both") -> Queue:
        """End a pause."""
        return made(Queue, self._post("queues", name, "resume", body={"direction": direction}))

    def reshard(self, name: str, shards: int) -> Queue:
        """Change the number of shards, while everything goes on."""
        return made(Queue, self._post("queues", name, "reshard", body={"shards": shards}))

    # -- jobs --------------------------------------------------------------------------------------------------------

    def jobs(self, queue: str, **query: Unpack[Listing]) -> Iterator[Job]:
        """All jobs of a list, fetched page by page as they are asked for; see :class:`Listing`."""
        return self._pages(("queues", queue, "jobs"), query)

    def morgue(self, queue: str, **query: Unpack[Listing]) -> Iterator[Job]:
        """All jobs of the morgue, fetched page by page as they are asked for; see :class:`Listing`."""
        return self._pages(("queues", queue, "morgue"), query)

    def job(self, queue: str, id: str) -> Job | None:
        """One job; None if there is none (any more)."""
        if id in (".", ".."):  # what lies between would take them out of the address
            lists = (self.jobs(queue, id=id), self.jobs(queue, id=id, state="reserved"), self.morgue(queue, id=id))
            return next(chain.from_iterable(lists), None)
        try:
            return job_of(self._get("queues", queue, "jobs", id))
        except JobNotFound:
            return None

    def graves(self, queue: str, id: str) -> list[Job]:
        """All records of an id in the morgue."""
        try:
            return list(self._pages(("queues", queue, "morgue", id), {}))
        except JobNotFound:
            return []

    def cancel_job(self, queue: str, id: str) -> str:
        """Cancel one: "cancelled", "stopping" (it runs), or "outbox" while Redis is away. Raises: JobNotFound."""
        return str(self._wire.ask("DELETE", "v1", "queues", queue, "jobs", id).data["outcome"])

    def reschedule_job(
        self, queue: str, id: str, *, delay: Seconds | None = None, at: datetime | float | None = None
    ) -> datetime | None:
        """Give one another due time, which comes back. Raises: JobNotFound; Conflict, if it runs and nothing waits."""
        answer = self._wire.ask("PATCH", "v1", "queues", queue, "jobs", id, body=said(delay=delay, at=at))
        return moment(answer.data["due"])

    # -- orders for jobs ---------------------------------------------------------------------------------------------

    def cancel(self, queue: str, ids: Ids = None, *, all: bool = False) -> Bulk:
        """Cancel waiting jobs, and mark running ones to be stopped: those of ``ids``, or all waiting ones."""
        return self._order(queue, "cancel", ids, all)

    def reschedule(
        self, queue: str, ids: Sequence[str], *, delay: Seconds | None = None, at: datetime | float | None = None
    ) -> Bulk:
        """Give waiting jobs another due time."""
        return self._order(queue, "reschedule", ids, False, delay=delay, at=at)

    def run_now(self, queue: str, ids: Ids = None, *, all: bool = False) -> Bulk:
        """Make waiting jobs due now."""
        return self._order(queue, "run-now", ids, all)

    def kill_failed(self, queue: str) -> Bulk:
        """Failed jobs to the morgue."""
        return self._whole(queue, "kill-failed", {})

    def delete_failed(self, queue: str) -> Bulk:
        """Failed jobs away."""
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
        """Jobs of the morgue back into the queue: those of ``ids``, or all.

        Args:
            queue: the queue.
            ids: which ones.
            all: all of them.
            delay: when they are due; None = at once.
            per_second: spread all of them, so many a second.
            replace: also where the id lives again; the live job is replaced.
        """
        return self._order(queue, "kick", ids, all, delay=delay, per_second=per_second, replace=replace)

    def discard(self, queue: str, ids: Graves = None, *, all: bool = False, older_than: Seconds | None = None) -> Bulk:
        """Jobs of the morgue away for ever: those of ``ids``, or all (with ``older_than``: that lie there longer)."""
        return self._order(queue, "discard", ids, all, older_than=older_than)

    # -- workers and figures -----------------------------------------------------------------------------------------

    def workers(self) -> list[Worker]:
        """All workers, as they last said."""
        return [made(Worker, one) for one in self._get("workers")["workers"]]

    def worker(self, name: str) -> Worker:
        """One worker, and until when it holds what it runs. Raises: NotFound."""
        return made(Worker, self._get("workers", name))

    def stop_worker(self, name: str) -> None:
        """As SIGTERM to its program. Raises: NotFound."""
        self._post("workers", name, "stop")

    def drain_worker(self, name: str) -> None:
        """It finishes what it has and takes nothing new. Raises: NotFound."""
        self._post("workers", name, "drain")

    def dump_worker(self, name: str) -> None:
        """Ask for the stacks of its threads; see :meth:`dump_of`. Raises: NotFound."""
        self._post("workers", name, "dump")

    def dump_of(self, name: str) -> str:
        """The stacks that it was asked for. Raises: NotFound, as long as there are none."""
        return str(self._get("workers", name, "dump")["stacks"])

    def stats(self) -> Stats:
        """Length, morgue and lag of everything."""
        return stats_of(self._get("stats"))

    def status(self) -> dict[str, Any]:
        """Everything that is known of queues, workers and Redis."""
        found: dict[str, Any] = self._get("status")
        return found

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        found: dict[str, Any] = self._get("openapi.json")
        return found

    def healthy(self) -> bool:
        """Whether the process lives; needs no token."""
        return bool(self._wire.ask("GET", "healthz").data["status"] == "ok")

    def ready(self) -> bool:
        """Whether it can work."""
        try:
            return bool(self._wire.ask("GET", "readyz", attempts=1).data["status"] == "ok")
        except Unavailable as error:
            if error.status == 503:
                return False
            raise

    # -- how -----------------------------------------------------------------------------------------------------------

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
        """For all: again and again until it is done, because one request may stop before the end."""
        counts: Counter[str] = Counter()
        seen = 0
        while True:
            part = made(Bulk, self._post("queues", queue, verb, body=members))
            counts.update(part.counts)
            seen += part.seen
            if part.complete:
                return Bulk(counts=dict(counts), seen=seen, total=max(seen, part.total))


def _named(some: Sequence[str | Job]) -> dict[str, Any]:
    """By ids, or (as soon as one is a record of the morgue) by ids and keys."""
    if all(isinstance(one, str) for one in some):
        return {"ids": some}
    return {"jobs": [{"id": one.id, "key": one.key} if isinstance(one, Job) else {"id": one} for one in some]}
