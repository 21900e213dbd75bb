"""Upkeep of a history: compaction of the events' files, and deletion of old days and of files that nobody needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from .day_hours import whole
from .store import Store
from .tables import Step, Table, ignore
from .transforms import KEY, is_attempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class DaysDone:
    """Progress of a backfill, a compaction or a purge."""

    #: days done, and days in all; a purge counts each day once per table
    days: int
    of_days: int
    #: number of attempts in them, as stored among the events; None = not counted
    rows: int | None = None
    of_rows: int | None = None


#: callback, called at the beginning and after each portion of days
OnDays = Callable[[DaysDone], object]


@dataclass(frozen=True, slots=True)
class Purge:
    """Days that were deleted from each table, because they were too old."""

    events: tuple[date, ...] = ()
    attempts: tuple[date, ...] = ()
    hours: tuple[date, ...] = ()
    quarantine: tuple[date, ...] = ()


def horizon(now: datetime, keep_days: float) -> date:
    """Return the first day to keep: the first one that ended less than ``keep_days`` ago, in UTC."""
    return (now - timedelta(days=keep_days)).date()


def count_attempts(spark: SparkSession, events: Table, days: Sequence[date]) -> dict[date, int]:
    """Return the number of attempts by day; an attempt that was landed several times counts each time."""
    if not days:
        return {}
    rows = events.read(spark, whole(days)).where(is_attempt()).groupBy("day").count().collect()
    return {day: int(count) for day, count in rows}


def compact(spark: SparkSession, events: Table, first: date, on_days: OnDays = ignore) -> tuple[date, ...]:
    """Merge the files of each hour of the days before ``first`` into one file, with each event once.

    Returns:
        The days in which an hour had several files.
    """
    counts = Counter((file.day, file.hour) for file in events.files())
    days = sorted({day for (day, _), count in counts.items() if count > 1 and day < first})
    rows = count_attempts(spark, events, days)
    done, of_rows = 0, sum(rows.values())
    on_days(DaysDone(0, len(days), 0, of_rows))
    for at, day in enumerate(days, 1):
        compact_day(spark, events, day)
        done += rows.get(day, 0)
        on_days(DaysDone(at, len(days), done, of_rows))
    return tuple(days)


def compact_day(spark: SparkSession, events: Table, day: date) -> None:
    """Merge the files of each hour of a day."""
    seen, selection = events.replaced(), whole([day])
    rows = events.read(spark, selection).dropDuplicates(list(KEY))
    # One task for an hour makes one file of it. Ordered by time it compresses best.
    files = events.write(rows.repartition(F.col("hour")).sortWithinPartitions("day", "hour", "ts"))
    events.replace(files, selection, seen, data_change=False)


def purge(
    store: Store,
    tables: Mapping[str, Table],
    keep_days: Mapping[str, float | None],
    now: datetime,
    *,
    on_days: OnDays = ignore,
    step: Step,
) -> Purge:
    """Delete the days that ended longer ago than the given days; None = keep all. The quarantine follows the events.

    Days are closed before their events are deleted. Otherwise an event that arrives later would make the day's metrics
    those of that event alone.
    """
    old: dict[str, tuple[date, ...]] = {}
    for name, keep in {**keep_days, "quarantine": keep_days["events"]}.items():
        if keep is not None:
            old[name] = tuple(day for day in tables[name].days() if day < horizon(now, keep))
    if old.get("events"):
        store.close_before(horizon(now, keep_days["events"] or 0))
        step("purge: closed")
    total = sum(map(len, old.values()))
    on_days(DaysDone(0, total))
    for done, (name, day) in enumerate(((name, day) for name, days in old.items() for day in days), 1):
        tables[name].purge(day)
        on_days(DaysDone(done, total))
    return Purge(**old)
