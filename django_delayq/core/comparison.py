"""Rules of the comparison of a table with a queue, with Spark and without.

The order of the reads makes a comparison safe beside a working application. First the outbox is read, then all places
of the queue. Only then the table is read, restricted to rows older than a grace period. A job that ends between the
reads is therefore in the first snapshot, and a row created meanwhile is too young. Without Spark the ids of the rows
are looked up instead, and the rows without a job are read again behind that look. Missing jobs are scheduled without
replacing live ones, so a job that exists after all is not changed. The handler must still tolerate a second execution,
as with every job that may run twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final

#: age below which rows are not compared
GRACE_MS: Final = 600_000
#: states of rows of the outbox whose jobs will not run again without intervention. Sent rows are known jobs: Redis may
#: not have received them yet, or may have lost them, and the outbox's own reconciler handles that
DEAD: Final = ("buried", "refused")
#: places of jobs that will run
LIVE: Final = ("waiting", "reserved", "gated")
#: number of missing and of invalid rows that are named
FIRST: Final = 10
#: largest difference between the dates of two time zones
_ZONES: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """Result of a comparison, before anything is scheduled."""

    #: number of rows that need a job and are old enough
    rows: int
    #: number of jobs seen in the queue, in all its places, and in the outbox
    known: int
    #: number of rows (for a plain task: of ids) whose job is to be scheduled again
    missing: int
    #: number of rows whose job is in the morgue or was refused by the outbox; part of ``missing`` if they are included
    buried: int
    #: number of rows that cannot have a valid job, as far as id and due time show
    bad: int
    #: the first missing ids
    first: tuple[str, ...]
    #: the first invalid rows: id, if there is one, and the reason
    first_bad: tuple[tuple[str | None, str], ...] = ()

    def values(self) -> dict[str, Any]:
        """Return the counts and the first missing ids for JSON."""
        names = ("rows", "known", "missing", "buried", "bad")
        return {**{name: getattr(self, name) for name in names}, "first": list(self.first)}

    def summary(self, *, include_morgue: bool) -> str:
        """Return the counts as lines of text."""
        lines = [f"{self.rows:,} rows need a job, {self.known:,} jobs are known: {self.missing:,} are missing"]
        if self.buried and not include_morgue:
            lines.append(
                f"{self.buried:,} of them have only a job in the morgue, or one refused by the outbox: retry those, "
                "or use --include-morgue"
            )
        if self.first:
            lines.append(f"the first: {', '.join(map(repr, self.first))}")
        return "\n".join(lines)


def day_before(moment: datetime) -> date:
    """Return the limit for a date field: a day that is over in every time zone."""
    return moment.date() - _ZONES
