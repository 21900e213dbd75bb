"""Protocol by which a row reaches Redis: claim it, send its job or its change, write the result to the row.

The fast path after a commit and the relay of a dispatcher both follow it, with different patience; a cancellation
claims its rows, too. A claim is a token and an end time in the row, set by one guarded UPDATE, so it is safe on every
database. Every command carries a deadline on Redis's clock before that time, so a process that slept is answered
``late`` and has changed nothing. A process may die after each step: the next claim finds the row as it was, and Redis
answers ``known`` to a job that it has received before.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from django.db.models import Case, F, Q, QuerySet, Value, When
from django.db.models.functions import Now

from ..core.errors import IdTaken
from ..core.job import Generation
from ..core.outcomes import ScheduleOutcome
from .due import DueTime
from .rows import ahead, free, table

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue
    from ..models import OutboxJob
    from .producer import Clock

#: seconds between the deadline of commands and the end of the claim: for clocks that run at different speeds
MARGIN: Final = 0.25
#: seconds of back-off for a row that Redis does not accept now
PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
#: reasons why Redis does not accept a row now, but will later
LATER: Final = {
    ScheduleOutcome.FULL: "the queue, or Redis, is full",
    ScheduleOutcome.PAUSED: "the queue is paused for new jobs",
}
#: reason why a row is sent again although Redis has its job
UNCONFIRMED: Final = "Redis has the job, but replicas or disks did not confirm it in time: see manage.py delayq_check"
#: reason why a lost job waits
BROUGHT_BACK: Final = "an older copy of Redis has brought back a job of another task under this id; its end is awaited"
#: reasons that are no fault of the row
FOR_NOW: Final = frozenset((*LATER.values(), UNCONFIRMED, BROUGHT_BACK))
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
    #: to be sent, because Redis certainly does not have the job
    UNSENT = "unsent"
    #: no longer needed
    GONE = "gone"
    #: kept for a person
    REFUSED = "refused"
    #: tried again after a pause
    LATER = "later"
    #: as if never claimed, because Redis may have the job or not
    FREE = "free"


@dataclass(frozen=True, slots=True)
class RowResult:
    """Result of sending a claimed row."""

    outcome: RowOutcome
    error: str = ""
    tries: int = 0
    #: reply of Redis, for the log
    reply: str = ""


FREE: Final = RowResult(RowOutcome.FREE)
UNSENT: Final = RowResult(RowOutcome.UNSENT)


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
            moved_back = Case(When(state="moved", then=Value("unsent")), default=F("state"))
            return rows.update(state=moved_back, **_UNCLAIMED)
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


class ClaimedRow(Protocol):
    """Fields of a row as they were when it was claimed."""

    @property
    def pk(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def moved_by(self) -> uuid.UUID | None: ...


@dataclass(slots=True, eq=False)
class Claim:
    """Claim on rows of one database, which begins now.

    Args:
        broker: receives the commands for the rows.
        seconds: length of the claim.

    Raises:
        QueueUnavailable: Redis is unavailable, so nothing should be claimed.
    """

    alias: str
    broker: Broker
    clock: Clock
    seconds: float
    token: uuid.UUID = field(default_factory=uuid.uuid4)
    _until: float = field(init=False)

    def __post_init__(self) -> None:
        self.clock.at(0, self.broker)
        self._until = time.monotonic() + self.seconds - MARGIN

    @property
    def is_over(self) -> bool:
        """True if it is too late to send commands to Redis."""
        return time.monotonic() >= self._until

    @property
    def deadline_ms(self) -> float:
        """Deadline of the commands: ms, on Redis's clock."""
        return self.clock.at(self._until, self.broker)

    def held(self, *conditions: Q, **fields: Any) -> QuerySet[OutboxJob]:
        """Return those rows that the claim still holds."""
        return table(self.alias).filter(*conditions, claim=self.token, **fields)

    def take(self, rows: QuerySet[OutboxJob]) -> None:
        """Claim rows that no process has claimed."""
        rows.filter(free()).update(claim=self.token, claimed_until=ahead(self.seconds))

    def write(self, result: RowResult, pks: Collection[int]) -> None:
        """Write one result to rows, as far as the claim still holds them."""
        if pks:
            write(self.held(pk__in=pks), result)

    def settle(
        self, rows: Iterable[ClaimedRow], results: Mapping[int, RowResult], missing: RowResult = FREE
    ) -> set[int]:
        """Write the results of rows. Return the rows that are still claimed, because they were changed meanwhile.

        Args:
            missing: result of all other rows.
        """
        groups: dict[tuple[RowResult, str], list[ClaimedRow]] = {}
        for row in rows:
            result = results.get(row.pk, missing)
            groups.setdefault((RowResult(result.outcome, result.error, result.tries), row.state), []).append(row)
        changed: set[int] = set()
        for (result, _), some in groups.items():
            changed |= self._write_unchanged(result, [row.pk for row in some], _unchanged(result.outcome, some))
        return changed

    def _write_unchanged(self, result: RowResult, pks: list[int], unchanged: Q) -> set[int]:
        if write(self.held(unchanged, pk__in=pks), result) == len(pks) or not unchanged:
            return set()
        if result.outcome is RowOutcome.SENT:  # rescheduled after the claim had ended
            write(self.held(pk__in=pks, state="unsent"), RowResult(RowOutcome.MOVED))
        return set(self.held(~unchanged, pk__in=pks).values_list("pk", flat=True))


def _unchanged(outcome: RowOutcome, rows: Sequence[ClaimedRow]) -> Q:
    """Return the condition for rows to which an outcome applies, given these rows of one state as they were claimed."""
    if outcome in (RowOutcome.GONE, RowOutcome.FREE, RowOutcome.UNSENT):
        return Q()
    if outcome is not RowOutcome.SENT:
        return Q(state=rows[0].state)
    # Every reschedule has a name of its own, and changes all its rows in one statement.
    moved_by = {row.moved_by for row in rows if row.moved_by is not None}
    never_moved = Q(state=rows[0].state, moved_by=None)
    return never_moved | Q(state=rows[0].state, moved_by__in=moved_by) if moved_by else never_moved
