"""Exceptions of the queue. Each docstring states when it is raised; each message names the next step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .outcomes import ScheduleOutcome


class DelayQError(Exception):
    """Base of all exceptions that django_delayq raises on purpose."""


class InvalidJob(DelayQError, ValueError):
    """Request for a job that cannot be stored: a bad id, due time, payload or option. Nothing was written."""


class IdTaken(DelayQError):
    """Conflict of ids: the id belongs to a live job of another task, or ``on_conflict="error"`` met a live job."""


class QueueFull(DelayQError):
    """Refusal because the queue reached its ``max_length``, or Redis its ``maxmemory``. Nothing was written; retry."""


class JobIsLimited(DelayQError):
    """Refusal to reserve a job by its id, because it has a group or limits. Reserve due jobs without an id."""


class QueueNotEmpty(DelayQError):
    """Refusal to delete a queue that holds jobs or morgue records. Empty it first, or delete it with ``force``."""


class QueueUnavailable(DelayQError):
    """Failure to reach Redis, or a temporary refusal by Redis. It may be unknown if the call was applied."""


class QueuePaused(QueueUnavailable):
    """Refusal because the queue is paused and accepts no new jobs. Nothing was written; retry after it is resumed."""


class NotConfirmed(QueueUnavailable):
    """Missing confirmation of a write by replicas or disks. Redis has the job; the same call under its id is safe.

    Attributes:
        id: id of the job, if the call was for one job.
        counts: number of jobs by outcome, if the call was for several; all of them were sent.
        outcomes: outcome of each job of the call; () where jobs are only counted.
        unconfirmed: places in ``outcomes`` of the jobs that are not confirmed.
        reason: what is missing.
        reply: reply of the script.
    """

    id: str = ""
    counts: Mapping[str, int]
    outcomes: Sequence[ScheduleOutcome] = ()
    unconfirmed: Set[int] = frozenset()
    reply: Any = None

    def __init__(self, text: str = "", *, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason
        self.counts = {}

    @classmethod
    def because(cls, reason: str, ident: str = "") -> NotConfirmed:
        """Return the error for one job."""
        error = cls(
            f"Redis has the job, but {reason}, so it may be lost with this Redis; schedule it again under the same id, "
            "which is safe, and look at the replicas and the disk of Redis",
            reason=reason,
        )
        error.id = ident
        return error


class Misconfigured(DelayQError):
    """Error in the setup of the deployment (no Redis, too old, wrong password, unknown setting)."""


class LeakedTransaction(DelayQError):
    """Return of a handler inside an open database transaction, so that its work was never committed."""


class JobTimeout(BaseException):
    """Timeout of a handler, raised inside the handler when its ``timeout`` ran out.

    Not an ``Exception``, so that a handler's ``except Exception`` does not swallow its own time limit.
    """


class Crashed(DelayQError):
    """Failure passed to completion listeners when a job's process died (killed, segmentation fault, machine lost).

    Also passed for a job that was pulled and held beyond its lease.
    """
