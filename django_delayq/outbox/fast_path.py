"""Fast path after a commit, while a request waits: send to Redis with a short timeout, or leave it to the relay.

The same protocol as the relay's (:mod:`.protocol`), with less patience: the rows of jobs that belong together are
claimed with one UPDATE, the jobs sent in one round trip, and the rows settled with one more UPDATE. A row that was
changed while it was being sent (cancelled, rescheduled) is corrected at once.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from django.db import DatabaseError

from ..core.errors import DelayQError, Misconfigured, QueueFull, QueuePaused, QueueUnavailable
from ..core.job import NewJob
from ..core.records.schedule_frames import generation_of
from ..core.schedule_outcome import ScheduleOutcome
from . import rows
from .producer import SendingTime, call_briefly
from .protocol import FREE, ChangedRow, RowOutcome, RowResult, correct, row_result_of, write

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

    def packed(self, row: rows.Claimed | None, now: float) -> NewJob:
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
    """Result of sending a job: its outcome, and the error if Redis did not accept it."""

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
        self.token = uuid.uuid4()
        #: the claimed rows, and the results of sending them
        self.claimed: dict[uuid.UUID, rows.Claimed] = {}
        self.row_results: dict[uuid.UUID, RowResult] = {}

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
        sending_time = self._claim(broker) if self.keys else None
        places = [place for place in range(len(self.jobs)) if place not in self.results]
        if not places:
            return
        live = broker.queue(self.queue)
        try:
            self._send(live, places, sending_time)
        except (QueueFull, QueuePaused, Misconfigured):
            self._update_rows(rows.release, list(self.claimed))  # certainly not stored by Redis
            raise
        if sending_time is not None:
            self._settle(live, sending_time)

    def _claim(self, broker: DjangoBroker) -> SendingTime:
        """Claim the rows. Jobs whose rows cannot be claimed get their results here."""
        sending_time = SendingTime(broker)  # an unavailable Redis is detected here, before anything is claimed
        try:
            ordered = any(job.key is not None and not job.new.fresh for job in self.jobs)
            self.claimed = rows.claim(self.alias, self.token, self.keys, ordered=ordered)
            missing = [key for key in self.keys if key not in self.claimed]
            states = rows.states(self.alias, missing) if missing else {}
        except DatabaseError as error:
            logger.warning("the outbox of database %s cannot be used after the commit: %s", self.alias, error)
            self.claimed, states = {}, dict.fromkeys(self.keys, "unsent")
        for place, job in enumerate(self.jobs):
            if job.key is not None and job.key not in self.claimed:
                self.results[place] = Result(_outcome_of_state(states.get(job.key)))
        return sending_time

    # -- Redis ---------------------------------------------------------------------------------------------------------

    def _send(self, live: Queue, places: list[int], sending_time: SendingTime | None) -> None:
        if sending_time is None:
            self._call(live, places, None)
            return
        late = self._call(live, places, sending_time.deadline_ms())
        if late:
            sending_time.distrust_clock()
            if not sending_time.is_over:
                late = self._call(live, late, sending_time.deadline_ms())
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
        late = []
        for place, new, outcome in zip(places, news, live.schedule_many(news, not_after_ms=deadline), strict=True):
            if outcome is ScheduleOutcome.LATE:
                late.append(place)
                continue
            result, key = Result.of(live, new, outcome), self.jobs[place].key
            if key is not None:
                self.row_results[key] = row_result_of(outcome)
                if outcome.is_refusal_for_now:
                    result = Result(ScheduleOutcome.OUTBOX)
                elif outcome is ScheduleOutcome.KNOWN:  # a relay was faster
                    result = Result(ScheduleOutcome.CREATED)
            self.results[place] = result
        return late

    # -- rows, after sending -------------------------------------------------------------------------------------------

    def _settle(self, live: Queue, sending_time: SendingTime) -> None:
        """Write the results, sent rows last: a row that was changed while it was being sent is corrected then."""
        keys: dict[RowOutcome, list[uuid.UUID]] = {
            outcome: [] for outcome in (RowOutcome.GONE, RowOutcome.FREE, RowOutcome.SENT)
        }
        for key in self.claimed:
            keys.setdefault(self.row_results.get(key, FREE).outcome, []).append(key)
        self._update_rows(self._write_gone, keys.get(RowOutcome.GONE, ()))
        self._update_rows(rows.release, keys.get(RowOutcome.FREE, ()))
        self._update_rows(self._write_sent, keys.get(RowOutcome.SENT, ()), live, sending_time)

    def _write_gone(self, alias: str, token: uuid.UUID, keys: Sequence[uuid.UUID]) -> None:
        write(rows.of_claim(alias, token, keys), RowResult(RowOutcome.GONE))

    def _write_sent(
        self, alias: str, token: uuid.UUID, keys: Sequence[uuid.UUID], live: Queue, sending_time: SendingTime
    ) -> None:
        unchanged = rows.of_claim(alias, token, keys).filter(state="unsent")
        if write(unchanged, RowResult(RowOutcome.SENT)) == len(keys):
            return
        # Another process has changed them meanwhile and left the update of Redis to the holder of the claim.
        changed = rows.claimed(alias, token, keys)
        for job in self.jobs:
            row = changed.get(job.key) if job.key is not None else None
            if row is not None and job.key is not None and row.state in ("cancelled", "moved"):
                new, deadline_ms = job.new, sending_time.deadline_ms()
                due = row.due.after(time.monotonic() - row.read_at) if row.state == "moved" else None
                result = correct(live, ChangedRow(new.id, new.task, generation_of(new), due), deadline_ms)
                same = rows.of_claim(alias, token, [job.key]).filter(state=row.state, moved_by=row.moved_by)
                write(same, result)

    def _update_rows(self, update: Callable[..., None], keys: Sequence[uuid.UUID], *more: object) -> None:
        """Update claimed rows. If that fails, the relay finds the rows, and Redis answers that it knows the jobs."""
        if not keys:
            return
        try:
            update(self.alias, self.token, keys, *more)
        except (DatabaseError, DelayQError) as error:
            logger.warning("the outbox of database %s is left to the relay: %s", self.alias, error)


def _send_one(live: Queue, new: NewJob) -> Result:
    """Send a single plain job, which needs less work."""
    try:
        return Result(live.schedule(new))
    except DelayQError as error:
        if isinstance(error, QueueUnavailable) and not isinstance(error, QueuePaused):
            raise
        return Result(ScheduleOutcome.NOT_SENT, error)


def _outcome_of_state(state: str | None) -> ScheduleOutcome:
    """Return the outcome of a job whose row must not be sent by this process."""
    if state is None or state == "cancelled":
        return ScheduleOutcome.IGNORED
    return ScheduleOutcome.OUTBOX if state in ("unsent", "moved") else ScheduleOutcome.CREATED
