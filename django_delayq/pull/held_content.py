"""Content of a reserved job, as Redis returned it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from ..core.codec import decode, decode_args
from ..core.job import RAW, Job, created_ms
from ..core.moments import datetime_of


class HeldContent:
    """Read-only part of a reserved job: its arguments, and the counters of its attempts.

    Attributes:
        id: the job's id, unique within its queue.
        task: name of the task; "raw" for bytes stored by :meth:`Queue.put`.
    """

    def __init__(self, job: Job) -> None:
        self.id = job.id
        self.task = job.task
        self._job = job

    @property
    def record(self) -> Job:
        """Job as Redis returned it."""
        return self._job

    @property
    def body(self) -> bytes:
        """Bytes as they were put (for a task's job: its encoded arguments)."""
        return self._job.args

    @cached_property
    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        if self._job.merged:
            return [{self.id: list(self.payloads)}], {}
        return ([], {}) if self.task == RAW or not self._job.args else decode_args(self._job.args)

    @property
    def args(self) -> Sequence[Any]:
        """Positional arguments of the task; for a merged job ``[{id: [payload, …]}]``; empty for raw bytes.

        Raises:
            Undecodable: the stored arguments cannot be decoded. A ``with`` block buries the job then.
        """
        return self._arguments[0]

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments of the task; see :attr:`args`."""
        return self._arguments[1]

    @cached_property
    def payloads(self) -> tuple[Any, ...]:
        """Payloads of a merged job in the order of their scores; empty for other jobs."""
        return tuple([decode(payload.data) for payload in self._job.payloads])

    @property
    def attempt(self) -> int:
        """Number of this counted attempt; the first is 1."""
        return self._job.attempt

    @property
    def failures(self) -> int:
        """Number of failed attempts that were counted."""
        return self._job.failures

    @property
    def noe(self) -> int:
        """Number of earlier reservations of the job, including those that were not counted as failures."""
        return self._job.reserves - 1

    @property
    def releases(self) -> int:
        """Number of times that the job was put back uncounted before this attempt."""
        return self._job.releases

    @property
    def created(self) -> datetime | None:
        """Time at which this generation was first scheduled, by the caller's clock (UTC).

        None for a job of an HTTP request with an ``Idempotency-Key`` and of a bulk load, whose calls may be repeated.
        """
        ms = created_ms(self._job.key)
        return None if ms is None else datetime_of(ms)

    @property
    def due(self) -> datetime:
        """Due time of the job (UTC)."""
        return datetime_of(self._job.due_ms)

    @property
    def key(self) -> str:
        """Key of this generation of the id (32 hex digits), the same in every attempt."""
        return self._job.key.hex()

    @property
    def token(self) -> int:
        """Fencing token: larger than that of every earlier holder of the job."""
        return self._job.token

    @cached_property
    def context(self) -> Mapping[str, Any]:
        """Value of ``context`` in the schedule call."""
        return self._job.context
