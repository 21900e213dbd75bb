"""Sending of built jobs: at once, after the commit, or beside a row of the outbox.

``schedule()``, the pull queue and the HTTP API all send here. Redis is called by :class:`..core.queue.Queue`
only, and rows are sent by :mod:`..outbox.producer`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from .. import connections
from ..core.errors import NotConfirmed
from ..core.job import NewJob
from ..core.many import check_together
from ..core.outcomes import ScheduleOutcome
from ..core.records.frames import generation_of
from ..core.task import Task
from ..outbox import durability, producer, rows
from ..outbox.producer import OutgoingJob, Result, call_briefly
from ..signals import emit, job_scheduled
from ..transactions import ON_COMMIT, CallDescription, OnCommitCall, in_transaction, log_refused, now_or_on_commit
from .handle import JobHandle

if TYPE_CHECKING:
    from ..connections import DjangoBroker

#: number of jobs of schedule_many that are checked, then sent, together
CHUNK: Final = 5_000


class Prepared(NamedTuple):
    """Built job with the handle of its call."""

    new: NewJob
    handle: JobHandle


def send(job: Prepared, broker: DjangoBroker | None = None) -> None:
    """Send one job and store the outcome in its handle.

    Args:
        broker: receives the job at once, unless it is durable. None = the process's broker, after the commit if a
            transaction is open.

    Raises:
        IdTaken, QueueFull, QueuePaused, QueueUnavailable: the reply of Redis, unless the job is sent after a commit.
            For a durable job only IdTaken, because the relay handles all other errors.
    """
    new, handle = job
    if broker is None and in_transaction(handle.using_db):
        _send_after_commit(job)
        return
    if handle.durable:
        _send_beside_row(job)
    else:
        queue = connections.queue(handle.queue) if broker is None else broker.queue(handle.queue)
        handle.outcome = queue.schedule(new)
        handle.generation = generation_of(new)
    _notify(handle)


def send_at_once(jobs: Sequence[Prepared], broker: DjangoBroker, *, all_or_none: bool = False) -> None:
    """Send jobs in order, with one round trip for consecutive ones of a queue, and store the outcomes in the handles.

    An open transaction is not waited for.

    Args:
        broker: receives the jobs that are not durable.
        all_or_none: see :meth:`.Queue.schedule_many`; the jobs are of one queue, and not durable.

    Raises:
        InvalidJob: these jobs cannot be stored all or none.
        QueueFull, QueueUnavailable: Redis accepted no more; earlier jobs may be stored.
    """
    for (queue, durable, _), members in groupby(jobs, key=_group_key):
        group = list(members)
        news = [job.new for job in group]
        if durable:
            for job, result in zip(group, _send_durable(group[0].handle.alias, queue, news), strict=True):
                _settle(job, result)
            continue
        opened = broker.queue(queue)
        outcomes = opened.schedule_many(news, all_or_none=all_or_none)
        for (new, handle), outcome in zip(group, outcomes, strict=True):
            handle.outcome, handle.generation = outcome, generation_of(new)
            if outcome.is_refusal:
                handle.error = opened.refusal(outcome, new)
    for job in jobs if job_scheduled.receivers else ():
        if job.handle.error is None:
            _notify(job.handle)


def send_many(
    task: Task, queue: str, news: Iterator[NewJob], using: str | None, *, all_or_none: bool = False
) -> dict[str, int]:
    """Send jobs without rows and return counts by outcome."""
    if all_or_none:
        news = iter(check_together(news))
    if not in_transaction(using):
        return connections.queue(queue).count_many(news, all_or_none=all_or_none)
    description = CallDescription("schedule", queue, "", task)
    counts: Counter[str] = Counter()
    while chunk := [OutgoingJob(queue, new, time.monotonic()) for new in islice(news, CHUNK)]:

        def deliver(outgoing: Sequence[OutgoingJob] = chunk) -> None:
            now = time.monotonic()
            ready = [one.packed(now) for one in outgoing]

            def send_ready(broker: DjangoBroker) -> dict[str, int]:
                return broker.queue(queue).count_many(ready, all_or_none=all_or_none)

            try:
                log_refused(description, call_briefly(send_ready))
            except NotConfirmed as error:
                log_refused(description, error.counts)
                raise

        now_or_on_commit(deliver, description, using=using)
        counts[ON_COMMIT] += len(chunk)
    return dict(counts)


def send_many_durable(task: Task, queue: str, news: Iterable[NewJob], using: str | None) -> dict[str, int]:
    """Write a row for each of the jobs, send them and return counts by outcome."""
    alias = durability.check(using)
    description = CallDescription("schedule", queue, "", task)
    counts: Counter[str] = Counter()
    for chunk in rows.chunks(news, CHUNK):
        if not in_transaction(using):
            counts += Counter(result.outcome for result in _send_durable(alias, queue, chunk))
            continue
        outgoing = [_outgoing(queue, new, durable=True) for new in chunk]
        rows.insert(alias, queue, chunk)

        def deliver(outgoing: Sequence[OutgoingJob] = outgoing) -> None:
            log_refused(description, Counter(result.outcome for result in producer.send(alias, outgoing)))

        now_or_on_commit(deliver, description, using=using)
        counts[ScheduleOutcome.OUTBOX] += len(chunk)
    return dict(counts)


class JobOnCommit(OnCommitCall):
    """Schedule call that waits for the commit."""

    __slots__ = ("_job", "_outgoing")

    def __init__(self, job: Prepared, outgoing: OutgoingJob) -> None:
        handle = job.handle
        super().__init__(_no_op, CallDescription("schedule", handle.queue, handle.id, handle.task))
        self._job = job
        self._outgoing = outgoing

    def travels_with(self, first: OnCommitCall) -> bool:
        return isinstance(first, JobOnCommit)

    def deliver(self, batch: Sequence[JobOnCommit]) -> None:
        """Send the jobs of ``batch``. An error of one job does not affect the others."""
        results = producer.send(self._job.handle.alias, [call._outgoing for call in batch])
        for call, result in zip(batch, results, strict=True):
            _settle(call._job, result)
            if result.error is None:
                _notify(call._job.handle)
            else:
                call.failed(result.error)

    def failed(self, error: Exception) -> None:
        """See :meth:`OnCommitCall.failed`; the handle has the error, too."""
        handle = self._job.handle
        if not isinstance(error, NotConfirmed):
            handle.outcome = ScheduleOutcome.NOT_SENT
        handle.error = error
        super().failed(error)


def _send_beside_row(job: Prepared) -> None:
    (result,) = _send_durable(job.handle.alias, job.handle.queue, [job.new])
    _settle(job, result)
    if result.error is not None:
        job.handle.outcome = ScheduleOutcome.NOT_SENT
        raise result.error


def _send_after_commit(job: Prepared) -> None:
    new, handle = job
    outgoing = _outgoing(handle.queue, new, durable=handle.durable)
    handle.generation = generation_of(new)
    if handle.durable:
        handle.outcome = ScheduleOutcome.OUTBOX
        rows.insert(handle.alias, handle.queue, [new])
    JobOnCommit(job, outgoing).wait(handle.using_db)


def _send_durable(alias: str, queue: str, news: Sequence[NewJob]) -> list[Result]:
    outgoing = [_outgoing(queue, new, durable=True) for new in news]
    if rows.insert_once(alias, queue, news):
        return producer.send(alias, outgoing)
    # The same request has written them before. A row that does not exist any more was sent.
    states = rows.states(alias, [job.key for job in outgoing if job.key is not None])
    results = iter(producer.send(alias, [job for job in outgoing if job.key in states]))
    return [next(results) if job.key in states else Result(ScheduleOutcome.CREATED) for job in outgoing]


def _outgoing(queue: str, new: NewJob, *, durable: bool) -> OutgoingJob:
    if not durable:
        return OutgoingJob(queue, new, time.monotonic())
    durability.make_durable(new)
    return OutgoingJob(queue, new, time.monotonic(), rows.key_of(new))


def _group_key(job: Prepared) -> tuple[str, bool, str]:
    """Return the group key of a job: jobs with the same key are sent together.

    Rows of different tasks are written one after the other.
    """
    handle = job.handle
    return handle.queue, handle.durable, job.new.task if handle.durable else ""


def _settle(job: Prepared, result: Result) -> None:
    handle = job.handle
    handle.outcome, handle.error = result.outcome, result.error
    handle.generation = generation_of(job.new)


def _no_op() -> None:
    return None


def _notify(handle: JobHandle) -> None:
    if job_scheduled.receivers and handle.outcome != ScheduleOutcome.OUTBOX:
        emit(job_scheduled, handle.task, id=handle.id, queue=handle.queue, outcome=handle.outcome, due=handle.due)
