"""Deletion of old days from the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from .days_done import DaysDone, OnDays, nobody
from .lake import EVENTS_TABLE, Lake
from .tables import Table
from .wanted import whole


@dataclass(frozen=True, slots=True)
class Purge:
    """Deleted days by table."""

    events: tuple[date, ...] = ()
    attempts: tuple[date, ...] = ()
    hours: tuple[date, ...] = ()
    quarantine: tuple[date, ...] = ()


def horizon(now: datetime, keep_days: float) -> date:
    """Return the first day to keep: the first one that ended less than ``keep_days`` ago, in UTC."""
    return (now - timedelta(days=keep_days)).date()


def purge(
    lake: Lake,
    tables: Mapping[str, Table],
    now: datetime,
    *,
    events_days: float | None,
    attempts_days: float | None,
    hours_days: float | None,
    on_days: OnDays = nobody,
) -> Purge:
    """Delete the days that ended longer ago than the given days; None = keep all. The quarantine follows the events.

    Days are closed before their events are deleted. Otherwise an event that arrives later would make the day's metrics
    those of that event alone.
    """
    old: dict[str, tuple[date, ...]] = {}
    if events_days is not None:
        first = horizon(now, events_days)
        old[EVENTS_TABLE] = tuple(day for day in lake.days(EVENTS_TABLE) if day < first)
        if old[EVENTS_TABLE]:
            lake.close_before(first)
            lake.step("purge: closed")
    for name, keep in (("attempts", attempts_days), ("hours", hours_days), ("quarantine", events_days)):
        if keep is not None:
            old[name] = tuple(day for day in tables[name].days() if day < horizon(now, keep))
    total = sum(map(len, old.values()))
    on_days(DaysDone(0, total))
    for done, (name, day) in enumerate(((name, day) for name, days in old.items() for day in days), 1):
        if name == EVENTS_TABLE:
            lake.drop(name, whole([day]))
        else:
            tables[name].drop(whole([day]))
        on_days(DaysDone(done, total))
    return Purge(**old)
