"""Protocol by which a row reaches Redis: claim it, send its job or its change, settle it by a verdict.

The fast path after a commit and the relay of a dispatcher both follow it, with different patience. A claim is a token
and an end time in the row. Every command carries a deadline on Redis's clock before that time, so a process that slept
is answered ``late`` and has changed nothing. A process may die after each step: the next claim finds the row as it was,
and Redis answers ``known`` to a job that it has received before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from django.db.models import QuerySet
from django.db.models.functions import Now

from ..core.errors import IdTaken
from ..core.job import Generation
from ..core.outcome import Outcome
from .due import DueTime
from .rows import ahead

if TYPE_CHECKING:
    from ..core.queue import Queue
    from ..models import OutboxJob

#: seconds of back-off for a row that Redis does not accept now
PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
#: reasons why Redis does not accept a row now, but will later
LATER: Final = {Outcome.FULL: "the queue, or Redis, is full", Outcome.PAUSED: "the queue is paused for new jobs"}
#: reasons why a row is given up
GONE: Final = {
    Outcome.TAKEN: "the live job of this id belongs to another task",
    Outcome.EXISTS: "a job with this id lives already, and on_conflict is 'error'",
    Outcome.IGNORED: "a job with this id lives already",
}
_UNCLAIMED: Final[dict[str, Any]] = {"claim": None, "claimed_until": None}


class Fate(StrEnum):
    """State of a row after its claim."""

    SENT = "sent"
    #: sent, but rescheduled meanwhile: the new due time is to be sent
    MOVED = "moved"
    #: to be sent again, because Redis has lost the job
    UNSENT = "unsent"
    #: no longer needed
    GONE = "gone"
    #: kept for a person
    REFUSED = "refused"
    #: tried again after a pause
    LATER = "later"
    #: as if never claimed
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a row that was claimed."""

    fate: Fate
    error: str = ""
    tries: int = 0
    #: reply of Redis, for the log
    outcome: str = ""


#: the row was not sent, or Redis has changed nothing
FREE: Final = Verdict(Fate.FREE)


def verdict_of(outcome: Outcome) -> Verdict:
    """Return the verdict on an unsent row by the reply to its job."""
    if outcome in GONE:
        return Verdict(Fate.GONE, outcome=outcome)
    return Verdict(Fate.SENT, outcome=outcome) if outcome.is_stored else FREE


def correct(
    queue: Queue, job_id: str, task: str, generation: Generation | None, due: DueTime | None, deadline_ms: float
) -> Verdict:
    """Move or cancel a job that Redis has, because its row was changed. Return the verdict on the row.

    Args:
        queue: the queue.
        job_id, task: id and task of the job.
        generation: which job of the id; None = any live one.
        due: the new due time; None = cancel the job.
        deadline_ms: Unix ms on Redis's clock, by which a cancellation must arrive.
    """
    if due is not None:
        _or_nothing(queue.reschedule, job_id, task=task, generation=generation, **due)
        return Verdict(Fate.SENT)
    outcome = _or_nothing(queue.cancel, job_id, task=task, generation=generation, not_after_ms=deadline_ms)
    return FREE if outcome == Outcome.LATE else Verdict(Fate.GONE, outcome=outcome)


def write(rows: QuerySet[OutboxJob], verdict: Verdict) -> int:
    """Write a verdict to claimed rows; return their number."""
    match verdict.fate:
        case Fate.SENT | Fate.MOVED:
            state = str(verdict.fate)
            return rows.update(state=state, sent_at=Now(), checked_at=Now(), tries=0, error="", **_UNCLAIMED)
        case Fate.UNSENT:
            return rows.update(state="unsent", **_UNCLAIMED)
        case Fate.GONE:
            return rows.delete()[0]
        case Fate.REFUSED:
            refused = {"state": "refused", "tries": verdict.tries, "error": verdict.error}
            return rows.update(claim=None, claimed_until=Now(), **refused)
        case Fate.LATER:
            pause = PAUSES[min(verdict.tries, len(PAUSES)) - 1]
            return rows.update(claimed_until=ahead(pause), tries=verdict.tries, error=verdict.error)
        case Fate.FREE:
            return rows.update(**_UNCLAIMED)


def _or_nothing(verb: Callable[..., Any], job_id: str, **options: Any) -> str:
    """Call a verb of one id. Return "" if the id belongs to a job of another task by now."""
    try:
        return str(verb(job_id, **options) or "")
    except IdTaken:
        return ""
