"""Reserved job as the code that works on it sees it: a handler, or the holder of a job of the pull API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..core.job import Job, created_ms
from ..core.times import datetime_of


class ReservedJob:
    """Reserved job, as Redis returned it."""

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def _max_attempts(self) -> int:
        raise NotImplementedError

    @property
    def id(self) -> str:
        """Id of the job, unique within its queue."""
        return self._job.id

    @property
    def queue(self) -> str:
        """Name of the job's queue."""
        return self._job.queue

    @property
    def task(self) -> str:
        """Task name that the job was scheduled under."""
        return self._job.task

    @property
    def attempt(self) -> int:
        """Number of this counted attempt; the first is 1."""
        return self._job.attempt

    @property
    def noe(self) -> int:
        """Number of earlier reserves of the job, whether they counted as failures or not."""
        return self._job.reserves - 1

    @property
    def releases(self) -> int:
        """Number of times that the job was put back uncounted before this attempt: by ``Release``, or at a shutdown."""
        return self._job.releases

    @property
    def created(self) -> datetime | None:
        """Time at which this generation was first scheduled, by the caller's clock (UTC).

        None for a job of an HTTP request with an ``Idempotency-Key`` and of a bulk load, whose calls may be repeated.
        """
        ms = created_ms(self._job.key)
        return None if ms is None else datetime_of(ms)

    @property
    def lives(self) -> int:
        """Number of attempts left, including this one."""
        return self._max_attempts - self._job.failures

    @property
    def due(self) -> datetime:
        """Time at which the job was due (UTC)."""
        return datetime_of(self._job.due_ms)

    @property
    def key(self) -> str:
        """Key of this generation of the id (32 hex digits), the same in every attempt."""
        return self._job.key.hex()

    @property
    def token(self) -> int:
        """Fencing token of this lease, larger than that of every earlier holder of the job. A batch has only one."""
        return self._job.token

    @property
    def context(self) -> Mapping[str, Any]:
        """Value of ``context`` from the schedule call."""
        return self._job.context
