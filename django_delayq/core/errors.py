"""Exceptions of the queue. Each docstring states when it is raised; each message names the next step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import timedelta
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


class Verdict(Exception):
    """Base of the exceptions by which a handler decides the outcome of its own job."""


class Retry(Verdict):
    """Failed attempt to run again after ``delay`` seconds (None = the back-off of the task)."""

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None) -> None:
        super().__init__(_reason("Retry", reason))
        self.delay = delay


class Bury(Verdict):
    """Job that can never succeed: move it to the morgue now."""


class Release(Verdict):
    """Release of the job: put it back after ``delay`` seconds without counting an attempt (None = at its old place).

    ``priority``: 0 … 7, its priority from now on (None = unchanged).
    """

    def __init__(
        self, reason: str = "", *, delay: float | timedelta | None = None, priority: int | None = None
    ) -> None:
        super().__init__(_reason("Release", reason))
        self.delay = delay
        self.priority = priority


class RateLimited(Release):
    """Refusal by another system, which takes no more for now: the job goes back to its old place, uncounted.

    The jobs of a scope wait as long as that system demands. Without a limit that this scope has, only this job waits.

    Args:
        retry_after: time until the next try, seconds or a ``timedelta``.
        scope: "group", "task" or "queue" of the job; None = its group, or its task if it has none.
    """

    def __init__(self, reason: str = "", *, retry_after: float | timedelta, scope: str | None = None) -> None:
        super().__init__(reason)
        if scope not in (None, "group", "task", "queue"):
            raise TypeError(f"the scope of RateLimited is 'group', 'task' or 'queue', not {scope!r}")
        self.retry_after = retry_after
        self.scope = scope


class PartialFailure(Verdict):
    """Failure of some ids of a batch; only these are retried: ``raise PartialFailure({"57": error})``.

    Args:
        errors: id → the exception (or a text) that it failed with. A verdict (``Retry``, ``Bury``, ``Release``) as the
            exception decides the outcome of its id.
    """

    def __init__(self, errors: Mapping[str, BaseException | str]) -> None:
        if not isinstance(errors, Mapping):
            raise TypeError(f"PartialFailure takes a dict, id → exception, not {type(errors).__name__}")
        super().__init__(f"{len(errors)} of the batch failed")
        self.errors = dict(errors)


def _reason(verdict: str, reason: object) -> object:
    # ``Release(30)`` would be a release without a delay, and so an endless loop.
    if isinstance(reason, (int, float, timedelta)):
        raise TypeError(
            f"the first argument of {verdict} is the reason, a text; a pause is {verdict}(delay={reason!r})"
        )
    return reason
