"""Log lines about the ends of attempts. A failure's message and traceback are those stored with the job, masked."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..core.errors import Verdict
from ..core.inputs import one_line
from ..core.outcomes import AttemptOutcome
from .record import cause_of, printed_traceback

if TYPE_CHECKING:
    from ..core.job import Job
    from ..core.outcomes import Settlement
    from .attempt import Attempt

logger: Final = logging.getLogger("django_delayq.worker.notifier")

#: which failures are logged with their traceback: those after which the job is given up, all, none
TRACEBACKS: Final = ("last", "always", "never")
_MESSAGE_CHARS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLog:
    """Writer of one log line for the end of an attempt."""

    #: one of :data:`TRACEBACKS`
    tracebacks: str = "last"
    #: hides secrets in a message
    mask_text: Callable[[str], str] = str
    #: hides secrets in a traceback
    mask_traceback: Callable[[str], str] = str

    def succeeded(self, attempt: Attempt) -> None:
        """Log a success at level ``DEBUG``."""
        if logger.isEnabledFor(logging.DEBUG):
            job, seconds = attempt.job, attempt.ended - attempt.started
            logger.debug("%s: attempt %d of task %s succeeded in %.3f s", job.id, job.failures + 1, job.task, seconds)

    def failed(self, settlement: Settlement, error: BaseException) -> None:
        """Log an attempt that did not succeed: ``ERROR`` if the job is given up, ``WARNING`` if it is tried again."""
        job = settlement.job
        if settlement.verb == "bury":
            text = "%s: task %s went to the morgue (%s) after attempt %d: %s"
            values: tuple[object, ...] = (job.id, job.task, self._plain(settlement.reason), job.failures + 1)
            self._log(logging.ERROR, text, values, settlement, error)
        elif settlement.verb == "record":
            text = "%s: task %s %s; it was acked before it began, so it is not tried again: %s"
            self._log(logging.ERROR, text, (job.id, job.task, _failed(settlement)), settlement, error)
        elif settlement.verb == "fail":
            text = "%s: attempt %d of task %s %s, the next one in %.1f s: %s"
            delay = (settlement.delay_ms or 0) / 1000
            values = (job.id, job.failures + 1, job.task, _failed(settlement), delay)
            self._log(logging.WARNING, text, values, settlement, error)
        else:
            level = logging.WARNING if settlement.outcome == AttemptOutcome.LOST else logging.INFO
            values = (job.id, job.task, self._plain(settlement.reason) or "-")
            self._handle(level, "%s: task %s: the job went back uncounted: %s", values, job)

    def hangs(self, attempt: Attempt, what: str) -> None:
        """Log an attempt that ignores its time limit, with what it ran at that moment."""
        job = attempt.job
        trace = self._traceback(attempt.stack, "JobTimeout") if self.tracebacks != "never" else None
        self._handle(logging.ERROR, "%s: task %s ignores its time limit; %s", (job.id, job.task, what), job, trace)

    def _log(
        self, level: int, text: str, values: tuple[object, ...], settlement: Settlement, error: BaseException
    ) -> None:
        """Log the line; its last value is the error, and its traceback follows if it is wanted."""
        if not logger.isEnabledFor(level):
            return
        stored = _stored(settlement.error)
        kind, message = settlement.error_class or "-", self._plain(str(stored.get("message") or ""))
        summary, trace = f"{kind}: {message}" if message else kind, None
        if self._wants_traceback(level, error):
            trace = self._traceback(str(stored.get("traceback") or ""), summary)
        self._handle(level, text, (*values, summary), settlement.job, trace, error=kind)

    def _handle(
        self, level: int, text: str, values: tuple[object, ...], job: Job, trace: str | None = None, **more: str
    ) -> None:
        """Handle a record with the fields that :class:`~..logs.JobFilter` adds to those of a running job."""
        if logger.isEnabledFor(level):
            record = logger.makeRecord(logger.name, level, __file__, 0, text, values, None, extra=more)
            fields = {"job_id": job.id, "queue": job.queue, "task": job.task, "attempt": job.failures + 1}
            for name, value in fields.items():
                vars(record).setdefault(name, value)
            # `exc_text` instead of `exc_info`: handlers would format the exception itself, with all secrets.
            record.exc_text = trace
            logger.handle(record)

    def _wants_traceback(self, level: int, error: BaseException) -> bool:
        if self.tracebacks == "never" or (isinstance(error, Verdict) and cause_of(error) is None):
            return False  # a verdict without a cause was raised on purpose
        return level >= logging.ERROR or self.tracebacks == "always" or logger.isEnabledFor(logging.DEBUG)

    def _traceback(self, frames: str, summary: str) -> str | None:
        """Return the traceback as Python prints it; None if none is stored."""
        lines = [one_line(line) for line in self.mask_traceback(frames).splitlines()]
        return printed_traceback("\n".join(lines), summary) if lines else None

    def _plain(self, text: str) -> str:
        """Return a text without secrets, as one line of limited length."""
        text = one_line(self.mask_text(text))
        return text if len(text) <= _MESSAGE_CHARS else f"{text[:_MESSAGE_CHARS]}…"


def _failed(settlement: Settlement) -> str:
    outcome = settlement.outcome
    return "failed" if outcome == AttemptOutcome.FAILED else f"failed ({outcome})"


def _stored(error: bytes) -> dict[str, Any]:
    """Return the fields of a stored error; none if the project's ``format_error`` returned a form of its own."""
    try:
        fields = json.loads(error)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
