"""View of the running job for its handler."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from ..core.times import datetime_of
from .attempt import NEVER, Attempt, trusted
from .reserved_job import ReservedJob

#: the attempt of this thread or coroutine; set by the execution, read by :func:`current_job`
running: ContextVar[Attempt | None] = ContextVar("delayq_attempt", default=None)


class CurrentJob(ReservedJob):
    """View of the running job. Valid until the handler returns.

    In a batch it is a view of the whole call. Attributes that can describe one job only describe the first;
    :attr:`jobs` has a view of each job.
    """

    __slots__ = ("_attempt", "_parts")

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._parts = tuple([part for part in attempt.members if part.settlement is None])
        super().__init__(self._parts[0].job if self._parts else attempt.job)

    @property
    def _max_attempts(self) -> int:
        return self._attempt.policy.max_attempts if self._attempt.policy else 1

    @property
    def retry_count(self) -> int:
        """Number of failures minus one: -1 for a job that never failed."""
        return self._job.failures - 1

    @property
    def tick(self) -> datetime | None:
        """Tick of a recurring task that this job is for, the same in every attempt; None for other jobs."""
        ms = self._job.options.get("tick_ms")
        return None if ms is None else datetime_of(ms)

    @property
    def args(self) -> Sequence[Any]:
        """Positional arguments of the handler."""
        return self._attempt.args

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments of the handler."""
        return self._attempt.kwargs

    @property
    def payloads(self) -> Sequence[Any]:
        """Payloads of a merged job in score order, as passed to the handler; empty for other jobs."""
        if not self._job.merged or not self._attempt.args:
            return ()
        payloads: Sequence[Any] = self._attempt.args[0].get(self.id, ())
        return payloads

    @property
    def scores(self) -> tuple[float, ...]:
        """Scores of :attr:`payloads`."""
        return tuple(_number(payload.score) for payload in self._job.payloads)

    @property
    def payload_keys(self) -> tuple[str, ...]:
        """Keys of :attr:`payloads` (32 hex digits each), the same in every attempt."""
        return tuple(payload.key.hex() for payload in self._job.payloads)

    @property
    def jobs(self) -> tuple[CurrentJob, ...]:
        """Views of all jobs that this call works on."""
        return tuple([view_of(part) for part in self._parts]) or (self,)

    @property
    def lost(self) -> bool:
        """Return True if the lease is lost: the job belongs to another worker now, and its outcome is not stored.

        For a batch it is true when all of its jobs are lost.
        """
        return all(part.lost for part in self._parts or (self._attempt,))

    @property
    def should_stop(self) -> bool:
        """Return True if the handler should return soon: the job was cancelled or lost, or the process is about to end.

        For a batch it is true when its time or its process ends, or when all of its jobs should stop; :attr:`jobs` has
        the flag of each job.
        """
        attempt = self._attempt
        return attempt.should_stop or (bool(self._parts) and all(part.should_stop for part in self._parts))

    @property
    def seconds_left(self) -> float:
        """Seconds until this attempt should be over: until its time limit, or until its lease ends if that is sooner.

        The worker renews the lease every few seconds, so the lease matters only while Redis is unreachable. In a batch
        the lease that ends first counts. 0 when the time is over or the job is lost; infinite without limit and lease
        (``ack="early"``).
        """
        return max(0.0, self._ends_at() - time.monotonic())

    @property
    def deadline(self) -> datetime | None:
        """Time at which :attr:`seconds_left` will be 0, on Redis's clock (UTC); None = never. A renewal moves it."""
        ends_at = self._ends_at()
        if ends_at == NEVER:
            return None
        return datetime_of(ends_at * 1000 + self._attempt.offset_ms)

    def _ends_at(self) -> float:
        attempt = self._attempt
        if attempt.limited_by:
            return attempt.limited_by
        leases = [part.lease_end for part in self._parts or (attempt,) if not part.lost]
        return min(attempt.limit_at, *leases) if leases else 0.0

    def touch(self) -> bool:
        """Renew the lease now, in a batch those of all its jobs. The worker also renews it every few seconds.

        Returns:
            False if the job (every job of the batch) belongs to another worker now; no outcome of this attempt will be
            stored any more.
        """
        held = [part for part in self._parts or (self._attempt,) if not part.acked]
        queue, sent_at = self._attempt.queue, time.monotonic()
        answers = queue.touch([part.job for part in held], {(part.job.id, part.job.token) for part in held})
        until = sent_at + trusted(queue.deployment.lease_ms / 1000)
        for part, answer in zip(held, answers, strict=True):
            part.renewed(answer, until)
        return not self.lost

    def __repr__(self) -> str:
        more = f" and {len(self._parts) - 1} more" if len(self._parts) > 1 else ""
        return f"<CurrentJob {self.queue}/{self.id}{more} attempt={self.attempt}>"


def _number(score: str) -> float:
    try:
        return int(score)
    except ValueError:
        return float(score)


def view_of(attempt: Attempt) -> CurrentJob:
    """Return the view of an attempt, the same object for as long as the attempt lasts."""
    if attempt.view is None:
        attempt.view = CurrentJob(attempt)
    view: CurrentJob = attempt.view
    return view


def current_job() -> CurrentJob | None:
    """Return the job whose handler is running here, or None outside of a handler."""
    attempt = running.get()
    return None if attempt is None else view_of(attempt)
