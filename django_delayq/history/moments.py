"""Hours and days of the history, in UTC, whatever the project's time zone is.

Without ``USE_TZ`` databases store naive datetimes. Those of the history are then UTC too, not local time: at the end of
daylight saving time two local hours would have the same name.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from django.conf import settings

HOUR: Final = timedelta(hours=1)


def to_row(moment: datetime) -> datetime:
    """Return an aware moment as the tables of the history store it."""
    there = moment.astimezone(UTC)
    return there if settings.USE_TZ else there.replace(tzinfo=None)


def from_row(moment: datetime) -> datetime:
    """Return a moment of those tables as an aware datetime in UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def begin_of(day: date) -> datetime:
    """Return the start of a UTC day."""
    return datetime.combine(day, time(), UTC)


def floor_hour(moment: datetime) -> datetime:
    """Return the start of the UTC hour that contains an aware moment."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
