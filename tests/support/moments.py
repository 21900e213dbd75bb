"""Moments in the future, whenever the tests run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def in_days(days: int) -> datetime:
    """Return midnight in UTC at the end of the day that is ``days`` days ahead."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=days + 1)
