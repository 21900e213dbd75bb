"""Hours and days of the history. They are those of UTC, whatever the project's time zone is.

Without ``USE_TZ`` a database has moments without a zone. Those of the history are then UTC too, not local ones: on the
day on which clocks are put back two hours would have one name.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from django.conf import settings

__all__ = ["HOUR", "begin_of", "floor_hour", "from_row", "to_row"]

HOUR: Final = timedelta(hours=1)


def to_row(moment: datetime) -> datetime:
    """An aware moment as the tables of the history have it."""
    there = moment.astimezone(UTC)
    return there if settings.USE_TZ else there.replace(tzinfo=None)


def from_row(moment: datetime) -> datetime:
    """A moment of those tables, aware, in UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def begin_of(day: date) -> datetime:
    """When a day of UTC begins."""
    return datetime.combine(day, time(), UTC)


def floor_hour(moment: datetime) -> datetime:
    """The hour of UTC that an aware moment lies in."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
