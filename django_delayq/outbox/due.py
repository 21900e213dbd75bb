"""Due times of rows: a fixed time, or the rest of a delay by the database's clock.

The wall clock of the process that schedules or sends is never used. While a row waits, the database's clock counts.
From the moment the row is read, ``time.monotonic()`` counts, until the rest is added to Redis's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypedDict

from django.db.models import F
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

_MS: Final = timedelta(milliseconds=1)


class DueTime(TypedDict):
    """Due time as the verbs of a queue accept it: one of the two values is None."""

    due_ms: int | None
    delay_ms: int | None


NOW: Final = DueTime(due_ms=None, delay_ms=0)


@dataclass(frozen=True, slots=True)
class RowDue:
    """Due time of a row that was just read.

    Attributes:
        due_ms: Unix ms, for a job with a fixed due time.
        left_ms: rest of the delay for all other jobs; negative for an overdue job.
    """

    due_ms: int | None
    left_ms: int

    @classmethod
    def of(cls, due_ms: int | None, delay_ms: int, age: timedelta) -> RowDue:
        """Return the due time of a row; ``age`` is its :func:`delay_age`.

        SQLite's clock has whole milliseconds, so the last one is not counted. A clock that was set back does not make
        the delay longer.
        """
        return cls(due_ms, delay_ms - max(0, age // _MS - 1))

    def after(self, seconds: float) -> DueTime:
        """Return the due time to send ``seconds`` after the row was read, in a call that is executed at once."""
        if self.due_ms is not None:
            return DueTime(due_ms=self.due_ms, delay_ms=None)
        return DueTime(due_ms=None, delay_ms=max(0, self.left_ms - int(seconds * 1000)))

    def on_redis_clock(self, read_ms: float) -> int:
        """Return the due time in Unix ms; ``read_ms`` is Redis's time at which the row was read.

        The due time of an overdue job is in the past, so that its lateness and its expiry are counted from there.
        """
        return int(read_ms) + self.left_ms if self.due_ms is None else self.due_ms


def delay_age() -> Combinable:
    """Return the expression for the time since a row's delay began."""
    return Now() - F("delay_from")
