"""Protocol by which a row reaches Redis: claim it, send its job or its change, write the result to the row.

The fast path after a commit and the relay of a dispatcher both follow it, with different patience. A claim is a token
and an end time in the row. Every command carries a deadline on Redis's clock before that time, so a process that slept
is answered ``late`` and has changed nothing. A process may die after each step: the next claim finds the row as it was,
and Redis answers ``known`` to a job that it has received before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db.models import QuerySet
from django.db.models.functions import Now

from ..core.errors import IdTaken
from ..core.job import Generation
from ..core.schedule_outcome import ScheduleOutcome
from .due import DueTime
from .rows import ahead

if TYPE_CHECKING:
    from ..core.queue import Queue
    from ..models import OutboxJob

#: seconds of back-off for a row that Redis does not accept now
PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
#: reasons why Redis does not accept a row now, but will later
LATER: Final = {
    ScheduleOutcome.FULL: "the queue, or Redis, is full",
    ScheduleOutcome.PAUSED: "the queue is paused for new jobs",
}
#: reasons why a row is given up
GONE: Final = {
    ScheduleOutcome.TAKEN: "the live job of this id belongs to another task",
    ScheduleOutcome.EXISTS: "a job with this id lives already, and on_conflict is 'error'",
    ScheduleOutcome.IGNORED: "a job with this id lives already",
}
_UNCLAIMED: Final[dict[str, Any]] = {"claim": None, "claimed_until": None}


class RowOutcome(StrEnum):
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
class RowResult:
    """Result of sending a claimed row."""

    outcome: RowOutcome
    error: str = ""
    tries: int = 0
    #: reply of Redis, for the log
    reply: str = ""


#: the row was not sent, or Redis has changed nothing
FREE: Final = RowResult(RowOutcome.FREE)


def row_result_of(outcome: ScheduleOutcome) -> RowResult:
    """Return the result for an unsent row, given the reply to its job."""
    if outcome in GONE:
        return RowResult(RowOutcome.GONE, reply=outcome)
    return RowResult(RowOutcome.SENT, reply=outcome) if outcome.is_stored else FREE


class ChangedRow(NamedTuple):
    """Change of a row that Redis has to follow: another due time, or (None) the cancellation of the job.

    ``generation`` names the job of the id; None = any live one.
    """

    job_id: str
    task: str
    generation: Generation | None
    due: DueTime | None


def correct(queue: Queue, row: ChangedRow, deadline_ms: float) -> RowResult:
    """Move or cancel a job that Redis has, because its row was changed. Return the result for the row.

    Args:
        queue: the queue.
        row: the change.
        deadline_ms: Unix ms on Redis's clock, by which a cancellation must arrive.
    """
    which: dict[str, Any] = {"task": row.task, "generation": row.generation}
    try:
        if row.due is not None:
            queue.reschedule(row.job_id, **which, **row.due)
            return RowResult(RowOutcome.SENT)
        reply = queue.cancel(row.job_id, **which, not_after_ms=deadline_ms)
    except IdTaken:  # the id belongs to a job of another task by now
        return RowResult(RowOutcome.GONE if row.due is None else RowOutcome.SENT)
    return FREE if reply == ScheduleOutcome.LATE else RowResult(RowOutcome.GONE, reply=reply)


def write(rows: QuerySet[OutboxJob], result: RowResult) -> int:
    """Write a result to claimed rows; return their number."""
    match result.outcome:
        case RowOutcome.SENT | RowOutcome.MOVED:
            state = str(result.outcome)
            return rows.update(state=state, sent_at=Now(), checked_at=Now(), tries=0, error="", **_UNCLAIMED)
        case RowOutcome.UNSENT:
            return rows.update(state="unsent", **_UNCLAIMED)
        case RowOutcome.GONE:
            return rows.delete()[0]
        case RowOutcome.REFUSED:
            refused = {"state": "refused", "tries": result.tries, "error": result.error}
            return rows.update(claim=None, claimed_until=Now(), **refused)
        case RowOutcome.LATER:
            pause = PAUSES[min(result.tries, len(PAUSES)) - 1]
            return rows.update(claimed_until=ahead(pause), tries=result.tries, error=result.error)
        case RowOutcome.FREE:
            return rows.update(**_UNCLAIMED)
