"""How things look in JSON."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(ms: float | None) -> str | None:
    """A moment (Unix ms) as ``2026-11-21T11:23:43.123Z``; None as it is, and for what no calendar has."""
    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def seconds(ms: float) -> float:
    """A span (ms) in seconds."""
    return round(ms / 1000, 3)
