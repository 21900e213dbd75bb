"""Every exception of the queue. The docstring says when it is raised; the message says what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta


class DelayQError(Exception):
    """Base of everything that django_delayq raises on purpose."""


class InvalidJob(DelayQError, ValueError):
    """What was asked for cannot be stored: a bad id, due time, payload or option. Nothing was written."""


class IdTaken(DelayQError):
    """The id belongs to a live job of another task, or ``on_conflict="error"`` met a live job."""


class QueueFull(DelayQError):
    """The queue reached its ``max_length``, or Redis its ``maxmemory``. Nothing was written; try again later."""


class QueueNotEmpty(DelayQError):
    """The queue cannot be deleted, because it holds jobs or graves. Empty it first, or delete it with ``force``."""


class QueueUnavailable(DelayQError):
    """Redis cannot be reached or refuses to work now. Whether the call was applied may be unknown."""


class QueuePaused(QueueUnavailable):
    """The queue takes no new jobs until somebody resumes it. Nothing was written; try again later."""


class Misconfigured(DelayQError):
    """The deployment is set up wrongly (no Redis, too old, wrong password, unknown setting)."""


class LeakedTransaction(DelayQError):
    """A handler returned inside an open database transaction, so its work was never committed."""


class JobTimeout(BaseException):
    """Raised inside a handler when its ``timeout`` ran out.

    Not an ``Exception``, so that a handler's ``except Exception`` does not swallow its own time limit.
    """


class Crashed(DelayQError):
    """Given to those who listen to the end of a job whose process died (killed, segmentation fault, machine lost).

    Also of a job that was pulled and held beyond its lease.
    """


class Verdict(Exception):
    """Base of the exceptions by which a handler decides the fate of its own job."""


class Retry(Verdict):
    """The attempt failed; run the job again after ``delay`` seconds (None = the task's own back-off)."""

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None) -> None:
        super().__init__(_reason("Retry", reason))
        self.delay = delay


class Bury(Verdict):
    """The job can never succeed; put it into the morgue now."""


class Release(Verdict):
    """Not now: put the job back after ``delay`` seconds without counting an attempt (None = at its old place).

    ``priority``: 0 … 7, its priority from now on (None = as it is).
    """

    def __init__(
        self, reason: str = "", *, delay: float | timedelta | None = None, priority: int | None = None
    ) -> None:
        super().__init__(_reason("Release", reason))
        self.delay = delay
        self.priority = priority


class PartialFailure(Verdict):
    """Some ids of a batch failed, only these are tried again: ``raise PartialFailure({"57": error})``.

    Args:
        errors: id → the exception (or a text) that it failed with. A verdict (``Retry``, ``Bury``, ``Release``) as the
            exception decides the fate of its id.
    """

    def __init__(self, errors: Mapping[str, BaseException | str]) -> None:
        super().__init__(f"{len(errors)} of the batch failed")
        self.errors = dict(errors)


def _reason(verdict: str, reason: object) -> object:
    # ``Release(30)`` would be a release without a pause, and so a loop without an end.
    if isinstance(reason, (int, float, timedelta)):
        raise TypeError(
            f"the first argument of {verdict} is the reason, a text; a pause is {verdict}(delay={reason!r})"
        )
    return reason
