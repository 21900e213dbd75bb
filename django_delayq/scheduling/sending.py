"""Sending of built jobs: a plain job now, or on commit; a durable one as a row that is pushed now, or on commit.

``schedule()``, the pull queue and the HTTP API all send here. Redis is called by :class:`..core.queue.Queue`
only, and rows are pushed by :mod:`..outbox.push`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS, connections as databases

from .. import connections
from ..core.errors import NotConfirmed
from ..core.job import NewJob
from ..core.many import check_together
from ..core.outcomes import ScheduleOutcome
from ..core.records.frames import generation_of
from ..outbox import durability, inbox, producer, rows
from ..signals import emit, job_scheduled
from ..transactions import ON_COMMIT, CallDescription, OnCommitCall, in_transaction, log_refused

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
        what = CallDescription("schedule", handle.queue, handle.id, handle.task)
        (_RowsOnCommit if handle.durable else _JobsOnCommit)(what, handle.using_db, news=[new], handle=handle).wait()
        return
    if handle.durable:
        _settle(job, _push_now(handle.alias, handle.queue, [new])[0])
        if handle.error is not None:
            handle.outcome = ScheduleOutcome.NOT_SENT
            raise handle.error
    else:
        _settle(job, (broker or connections.broker()).queue(handle.queue).schedule(new))
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
        if waits:
            kind = _RowsOnCommit if durable else _JobsOnCommit
            kind(what, using, news=chunk, all_or_none=all_or_none).wait()
            counts[ScheduleOutcome.OUTBOX if durable else ON_COMMIT] += len(chunk)
        else:
            counts += Counter(_push_now(alias, name, chunk))
    return dict(counts)


# -- on commit ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _JobsOnCommit(OnCommitCall):
    """Plain jobs of one call that wait for the commit: a single one with its handle, or a chunk of schedule_many."""

    news: Sequence[NewJob] = ()
    handle: JobHandle | None = None
    all_or_none: bool = False
    outcomes: Sequence[ScheduleOutcome] = ()
    called_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.handle is not None:
            self.handle.generation = generation_of(self.news[0])

    def send(self) -> None:
        """Send the jobs, and report what became of them."""
        try:
            self._call()
        except NotConfirmed as error:
            self.outcomes = error.outcomes
            raise
        finally:
            if self.handle is None:
                log_refused(self.what, Counter(self.outcomes))
        if self.handle is not None:
            _settle(Prepared(self.news[0], self.handle), self.outcomes[0])
            if self.handle.error is not None:
                raise self.handle.error
            _notify(self.handle)

    def _call(self) -> None:
        # The due time is fixed at the call, so the wait for the commit is a part of the delay.
        waited_ms = int((time.monotonic() - self.called_at) * 1000)
        for new in self.news:
            new.room_ms = 0  # nobody waits for room after a commit
            new.waited(waited_ms)

        def call(broker: DjangoBroker) -> Sequence[ScheduleOutcome]:
            queue = broker.queue(self.what.queue)
            if self.handle is not None:
                return [queue.schedule(self.news[0])]
            return queue.schedule_many(self.news, all_or_none=self.all_or_none)

        self.outcomes = producer.call_briefly(call)

    def failed(self, error: Exception) -> None:
        """See :meth:`OnCommitCall.failed`; the handle has the error, too."""
        if self.handle is not None:
            outcome = error.outcomes[0] if isinstance(error, NotConfirmed) else ScheduleOutcome.NOT_SENT
            _settle(Prepared(self.news[0], self.handle), outcome, error)
        super().failed(error)


@dataclass(eq=False)
class _RowsOnCommit(_JobsOnCommit):
    """Durable jobs of one call: their rows are written now, and pushed after the commit.

    The first of several such calls in a row pushes the rows of all of them, and each call then reports its own. A row
    of a savepoint that was rolled back does not exist.
    """

    def __post_init__(self) -> None:
        self.alias = self.using or DEFAULT_DB_ALIAS
        inbox.insert_once(self.alias, self.what.queue, self.news)
        super().__post_init__()
        if self.handle is not None:
            self.handle.outcome = ScheduleOutcome.OUTBOX
        waiting = databases[self.alias].run_on_commit  # (savepoints, callback, robust)
        before = waiting[-1][1] if waiting else None
        self._together: list[_RowsOnCommit] = before._together if isinstance(before, _RowsOnCommit) else []
        self._together.append(self)

    def _call(self) -> None:
        if not self.outcomes:
            # A test calls callbacks inside its transaction, whose savepoints may still be rolled back.
            calls = [self] if in_transaction(self.alias) else self._together
            outcomes = iter(producer.send(self.alias, [new for call in calls for new in call.news]))
            for call in calls:
                call.outcomes = list(islice(outcomes, len(call.news)))


# -- rows --------------------------------------------------------------------------------------------------------------


def _push_now(alias: str, queue: str, news: Sequence[NewJob]) -> list[ScheduleOutcome]:
    """Write rows in a transaction of their own, and push them, unless the same request has written them before."""
    if inbox.insert_once(alias, queue, news):
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
