"""Verdicts: exceptions by which a handler decides the outcome of its own job. A wrong value raises ``TypeError``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from .job import PRIORITIES
from .retry import seconds_of


class Verdict(Exception):
    """Base of the exceptions by which a handler decides the outcome of its own job."""


class Retry(Verdict):
    """Failed attempt to run again after ``delay`` seconds (None = the back-off of the task)."""

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None) -> None:
        super().__init__(_reason("Retry", reason))
        #: seconds
        self.delay = None if delay is None else seconds_of(delay)


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
        if priority is not None and (type(priority) is not int or not 0 <= priority < PRIORITIES):
            raise TypeError(f"{priority!r:.60} is no priority; give 0 (first) to {PRIORITIES - 1}")
        #: seconds
        self.delay = None if delay is None else seconds_of(delay)
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
        #: seconds
        self.retry_after = seconds_of(retry_after)
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
