"""Formatting of durations."""

from __future__ import annotations

from datetime import timedelta


def span(value: timedelta | float | None) -> str:
    """Format a duration: ``90`` (seconds) reads "1 min 30 s"."""
    if value is None:
        return "–"
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if 0.05 <= seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    whole = max(0, round(seconds))
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    words = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(words[:2]) or "0 s"
