"""Storing of a request's jobs in Redis or the outbox, and the response.

An API request never waits for a transaction, and its response reports what was stored. Durable jobs get their rows
first; if Redis is unavailable then, the relay sends them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from .. import connections
from ..access import problems
from ..core.errors import QueueFull, QueueUnavailable
from ..core.many import check_together
from ..core.outcomes import ScheduleOutcome
from ..core.task import registry
from ..core.times import iso_of
from ..outbox import durability
from ..scheduling.sending import Prepared, send, send_at_once
from ..settings.conf import conf
from .entries import Reader
from .parsing import too_many

#: outcomes that store nothing new
_NOTHING_NEW: Final = (ScheduleOutcome.IGNORED, ScheduleOutcome.SKIPPED)


def kind_of(name: str) -> str:
    """Return the kind of the queue in the URL.

    A queue named in the settings or by a task of the API need not exist yet.

    Raises:
        Problem: there is no such queue.
        QueueUnavailable: the queue is not known here, and Redis is unavailable.
    """
    named = name in conf().queues or any(task.options.api and task.options.queue == name for task in registry)
    try:
        opened = connections.hurried_broker().existing(name)
    except QueueUnavailable:
        if not named:
            raise
        opened = None  # durable jobs can still be accepted
    if opened is not None:
        return opened.kind
    if not named:
        raise problems.queue_not_found(name[:64])
    return conf().queue(name).kind


def produce_one(entry: Any, reader: Reader) -> tuple[int, dict[str, Any]]:
    """Store one job and return ``(status, response body)``.

    Raises:
        Problem: the entry is invalid.
        IdTaken, QueueFull, QueuePaused, QueueUnavailable: Redis did not accept the job.
    """
    handle = reader.one(entry, _send_one)
    status = 202 if handle.outcome == ScheduleOutcome.OUTBOX else 200 if handle.outcome in _NOTHING_NEW else 201
    due = None if handle.outcome == ScheduleOutcome.SKIPPED else iso_of(handle.due.timestamp() * 1000)
    return status, {"id": handle.id or None, "queue": handle.queue, "outcome": handle.outcome, "due": due}


def produce_many(entries: Any, reader: Reader, queue: str, *, all_or_none: bool = False) -> tuple[int, dict[str, Any]]:
    """Store many jobs and return ``(status, response body)``.

    Args:
        entries: the jobs of the request.
        reader: reads them.
        queue: name of the queue.
        all_or_none: see :meth:`.Queue.schedule_many`.

    Raises:
        Problem: some entries are invalid.
        QueuePaused, QueueFull: none of the jobs was accepted.
        QueueFull, QueueUnavailable: Redis accepted no more; some may be stored.
    """
    if not isinstance(entries, list) or not entries:
        text = "jobs is a list with at least one job"
        raise problems.invalid(text, ("/jobs", text))
    most = conf().api.max_jobs
    if len(entries) > most:
        raise too_many(most, "jobs")
    read = reader.many(entries)
    jobs = [job for job in read if job is not None]
    _check_durable(jobs)
    if all_or_none:
        check_together((job.new for job in jobs), durable=any(job.handle.durable for job in jobs))
    send_at_once(jobs, connections.hurried_broker(), all_or_none=all_or_none)
    outcomes = [ScheduleOutcome.SKIPPED if job is None else job.handle.outcome for job in read]
    counts = Counter(outcomes)
    if counts[ScheduleOutcome.PAUSED] == len(outcomes):
        raise connections.hurried_broker().queue(queue).paused_error()
    if counts[ScheduleOutcome.FULL] and counts.keys() <= {ScheduleOutcome.FULL, ScheduleOutcome.WITHHELD}:
        raise QueueFull(f"queue {queue!r} has no room; let the workers catch up, or raise its max_length")
    results = [
        {"id": None if job is None else job.handle.id, "outcome": outcome}
        for job, outcome in zip(read, outcomes, strict=True)
    ]
    return 202 if counts[ScheduleOutcome.OUTBOX] == len(outcomes) else 200, {"results": results, "counts": dict(counts)}


def _send_one(job: Prepared) -> None:
    _check_durable([job])
    send(job, connections.hurried_broker())


def _check_durable(jobs: Sequence[Prepared]) -> None:
    if any(job.handle.durable for job in jobs):
        durability.check(None)
