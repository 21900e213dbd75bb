"""Texts for times and numbers of jobs. The browser's script updates them in the same format (live.js)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

__all__ = ["When", "duration", "moment"]


@dataclass(frozen=True, slots=True)
class When:
    """Moment of Redis's clock. ``words`` describe it as of now; the browser updates them from ``ms``."""

    ms: int
    words: str
    #: date and time in full, in the current time zone
    full: str
    iso: str
    #: True if it lies in the past
    over: bool


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: ``4 min 12 s``."""
    whole = int(abs(seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    parts = [(days, "d"), (hours, "h"), *zip(divmod(rest, 60), ("min", "s"), strict=True)]
    first = next((place for place, (number, _unit) in enumerate(parts) if number), 3)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number) or "0 s"


def moment(ms: float | None, now_ms: float) -> When | None:
    """Return a moment as text relative to ``now_ms``; both Unix ms on Redis's clock."""
    if ms is None:
        return None
    away = (ms - now_ms) / 1000
    words = _("now") if abs(away) < 1 else (_("in %s") if away > 0 else _("%s ago")) % duration(away)
    try:
        exact = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # beyond the year 9999
        return When(int(ms), words, f"{ms:.0f} ms", "", away <= 0)
    there = timezone.localtime(exact) if timezone.is_aware(exact) else exact
    full = f"{date_format(there, 'DATETIME_FORMAT')} ({there:%H:%M:%S %Z})"
    return When(int(ms), words, full, exact.isoformat(), away <= 0)
