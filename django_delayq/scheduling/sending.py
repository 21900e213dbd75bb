"""Sending of built jobs: a plain job now, or on commit; a durable one as a row that is pushed now, or on commit.

``schedule()``, the pull queue and the HTTP API all send here. Redis is called by :class:`..core.queue.Queue`
only, and rows are pushed by :mod:`..outbox.push`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from django.db import connections as databases

from .. import connections
from ..core.errors import NotConfirmed
from ..core.job import NewJob
from ..core.many import check_together
from ..core.outcomes import ScheduleOutcome
from ..core.records.frames import generation_of
from ..outbox import durability, producer, rows
from ..outbox.producer import call_briefly
from ..signals import emit, job_scheduled
from ..transactions import (
    ON_COMMIT,
    CallDescription,
    OnCommitCall,
    in_transaction,
    log_refused,
)

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from .build import Plan
    from .verbs import JobHandle

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
        (_RowOnCommit if handle.durable else _JobOnCommit)(job).wait(handle.using_db)
        return
    if handle.durable:
        (outcome,) = _push_now(handle.alias, handle.queue, [new])
        _settle(job, outcome)
        if handle.error is not None:
            handle.outcome = ScheduleOutcome.NOT_SENT
            raise handle.error
    else:
        handle.outcome = (broker or connections.broker()).queue(handle.queue).schedule(new)
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
    # Rows of different tasks are written one after the other.
    for (name, task_of_rows), members in groupby(
        jobs, key=lambda job: (job.handle.queue, job.new.task if job.handle.durable else None)
    ):
        group = list(members)
        news = [job.new for job in group]
        if task_of_rows is not None:
            outcomes = _push_now(group[0].handle.alias, name, news)
        else:
            outcomes = broker.queue(name).schedule_many(news, all_or_none=all_or_none)
        for job, outcome in zip(group, outcomes, strict=True):
            _settle(job, outcome)
    for job in jobs if job_scheduled.receivers else ():
        if job.handle.error is None:
            _notify(job.handle)


def send_many(plan: Plan, news: Iterable[NewJob], using: str | None, *, all_or_none: bool = False) -> dict[str, int]:
    """Send jobs of one task and return counts by outcome."""
    name, durable = plan.queue, plan.durable
    if all_or_none:
        news = check_together(() if durable else news, durable=durable)
    alias, waits = durability.check(using) if durable else "", in_transaction(using)
    if not (durable or waits):
        return connections.queue(name).count_many(news, all_or_none=all_or_none)
    what = CallDescription("schedule", name, "", plan.builder.task)
    counts: Counter[str] = Counter()
    for chunk in rows.chunks(news, CHUNK):
        if not waits:
            counts += Counter(_push_now(alias, name, chunk))
            continue
        if durable:
            _insert(alias, name, chunk)
        send_chunk = partial(_send_chunk, what, alias, chunk, time.monotonic(), all_or_none=all_or_none)
        OnCommitCall(send_chunk, what).wait(using)
        counts[ScheduleOutcome.OUTBOX if durable else ON_COMMIT] += len(chunk)
    return dict(counts)


# -- on commit ---------------------------------------------------------------------------------------------------------


class _JobOnCommit(OnCommitCall):
    """Schedule call of a plain job that waits for the commit."""

    __slots__ = ("_called_at", "_job")

    def __init__(self, job: Prepared) -> None:
        new, handle = job
        super().__init__(self._deliver, CallDescription("schedule", handle.queue, handle.id, handle.task))
        self._job, self._called_at = job, time.monotonic()
        handle.generation = generation_of(new)

    def _deliver(self) -> None:
        new, handle = self._job
        _count_wait([new], self._called_at)
        _settle(self._job, call_briefly(lambda broker: broker.queue(handle.queue).schedule(new)))
        _notify(handle)

    def failed(self, error: Exception) -> None:
        """See :meth:`OnCommitCall.failed`; the handle has the error, too."""
        outcome = error.outcomes[0] if isinstance(error, NotConfirmed) else ScheduleOutcome.NOT_SENT
        _settle(self._job, outcome, error)
        super().failed(error)


class _RowOnCommit(_JobOnCommit):
    """Schedule call of a durable job that waits for the commit.

    The first of several in a row pushes the rows of all of them, and each call then reports the result of its own row.
    A row of a savepoint that was rolled back does not exist.
    """

    __slots__ = ("_outcomes", "_place", "_together")

    def __init__(self, job: Prepared) -> None:
        new, handle = job
        _insert(handle.alias, handle.queue, [new])
        super().__init__(job)
        handle.outcome = ScheduleOutcome.OUTBOX
        waiting = databases[handle.alias].run_on_commit  # (savepoints, callback, robust)
        before = waiting[-1][1] if waiting else None
        self._together: list[NewJob] = []
        self._outcomes: dict[int, ScheduleOutcome] = {}
        if isinstance(before, _RowOnCommit):
            self._together, self._outcomes = before._together, before._outcomes
        self._place = len(self._together)
        self._together.append(new)

    def _deliver(self) -> None:
        handle = self._job.handle
        if self._place not in self._outcomes:
            # A test calls callbacks inside its transaction, whose savepoints may still be rolled back.
            places = [self._place] if in_transaction(handle.alias) else range(len(self._together))
            outcomes = producer.send(handle.alias, [self._together[place] for place in places])
            self._outcomes.update(zip(places, outcomes, strict=True))
        _settle(self._job, self._outcomes[self._place])
        if handle.error is not None:
            raise handle.error
        _notify(handle)


def _send_chunk(
    what: CallDescription, alias: str, news: Sequence[NewJob], called_at: float, *, all_or_none: bool
) -> None:
    """Send jobs of schedule_many, or push their rows in the database ``alias``, and log refusals."""
    counts: Mapping[str, int] = {}
    try:
        if alias:
            counts = Counter(producer.send(alias, news))
        else:
            _count_wait(news, called_at)
            counts = call_briefly(lambda broker: broker.queue(what.queue).count_many(news, all_or_none=all_or_none))
    except NotConfirmed as error:
        counts = error.counts
        raise
    finally:
        log_refused(what, counts)


def _count_wait(news: Iterable[NewJob], called_at: float) -> None:
    """Count the wait for the commit as a part of the delay: the due time is fixed at the call."""
    waited_ms = int((time.monotonic() - called_at) * 1000)
    for new in news:
        new.room_ms = 0  # nobody waits for room after a commit
        new.waited(waited_ms)


# -- rows --------------------------------------------------------------------------------------------------------------


def _insert(alias: str, queue: str, news: Sequence[NewJob]) -> bool:
    """Make jobs durable and write their rows; return False if the same request has written them before."""
    for new in news:
        durability.make_durable(new)
    return rows.insert_once(alias, queue, news)


def _push_now(alias: str, queue: str, news: Sequence[NewJob]) -> list[ScheduleOutcome]:
    """Write rows in a transaction of their own, and push them, unless the same request has written them before."""
    if _insert(alias, queue, news):
        return producer.send(alias, news)
    keys = [rows.key_of(new) for new in news]
    waiting = set(rows.waiting(alias).filter(key__in=keys).values_list("key", flat=True))
    return [ScheduleOutcome.OUTBOX if key in waiting else ScheduleOutcome.CREATED for key in keys]


# -- what the caller learns --------------------------------------------------------------------------------------------


def _settle(job: Prepared, outcome: ScheduleOutcome, error: Exception | None = None) -> None:
    handle = job.handle
    if outcome.is_refusal:
        error = connections.swift_broker().queue(handle.queue).refusal(outcome, job.new)
    handle.outcome, handle.error, handle.generation = outcome, error, generation_of(job.new)


def _notify(handle: JobHandle) -> None:
    if job_scheduled.receivers and handle.outcome != ScheduleOutcome.OUTBOX:
        emit(job_scheduled, handle.task, id=handle.id, queue=handle.queue, outcome=handle.outcome, due=handle.due)
