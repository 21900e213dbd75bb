"""Texts of numbers, durations and moments. ``clock.js`` counts moments on in the same format."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from ..core.moments import datetime_of

__all__ = ["When", "clock", "duration", "grouped", "millis", "moment", "rate", "size", "wall_seconds"]


@dataclass(frozen=True, slots=True)
class When:
    """Moment of Redis's clock. ``relative`` describe it as of now; the browser updates them from ``ms``."""

    ms: int
    relative: str
    #: date and time in full, in the current time zone
    full: str
    iso: str
    #: True if it lies in the past
    over: bool


def grouped(number: float) -> str:
    """Return the number with its thousands separated by thin spaces (1 234 567), a format common to all languages."""
    return f"{number:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def rate(per_second: float | None) -> str:
    """Return a rate per second."""
    if per_second is None:
        return "–"
    return f"{per_second:.1f}" if 0 < per_second < 9.95 else grouped(per_second)


def millis(ms: float | None) -> str:
    """Return a duration given in ms."""
    if ms is None:
        return "–"
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else duration(ms / 1000)


def size(number: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


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
    relative = _("now") if abs(away) < 1 else (_("in %s") if away > 0 else _("%s ago")) % duration(away)
    try:
        exact = datetime_of(ms)
    except (OverflowError, ValueError, OSError):  # beyond the year 9999
        return When(int(ms), relative, f"{ms:.0f} ms", "", away <= 0)
    there = timezone.localtime(exact) if timezone.is_aware(exact) else exact
    full = f"{date_format(there, 'DATETIME_FORMAT')} ({there:%H:%M:%S %Z})"
    return When(int(ms), relative, full, exact.isoformat(), away <= 0)


def clock(ms: float) -> str:
    """Return the time of day of a Unix ms in the current time zone: ``14:03:22``."""
    return f"{_local(ms):%H:%M:%S}"


def wall_seconds(ms: float) -> float:
    """Return a Unix ms as seconds on the wall clock of the current time zone, for the axis of a chart."""
    return _local(ms).replace(tzinfo=UTC).timestamp()


def _local(ms: float) -> datetime:
    return timezone.localtime(datetime_of(ms))
