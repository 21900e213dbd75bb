"""What a handler can ask about the job that it is running."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from django_delayq.core.job import Job

from .run import Run

#: the run of this thread or coroutine; set by the execution, read by :func:`current_job`
running: ContextVar[Run | None] = ContextVar("delayq_run", default=None)


class CurrentJob:
    """A view of the running job. Valid until the handler returns."""

    __slots__ = ("_job", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._job = run.job

    @property
    def id(self) -> str:
        """The job's id, unique within its queue."""
        return self._job.id

    @property
    def queue(self) -> str:
        """Name of its queue."""
        return self._job.queue

    @property
    def task(self) -> str:
        """Name that the job was scheduled under."""
        return self._job.task

    @property
    def attempt(self) -> int:
        """Number of this counted attempt; the first is 1."""
        return self._job.failures + 1

    @property
    def retry_count(self) -> int:
        """Failures less one, so -1 for a job that never failed."""
        return self._job.failures - 1

    @property
    def noe(self) -> int:
        """How often the job was handed out before this time, counted as a failure or not."""
        return self._job.reserves - 1

    @property
    def lives(self) -> int:
        """Attempts that are left, this one included."""
        return (self._run.policy.max_attempts if self._run.policy else 1) - self._job.failures

    @property
    def due(self) -> datetime:
        """When it was due (UTC)."""
        return datetime.fromtimestamp(self._job.due_ms / 1000, UTC)

    @property
    def key(self) -> str:
        """Key of this generation of the id (32 hex digits), the same in every attempt."""
        return self._job.key.hex()

    @property
    def context(self) -> Mapping[str, Any]:
        """The ``context`` of the schedule call."""
        context: Mapping[str, Any] = self._job.options.get("context") or {}
        return context

    @property
    def token(self) -> int:
        """Fencing token of this lease: larger than that of every earlier holder of the job."""
        return self._job.token

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The stored jobs that this call works on."""
        return (self._job,)

    @property
    def should_stop(self) -> bool:
        """True when the job was cancelled or lost, or the process is about to end: return soon."""
        return self._run.should_stop

    def touch(self) -> bool:
        """Renew the lease now (the worker does so by itself every few seconds).

        Returns:
            False if the job belongs to another worker by now; nothing that this run does will be stored any more.
        """
        job, run = self._job, self._run
        answer = run.queue.touch([job], {(job.id, job.token)})[0]
        run.lost = answer == "lost"
        run.should_stop = run.should_stop or answer != "held"
        return answer != "lost"

    def __repr__(self) -> str:
        return f"<CurrentJob {self.queue}/{self.id} attempt={self.attempt}>"


def current_job() -> CurrentJob | None:
    """The job whose handler is running here, or None outside of one."""
    run = running.get()
    if run is None:
        return None
    if run.view is None:
        run.view = CurrentJob(run)
    view: CurrentJob = run.view
    return view
