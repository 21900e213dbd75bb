"""Delivery of checked jobs to Redis: at once, after the commit, or through the outbox."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from .. import connections
from ..core.job import NewJob
from ..core.records.frames import generation_of
from ..core.task import Task
from ..outbox import durability, fast_path, rows
from ..outbox.fast_path import OUTBOX, OutgoingJob
from ..signals import emit, job_scheduled
from ..transactions import ON_COMMIT, CallDescription, OnCommitCall, in_transaction, log_refused, now_or_on_commit
from .handle import JobHandle

#: number of jobs of schedule_many that are checked, then sent, together
CHUNK: Final = 5_000


def send(task: Task, new: NewJob, handle: JobHandle) -> None:
    """Send one job and store the outcome in the handle.

    Raises:
        IdTaken, QueueFull, QueuePaused, QueueUnavailable: the reply of Redis, unless the job is sent after a commit.
            For a durable job only IdTaken, because the relay handles all other errors.
    """
    late = in_transaction(handle.using_db)
    if not (late or handle.durable):
        handle.outcome = connections.queue(handle.queue).schedule(new)
        handle.generation = generation_of(new)
    else:
        outgoing = _outgoing(handle.queue, new, durable=handle.durable)
        handle.generation = generation_of(new)
        if handle.durable:
            handle.outcome = OUTBOX
            rows.insert(handle.alias, handle.queue, [new])
        if late:
            LateJob(task, handle, outgoing).wait(handle.using_db)
            return
        (result,) = fast_path.send(handle.alias, [outgoing])
        if result.error is not None:
            handle.outcome, handle.error = "not_sent", result.error
            raise result.error
        handle.outcome, handle.generation = result.outcome, generation_of(new)
    _tell_scheduled(task, handle)


def send_many(task: Task, queue: str, news: Iterator[NewJob], using: str | None) -> dict[str, int]:
    """Send jobs without rows and return counts by outcome."""
    if not in_transaction(using):
        return connections.queue(queue).count_many(news)
    what = CallDescription("schedule", queue, "", task)
    counts: Counter[str] = Counter()
    while chunk := [OutgoingJob(queue, new, time.monotonic()) for new in islice(news, CHUNK)]:

        def deliver(outgoing: Sequence[OutgoingJob] = chunk) -> None:
            now = time.monotonic()
            ready = [one.packed(None, now) for one in outgoing]
            log_refused(what, fast_path.ask(lambda broker: broker.queue(queue).count_many(ready)))

        now_or_on_commit(deliver, what, using=using)
        counts[ON_COMMIT] += len(chunk)
    return dict(counts)


def send_many_durable(task: Task, queue: str, news: Iterable[NewJob], using: str | None) -> dict[str, int]:
    """Write a row for each of the jobs, send them and return counts by outcome."""
    alias = durability.check(using)
    what = CallDescription("schedule", queue, "", task)
    counts: Counter[str] = Counter()
    for chunk in rows.chunks(news, CHUNK):
        outgoing = [_outgoing(queue, new, durable=True) for new in chunk]
        rows.insert(alias, queue, chunk)
        if not in_transaction(using):
            counts += Counter(result.outcome for result in fast_path.send(alias, outgoing))
            continue

        def deliver(outgoing: Sequence[OutgoingJob] = outgoing) -> None:
            log_refused(what, Counter(result.outcome for result in fast_path.send(alias, outgoing)))

        now_or_on_commit(deliver, what, using=using)
        counts[OUTBOX] += len(chunk)
    return dict(counts)


class LateJob(OnCommitCall):
    """Schedule call that waits for the commit."""

    __slots__ = ("_handle", "_outgoing", "_task")

    def __init__(self, task: Task, handle: JobHandle, outgoing: OutgoingJob) -> None:
        super().__init__(_nothing, CallDescription("schedule", handle.queue, handle.id, task))
        self._task = task
        self._handle = handle
        self._outgoing = outgoing

    def travels_with(self, first: OnCommitCall) -> bool:
        return isinstance(first, LateJob)

    def deliver(self, batch: Sequence[LateJob]) -> None:
        """Send the jobs of ``batch``. An error of one job does not affect the others."""
        results = fast_path.send(self._handle.alias, [late._outgoing for late in batch])
        for late, result in zip(batch, results, strict=True):
            late._heard(result)

    def _heard(self, result: fast_path.Result) -> None:
        if result.error is not None:
            self.failed(result.error)
            return
        self._handle.outcome, self._handle.generation = result.outcome, generation_of(self._outgoing.new)
        _tell_scheduled(self._task, self._handle)

    def failed(self, error: Exception) -> None:
        self._handle.outcome, self._handle.error = "not_sent", error
        super().failed(error)


def _outgoing(queue: str, new: NewJob, *, durable: bool) -> OutgoingJob:
    if not durable:
        return OutgoingJob(queue, new, time.monotonic())
    durability.make_durable(new, queue)
    return OutgoingJob(queue, new, time.monotonic(), rows.key_of(new))


def _nothing() -> None:
    return None


def _tell_scheduled(task: Task, handle: JobHandle) -> None:
    if job_scheduled.receivers and handle.outcome != OUTBOX:
        emit(job_scheduled, task, id=handle.id, queue=handle.queue, outcome=handle.outcome, due=handle.due)
