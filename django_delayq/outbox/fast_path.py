"""Fast path after a commit, while a request waits: send to Redis with a short timeout, or leave it to the relay.

The same protocol as the relay's (:mod:`.protocol`), with less patience: the rows of jobs that belong together are
claimed with one UPDATE, the jobs sent in one round trip, and the rows settled with one more UPDATE. A row that was
changed while it was being sent (cancelled, rescheduled) is corrected at once.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from django.db import DatabaseError

from ..core.errors import DelayQError, Misconfigured, NotConfirmed, QueueFull, QueuePaused, QueueUnavailable
from ..core.job import NewJob
from ..core.outcomes import ScheduleOutcome
from ..core.records.frames import generation_of
from . import rows
from .producer import brief_claim, call_briefly
from .protocol import FREE, UNSENT, ChangedRow, Claim, RowResult, correct, row_result_of

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.queue import Queue

logger: Final = logging.getLogger("django_delayq.outbox")


@dataclass(slots=True, eq=False)
class OutgoingJob:
    """Job to be sent to Redis.

    Attributes:
        queue: the queue's name.
        new: the job.
        called_at: time of the call (``time.monotonic()``); the delay of a job without a row counts from then on.
        key: the key of its row; None for a job that has none.
    """

    queue: str
    new: NewJob
    called_at: float
    key: uuid.UUID | None = None

    def packed(self, row: rows.UnsentRow | None, now: float) -> NewJob:
        """Return the job in the form to send at ``now`` (``time.monotonic()``, the same for all jobs sent together).

        The due time is fixed at the call, so the wait for the commit is part of the delay.
        """
        new = self.new
        new.room_ms = 0  # nobody waits for room after a commit, and the relay repeats the call of a durable job
        if row is not None:
            when = row.due.after(now - row.read_at)
            new.due_ms, new.delay_ms = when["due_ms"], when["delay_ms"]
        else:
            new.waited(int((now - self.called_at) * 1000))
            self.called_at = now
        return new


@dataclass(frozen=True, slots=True)
class Result:
    """Result of sending a job: its outcome, and the error if Redis did not accept, or not confirm it."""

    outcome: ScheduleOutcome
    error: Exception | None = None

    @classmethod
    def of(cls, queue: Queue, new: NewJob, outcome: ScheduleOutcome) -> Result:
        """Return the result of a job without a row."""
        return cls(outcome, queue.refusal(outcome, new) if outcome.is_refusal else None)


def send(alias: str, jobs: Sequence[OutgoingJob]) -> list[Result]:
    """Send jobs in order, with one round trip for consecutive jobs of one queue.

    Args:
        alias: database of their rows, which are committed.
    """
    results: list[Result] = []
    for _, group in groupby(jobs, key=lambda job: job.queue):
        for chunk in rows.chunks(group, rows.TOGETHER):
            results += _SendBatch(alias, chunk).send()
    return results


class _SendBatch:
    """Batch of jobs that are sent together to one queue: claim their rows, send, settle the rows."""

    def __init__(self, alias: str, jobs: Sequence[OutgoingJob]) -> None:
        self.alias = alias
        self.jobs = jobs
        self.queue = jobs[0].queue
        self.keys = [job.key for job in jobs if job.key is not None]
        self.results: dict[int, Result] = {}
        #: the claimed rows, and the results of sending them by ``pk``
        self.claimed: dict[uuid.UUID, rows.UnsentRow] = {}
        self.row_results: dict[int, RowResult] = {}

    def send(self) -> list[Result]:
        """Send the batch. Return the result of each job."""
        try:
            call_briefly(self._deliver, in_database=len(self.keys) == len(self.jobs))
        except Exception as error:
            for place, job in enumerate(self.jobs):
                not_sent = (
                    Result(ScheduleOutcome.NOT_SENT, error) if job.key is None else Result(ScheduleOutcome.OUTBOX)
                )
                self.results.setdefault(place, not_sent)
            if not isinstance(error, DelayQError):
                logger.exception("jobs of queue %s were not sent after the commit", self.queue)
        return [self.results[place] for place in range(len(self.jobs))]

    def _deliver(self, broker: DjangoBroker) -> None:
        # An unavailable Redis is detected here, before anything is claimed.
        claim = brief_claim(self.alias, broker) if self.keys else None
        if claim is not None:
            self._take(claim)
        places = [place for place in range(len(self.jobs)) if place not in self.results]
        if not places:
            return
        live = broker.queue(self.queue)
        try:
            self._send(live, places, claim)
        except (QueueFull, QueuePaused, Misconfigured):
            self._settle(live, claim)  # jobs without a reply were certainly not stored by Redis
            raise
        self._settle(live, claim)

    def _take(self, claim: Claim) -> None:
        """Claim the rows. Jobs whose rows cannot be claimed get their results here."""
        try:
            ordered = any(job.key is not None and not job.new.fresh for job in self.jobs)
            claim.take(rows.unsent(self.alias, self.keys, ordered=ordered))
            claimed = rows.read(claim.held(key__in=self.keys))
            self.claimed = {key: row for key, row in claimed.items() if row.state == "unsent"}
            # Others were changed by another process at this very moment.
            claim.write(UNSENT, [row.pk for row in claimed.values() if row.state != "unsent"])
            missing = [key for key in self.keys if key not in self.claimed]
            states = rows.states(self.alias, missing) if missing else {}
        except DatabaseError as error:
            logger.warning("the outbox of database %s cannot be used after the commit: %s", self.alias, error)
            self.claimed, states = {}, dict.fromkeys(self.keys, "unsent")
        for place, job in enumerate(self.jobs):
            if job.key is not None and job.key not in self.claimed:
                self.results[place] = Result(_outcome_of_state(states.get(job.key)))

    # -- Redis ---------------------------------------------------------------------------------------------------------

    def _send(self, live: Queue, places: list[int], claim: Claim | None) -> None:
        if claim is None:
            self._call(live, places, None)
            return
        late = self._call(live, places, claim.deadline_ms)
        if late:
            claim.clock.forget()
            if not claim.is_over:
                late = self._call(live, late, claim.deadline_ms)
        plain = [place for place in late if self.jobs[place].key is None]
        if plain:  # these have no deadline of their own
            self._call(live, plain, None)
        for place in late:
            self.results.setdefault(place, Result(ScheduleOutcome.OUTBOX))

    def _call(self, live: Queue, places: list[int], deadline: float | None) -> list[int]:
        """Send one call. Return the positions of the jobs for which it came too late."""
        jobs, now = [self.jobs[place] for place in places], time.monotonic()
        news = [job.packed(self.claimed.get(job.key) if job.key is not None else None, now) for job in jobs]
        if len(news) == 1 and deadline is None:
            self.results[places[0]] = _send_one(live, news[0])
            return []
        late, missing = [], None
        try:
            outcomes: Sequence[ScheduleOutcome] = live.schedule_many(news, not_after_ms=deadline)
        except NotConfirmed as error:
            outcomes, missing = error.outcomes, error
        for index, (place, new, outcome) in enumerate(zip(places, news, outcomes, strict=True)):
            if outcome is ScheduleOutcome.LATE:
                late.append(place)
                continue
            result, key = Result.of(live, new, outcome), self.jobs[place].key
            if missing is not None and index in missing.unconfirmed:
                result = (
                    Result(outcome, NotConfirmed.because(missing.reason, new.id))
                    if key is None
                    else Result(ScheduleOutcome.OUTBOX)
                )
                if key is not None:
                    self.row_results[self.claimed[key].pk] = FREE
            elif key is not None:
                row_result = row_result_of(outcome)
                self.row_results[self.claimed[key].pk] = UNSENT if row_result is FREE else row_result
                if outcome.is_refusal_for_now:
                    result = Result(ScheduleOutcome.OUTBOX)
                elif outcome is ScheduleOutcome.KNOWN:  # a relay was faster
                    result = Result(ScheduleOutcome.CREATED)
            self.results[place] = result
        return late

    # -- rows, after sending -------------------------------------------------------------------------------------------

    def _settle(self, live: Queue, claim: Claim | None) -> None:
        """Write the results. If that fails, the relay finds the rows, and Redis answers that it knows the jobs."""
        if claim is None:
            return
        try:
            changed = claim.settle(self.claimed.values(), self.row_results, UNSENT)
            if changed:
                self._correct(live, claim, changed)
        except (DatabaseError, DelayQError) as error:
            logger.warning("the outbox of database %s is left to the relay: %s", self.alias, error)

    def _correct(self, live: Queue, claim: Claim, changed: set[int]) -> None:
        """Correct jobs whose rows another process has changed, which left Redis to the holder of the claim."""
        now = rows.read(claim.held(pk__in=changed, state__in=["cancelled", "moved"]))
        for job in self.jobs:
            if job.key is not None and job.key in now:
                new, row = job.new, now[job.key]
                due = row.due.after(time.monotonic() - row.read_at) if row.state == "moved" else None
                result = correct(live, ChangedRow(new.id, new.task, generation_of(new), due), claim.deadline_ms)
                claim.settle([row], {row.pk: result})


def _send_one(live: Queue, new: NewJob) -> Result:
    """Send a single plain job, which needs less work."""
    try:
        return Result(live.schedule(new))
    except NotConfirmed as error:
        return Result(error.outcomes[0], error)
    except DelayQError as error:
        if isinstance(error, QueueUnavailable) and not isinstance(error, QueuePaused):
            raise
        return Result(ScheduleOutcome.NOT_SENT, error)


def _outcome_of_state(state: str | None) -> ScheduleOutcome:
    """Return the outcome of a job whose row must not be sent by this process."""
    if state is None or state == "cancelled":
        return ScheduleOutcome.IGNORED
    return ScheduleOutcome.OUTBOX if state in ("unsent", "moved") else ScheduleOutcome.CREATED
