"""Storing of a request's jobs in Redis or the outbox, and the response.

Like :mod:`django_delayq.scheduling.sending`, except for the transaction: an API request is never inside one, and its
response reports what was stored. Durable jobs get their rows first; if Redis is unavailable then, the relay sends them.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

from django.db import IntegrityError, transaction

from ..access import problems
from ..core.errors import QueueFull, QueuePaused, QueueUnavailable
from ..core.queue import Queue
from ..core.requests import request_for
from ..core.task import registry
from ..models import InboxEntry
from ..outbox import durability, fast_path, rows
from ..outbox.fast_path import OUTBOX, OutgoingJob, Result
from ..settings.conf import conf
from ..signals import emit, job_scheduled
from . import brokers
from .entries import Reader, ValidJob
from .parsing import too_many
from .values import moment

#: outcomes of jobs that are not stored
REFUSED: Final = ("taken", "exists", "full", "paused")
#: outcome of jobs that a schedule middleware did not pass on
SKIPPED: Final = "skipped"
#: outcomes that store nothing new
_NOTHING_NEW: Final = ("ignored", SKIPPED)


def kind_of(name: str) -> str:
    """Return the kind of the queue in the URL.

    A queue named in the settings or by a task of the API need not exist yet.

    Raises:
        Problem: there is no such queue.
        QueueUnavailable: the queue is not known here, and Redis is unavailable.
    """
    named = name in conf().queues or any(task.options.api and task.options.queue == name for task in registry)
    try:
        found = brokers.broker().existing(name)
    except QueueUnavailable:
        if not named:
            raise
        found = None  # durable jobs can still be accepted
    if found is not None:
        return found.kind
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
    status = 202 if handle.outcome == OUTBOX else 200 if handle.outcome in _NOTHING_NEW else 201
    due = None if handle.outcome == SKIPPED else moment(handle.due.timestamp() * 1000)
    return status, {"id": handle.id or None, "queue": handle.queue, "outcome": handle.outcome, "due": due}


def produce_many(entries: Any, reader: Reader, queue: str) -> tuple[int, dict[str, Any]]:
    """Store many jobs and return ``(status, response body)``.

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
    told = iter(send([asked for asked in read if asked is not None]))
    outcomes = [SKIPPED if asked is None else next(told) for asked in read]
    counts = Counter(outcomes)
    if counts["paused"] == len(outcomes):
        raise QueuePaused(f"queue {queue!r} is paused for new jobs; resume it, or try again later")
    if counts["full"] == len(outcomes):
        raise QueueFull(f"queue {queue!r} has no room; let the workers catch up, or raise its max_length")
    results = [
        {"id": None if asked is None else asked.new.id, "outcome": outcome}
        for asked, outcome in zip(read, outcomes, strict=True)
    ]
    return 202 if counts[OUTBOX] == len(outcomes) else 200, {"results": results, "counts": dict(counts)}


def _send_one(asked: ValidJob) -> str:
    if asked.durable:
        (result,) = _send_durable([asked])
        if result.error is not None:
            raise result.error
        outcome = result.outcome
    else:
        outcome = brokers.broker().queue(asked.queue).schedule(asked.new)
    _tell(asked, outcome)
    return outcome


def send(jobs: Sequence[ValidJob]) -> list[str]:
    """Store jobs in order, in as few round trips as possible, and return their outcomes.

    Raises:
        QueueFull, QueueUnavailable: Redis accepted no more; earlier jobs may be stored.
    """
    outcomes: list[str] = []
    for (queue, durable, _), run in groupby(jobs, key=_company):
        some = list(run)
        if durable:
            outcomes += [result.outcome for result in _send_durable(some)]
        else:
            outcomes += _store(brokers.broker().queue(queue), some)
    if job_scheduled.receivers:
        for asked, outcome in zip(jobs, outcomes, strict=True):
            if outcome not in REFUSED:
                _tell(asked, outcome)
    return outcomes


def _company(asked: ValidJob) -> tuple[str, bool, str]:
    """Return the group key of a job: jobs with the same key are sent together.

    Rows of different tasks are written one after the other.
    """
    return asked.queue, asked.durable, asked.new.task if asked.durable else ""


def _store(queue: Queue, some: list[ValidJob]) -> list[str]:
    return queue.schedule_many([asked.new for asked in some])


def _send_durable(some: Sequence[ValidJob]) -> list[fast_path.Result]:
    alias = durability.check(None)
    queue = some[0].queue
    outgoing = []
    for asked in some:
        durability.make_durable(asked.new, queue)
        outgoing.append(OutgoingJob(queue, asked.new, time.monotonic(), rows.key_of(asked.new)))
    keys = [job.key for job in outgoing if job.key is not None]
    left = set(keys) if _write_rows(alias, queue, some) else rows.states(alias, keys).keys()
    results = iter(fast_path.send(alias, [job for job in outgoing if job.key in left]))
    # A row that was written before and is gone by now was sent.
    return [next(results) if job.key in left else Result("created") for job in outgoing]


def _write_rows(alias: str, queue: str, some: Sequence[ValidJob]) -> bool:
    """Write the rows of durable jobs; return False if this very request has written them before."""
    news = [asked.new for asked in some]
    if not news[0].repeatable:
        rows.insert(alias, queue, news)
        return True
    key = uuid.UUID(bytes=request_for(news))
    entry = InboxEntry(key=key, queue=queue, job_id=news[0].id, task=news[0].task)
    try:
        with transaction.atomic(using=alias):
            entry.save(using=alias, force_insert=True)
            rows.insert(alias, queue, news)
    except IntegrityError:
        if not InboxEntry.objects.using(alias).filter(pk=key).exists():
            raise
        return False
    return True


def _tell(asked: ValidJob, outcome: str) -> None:
    if job_scheduled.receivers and outcome != OUTBOX:
        due = datetime.fromtimestamp((asked.new.due_ms or time.time() * 1000 + (asked.new.delay_ms or 0)) / 1000, UTC)
        emit(job_scheduled, asked.task, id=asked.new.id, queue=asked.queue, outcome=outcome, due=due)
