"""What is told of a run: to the listeners of the hooks, and to the log."""

from __future__ import annotations

import logging
from typing import Any, Final

from django_delayq.core.errors import DelayQError
from django_delayq.core.job import Settlement

from .hooks import Hooks
from .run import Run

logger: Final = logging.getLogger(__name__)


class Teller:
    """Tells. What a listener raises is logged."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def notify(self, event: str, run: Run, **details: Any) -> None:
        """Tell the listeners about one job."""
        try:
            self._hooks.notify(event, job=run.job, task=run.task, **details)
        except Exception:
            logger.exception("%s: a listener of %s failed", run.job.id, event)

    def ended(self, run: Run, settlement: Settlement, error: BaseException | None) -> None:
        """The job did not simply succeed."""
        verb = settlement.verb
        if verb in ("fail", "record") and self._hooks.wants("job_failed", run.task):
            retry_in = (settlement.delay_ms or 0) / 1000 if verb == "fail" else None
            self.notify("job_failed", run, error=error, outcome=settlement.outcome, retry_in=retry_in)
        elif verb == "bury" and self._hooks.wants("job_buried", run.task):
            self.notify("job_buried", run, error=error, reason=settlement.reason)

    def failed(self, run: Run, settlement: Settlement, error: BaseException) -> None:
        """The handler raised."""
        self._log(run, settlement, error)
        self.ended(run, settlement, error)

    @staticmethod
    def _log(run: Run, settlement: Settlement, error: BaseException) -> None:
        """A line about a failure. Without the traceback: messages of exceptions may carry arguments."""
        job = run.job
        kind = settlement.error_class or "-"
        if settlement.verb == "bury":
            logger.error("%s: task %s went to the morgue (%s) after attempt %d: %s",
                         job.id, job.task, settlement.reason, job.failures + 1, kind)  # fmt: skip
        elif settlement.verb == "fail":
            logger.warning("%s: attempt %d of task %s %s (%s); again in %.1f s", job.id, job.failures + 1, job.task,
                           settlement.outcome, kind, (settlement.delay_ms or 0) / 1000)  # fmt: skip
        elif settlement.verb == "record":
            logger.error("%s: task %s %s (%s); it was acked before it began, so it is not tried again", job.id,
                         job.task, settlement.outcome, kind)  # fmt: skip
        else:
            logger.info("%s: task %s gave the job back", job.id, job.task)
        if logger.isEnabledFor(logging.DEBUG) and not isinstance(error, DelayQError):
            logger.debug("%s: traceback", job.id, exc_info=error)
