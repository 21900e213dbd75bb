"""Operator verbs: inspect and change queues and jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

from .answers import Bulk, Job, Queue, job_of, made, moment
from .base import AT_ONCE, Base, Seconds, all_items, chunks, members, plain
from .errors import JobNotFound
from .methods import Pages, listing, verb
from .wire import Steps

#: ids that a verb applies to, None with ``all``
Ids = Sequence[str] | None
#: the same for the morgue, where records from :meth:`OperatorVerbs.morgue` are accepted too
Graves = Sequence[str | Job] | None


class Where(TypedDict, total=False):
    """Conditions; a job meets all of them.

    ``text`` is in the id, the task's name, the arguments or payloads (canonical JSON without masked values), the
    context or the last error; ``prefix`` begins the id, ``id_to`` is the last one, ``failures`` the least number,
    ``failures_to`` the greatest one.
    """

    text: str
    task: str
    prefix: str
    id_from: str
    id_to: str
    due_from: datetime | float
    due_before: datetime | float
    failures: int
    failures_to: int
    never_started: bool
    buried_from: datetime | float
    buried_before: datetime | float


class Listing(Where, total=False):
    """Filters of a list of jobs; by default all waiting jobs (or the whole morgue).

    ``state`` is delayed, ready, waiting, reserved, gated or failed (not for the morgue), ``by`` one of its orders,
    ``order`` asc or desc, ``min`` and ``max`` are bounds in the unit of ``by``, ``limit`` (up to 250) is a page's size.
    """

    state: str
    by: str
    order: str
    limit: int
    id: str
    min: datetime | float | str
    max: datetime | float | str


class OperatorVerbs(Base):
    """Operator verbs of the clients."""

    # -- queues ------------------------------------------------------------------------------------------------------

    @verb
    def queues(self) -> Steps[list[Queue]]:
        """Return all queues, with their counts."""
        return [made(Queue, one) for one in (yield from self._get("queues"))["queues"]]

    @verb
    def queue(self, name: str) -> Steps[Queue]:
        """Return one queue, including the values of each shard.

        Raises:
            QueueNotFound: there is no such queue.
        """
        return made(Queue, (yield from self._get("queues", name)))

    @verb
    def create_queue(self, /, name: str, **policy: Any) -> Steps[Queue]:
        """Create a queue: ``kind``, ``shards``, and limits as :meth:`limit_queue` takes them.

        Raises:
            Conflict: it exists with other values, or the project's settings differ.
        """
        return made(Queue, (yield from self._post("queues", body={"name": name, **members(**policy)})))

    @verb
    def limit_queue(self, /, name: str, **limits: Any) -> Steps[Queue]:
        """Change limits of a queue (``max_length``, …, ``starve_after``). None removes one, those not given stay.

        Raises:
            Conflict, QueueNotFound: the limits cannot be changed, or there is no such queue.
        """
        return made(Queue, (yield from self._exchange("PATCH", "queues", name, body=plain(limits))).data)

    @verb
    def delete_queue(self, name: str, *, force: bool = False) -> Steps[None]:
        """Delete a queue; with ``force`` its jobs are lost.

        Raises:
            QueueNotEmpty, QueueNotFound: the queue holds jobs, or there is no such queue.
        """
        yield from self._exchange("DELETE", "queues", name, query={"force": True if force else None})

    @verb
    def pause(self, name: str, direction: str = "both", *, seconds: Seconds | None = None) -> Steps[Queue]:
        """Stop storing new jobs ("in"), handing jobs out ("out"), or both; held jobs continue.

        With ``seconds`` the pause ends by itself.
        """
        body = {"direction": direction, **members(seconds=seconds)}
        return made(Queue, (yield from self._post("queues", name, "pause", body=body)))

    @verb
    def resume(self, name: str, direction: str = "both") -> Steps[Queue]:
        """End a pause."""
        return made(Queue, (yield from self._post("queues", name, "resume", body={"direction": direction})))

    @verb
    def reshard(self, name: str, shards: int) -> Steps[Queue]:
        """Change the number of shards during operation."""
        return made(Queue, (yield from self._post("queues", name, "reshard", body={"shards": shards})))

    # -- jobs --------------------------------------------------------------------------------------------------------

    @listing
    def jobs(self, queue: str, **query: Unpack[Listing]) -> Pages[Job]:
        """Yield all jobs of a list. Pages are fetched as needed; see :class:`Listing`."""
        return self._jobs(("queues", queue, "jobs"), query)

    @listing
    def morgue(self, queue: str, **query: Unpack[Listing]) -> Pages[Job]:
        """Yield all jobs of the morgue. Pages are fetched as needed; see :class:`Listing`."""
        return self._jobs(("queues", queue, "morgue"), query)

    @verb
    def job(self, queue: str, id: str) -> Steps[Job | None]:
        """Return one job; None if there is none (any more)."""
        if id in (".", ".."):  # path normalisation would remove such a segment
            for place, query in (("jobs", {}), ("jobs", {"state": "reserved"}), ("morgue", {})):
                if jobs := (yield from all_items(self._jobs(("queues", queue, place), {"id": id, **query}))):
                    return jobs[0]
            return None
        try:
            return job_of((yield from self._get("queues", queue, "jobs", id)))
        except JobNotFound:
            return None

    @verb
    def graves(self, queue: str, id: str) -> Steps[list[Job]]:
        """Return all records of an id in the morgue."""
        try:
            return (yield from all_items(self._jobs(("queues", queue, "morgue", id), {})))
        except JobNotFound:
            return []

    @verb
    def cancel_job(self, queue: str, id: str) -> Steps[str]:
        """Cancel one job: "cancelled", "stopping" (it is running), or "outbox" (a relay sends it).

        Raises:
            JobNotFound: there is no such job.
        """
        answer = yield from self._exchange("DELETE", "queues", queue, "jobs", id)
        return str(answer.data["outcome"])

    @verb
    def reschedule_job(
        self, queue: str, id: str, *, delay: Seconds | None = None, at: datetime | float | None = None
    ) -> Steps[datetime | None]:
        """Set another due time for one job and return it.

        Raises:
            JobNotFound: there is no such job.
            Conflict: it is running and nothing waits behind it.
        """
        answer = yield from self._exchange("PATCH", "queues", queue, "jobs", id, body=members(delay=delay, at=at))
        return moment(answer.data["due"])

    # -- verbs for many jobs -----------------------------------------------------------------------------------------

    @verb
    def cancel(self, queue: str, ids: Ids = None, *, all: bool = False, where: Where | None = None) -> Steps[Bulk]:
        """Cancel jobs: those of ``ids``, of which running ones are marked to be stopped, or all waiting ones.

        With ``where`` those waiting ones that meet the conditions.
        """
        return self._order(queue, "cancel", ids, all, where)

    @verb
    def reschedule(
        self, queue: str, ids: Sequence[str], *, delay: Seconds | None = None, at: datetime | float | None = None
    ) -> Steps[Bulk]:
        """Set another due time for waiting jobs."""
        return self._order(queue, "reschedule", ids, False, None, delay=delay, at=at)

    @verb
    def run_now(self, queue: str, ids: Ids = None, *, all: bool = False, where: Where | None = None) -> Steps[Bulk]:
        """Make waiting jobs due now: those of ``ids``, all, or those that meet the conditions."""
        return self._order(queue, "run-now", ids, all, where)

    @verb
    def kill_failed(self, queue: str, *, where: Where | None = None) -> Steps[Bulk]:
        """Move failed jobs to the morgue: all, or those that meet the conditions."""
        return self._whole(queue, "kill-failed", _conditions(where))

    @verb
    def delete_failed(self, queue: str, *, where: Where | None = None) -> Steps[Bulk]:
        """Delete failed jobs: all, or those that meet the conditions."""
        return self._whole(queue, "delete-failed", _conditions(where))

    @verb
    def kick(
        self,
        queue: str,
        ids: Graves = None,
        *,
        all: bool = False,
        where: Where | None = None,
        delay: Seconds | None = None,
        per_second: float | None = None,
        replace: bool | None = None,
    ) -> Steps[Bulk]:
        """Move jobs from the morgue back into the queue: those of ``ids``, all, or those that meet conditions.

        Args:
            queue: name of the queue.
            ids: ids or records of the jobs.
            all: all jobs of the morgue.
            where: the conditions.
            delay: delay until they are due; None = due now.
            per_second: spread all jobs at this rate.
            replace: replace a live job of the same id.
        """
        return self._order(queue, "kick", ids, all, where, delay=delay, per_second=per_second, replace=replace)

    @verb
    def discard(
        self,
        queue: str,
        ids: Graves = None,
        *,
        all: bool = False,
        where: Where | None = None,
        older_than: Seconds | None = None,
    ) -> Steps[Bulk]:
        """Delete jobs of the morgue for good: those of ``ids``, or all, or all ``older_than`` a time span.

        With ``where`` those that meet the conditions.
        """
        return self._order(queue, "discard", ids, all, where, older_than=older_than)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _jobs(self, path: tuple[str, ...], query: Mapping[str, Any]) -> Pages[Job]:
        return self._pages(path, "jobs", members(**query), job_of)

    def _order(
        self, queue: str, action: str, ids: Graves, all: bool, where: Where | None, **options: Any
    ) -> Steps[Bulk]:
        if isinstance(ids, (str, bytes)):
            raise TypeError(f"ids are a list, got {ids!r}")
        if ids is None:
            body = {**_conditions(where), **members(all=all or None, **options)}
            return (yield from self._whole(queue, action, body))
        bodies = ({**_selection(chunk), **members(**options)} for chunk in chunks(ids, AT_ONCE))
        results, counts = yield from self._post_each(("queues", queue, action), bodies)
        return Bulk(counts=counts, results=results, seen=len(ids), total=len(ids))

    def _whole(self, queue: str, action: str, body: Mapping[str, Any]) -> Steps[Bulk]:
        """Repeat an action for all jobs until it is complete, because one request may stop before the end."""
        counts: Counter[str] = Counter()
        seen = 0
        while True:
            part = made(Bulk, (yield from self._post("queues", queue, action, body=body)))
            counts.update(part.counts)
            seen += part.seen
            body = {**body, **members(cursor=part.cursor)}
            if part.complete:
                return Bulk(counts=dict(counts), seen=seen, total=max(seen, part.total))


def _conditions(where: Where | None) -> dict[str, Any]:
    return {} if where is None else {"where": members(**where)}


def _selection(some: Sequence[str | Job]) -> dict[str, Any]:
    """Return a selection by ids, or (if any of them is a record of the morgue) by ids and keys."""
    if all(isinstance(one, str) for one in some):
        return {"ids": some}
    return {"jobs": [{"id": one.id, "key": one.key} if isinstance(one, Job) else {"id": one} for one in some]}
