"""Numbers, sizes, durations and moments as texts: one form each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from django.conf import settings
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..core.times import datetime_of
from ..status.formatting import NOTHING, duration

# --- numbers


def grouped(number: float) -> str:
    """Return the number with its thousands separated by thin spaces (1 234 567), a format common to all languages."""
    return f"{number:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def rate(per_second: float | None) -> str:
    """Return a rate per second."""
    if per_second is None:
        return NOTHING
    return f"{per_second:.1f}" if 0 < per_second < 9.95 else grouped(per_second)


def percent(fraction: float | None) -> str:
    """Return a fraction as a percentage."""
    if fraction is None:
        return NOTHING
    return f"{100 * fraction:.1f} %" if 0 < fraction < 0.0995 else f"{100 * fraction:.0f} %"


# --- moments


@dataclass(frozen=True, slots=True)
class When:
    """Moment as of another moment."""

    ms: int
    relative: str
    #: date and time in the current time zone
    full: str
    #: the same for lists: the time of day, of another day ``24 Nov 03:00``, of another year the date
    brief: str
    iso: str
    #: True if it lies in the past
    over: bool

    @property
    def html(self) -> SafeString:
        """Element with the relative text; the style sheet puts the absolute one behind it."""
        tag = '<time class="dq-when" datetime="{}" title="{}" data-at="{}">{}</time>'
        return format_html(tag, self.iso, self.full, self.brief, self.relative)


def moment(ms: float | None, now_ms: float) -> When | None:
    """Return a moment relative to ``now_ms``; both are Unix ms of one clock."""
    if ms is None:
        return None
    away = (ms - now_ms) / 1000
    relative = _("now") if abs(away) < 1 else (_("in %s") if away > 0 else _("%s ago")) % duration(away)
    try:
        there = datetime_of(ms)
    except (OverflowError, ValueError, OSError):  # beyond the year 9999
        return When(int(ms), relative, f"{ms:.0f} ms", f"{ms:.0f} ms", "", away <= 0)
    brief = local_text(there, _brief_format(timezone.localdate(there), timezone.localdate(datetime_of(now_ms))))
    return When(int(ms), relative, exact(there), brief, there.isoformat(), away <= 0)


def _brief_format(day: date, today: date) -> str:
    """Return the format of a moment that leaves out what it shares with the present one; without places to break."""
    if day == today:
        return "H:i:s"
    return "j\xa0M\xa0H:i" if day.year == today.year else "j\xa0M\xa0Y"


def from_ms(ms: float | None) -> datetime | None:
    """Return a moment from Unix ms; None for None and for values out of range."""
    try:
        moment = datetime_of(ms) if ms else None
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment is None or settings.USE_TZ else timezone.make_naive(moment)


def exact(at: datetime) -> str:
    """Return date and time to the second, in the current time zone."""
    there = timezone.localtime(at) if timezone.is_aware(at) else at
    return f"{date_format(there, 'Y-m-d H:i:s')} {there.tzname() or ''}".strip()


def local_text(at: datetime, pattern: str = "Y-m-d H:i") -> str:
    """Return an aware moment in the current time zone, by default to the minute."""
    return date_format(timezone.localtime(at), pattern)


def ago(at: datetime | None) -> SafeString | str:
    """Return an element with a moment relative to now: "3 min 20 s ago", or "in 5 s"."""
    when = _as_of_now(at)
    return NOTHING if when is None else when.html


def until(at: datetime | None, *, late_after: float | None = None) -> SafeString | str:
    """Return the same for a due time, marked as late if it is overdue by more than ``late_after`` seconds."""
    when = _as_of_now(at)
    if when is None:
        return NOTHING
    overdue = timezone.now().timestamp() - when.ms / 1000
    if late_after is None or overdue <= late_after:
        return when.html
    return format_html("{} {}", when.html, badge(_("late"), "late"))


def _as_of_now(at: datetime | None) -> When | None:
    return None if at is None else moment(at.timestamp() * 1000, timezone.now().timestamp() * 1000)


def clock(ms: float) -> str:
    """Return the time of day of a Unix ms in the current time zone: ``14:03:22``."""
    return f"{local_of(ms):%H:%M:%S}"


def local_of(ms: float) -> datetime:
    """Return a Unix ms in the current time zone."""
    return timezone.localtime(datetime_of(ms))


# --- elements


def progress_bar(fraction: float) -> SafeString:
    """Return a progress bar with its percentage."""
    bar = '<progress class="delayq-bar" max="100" value="{}"></progress> {}'
    return format_html(bar, f"{100 * fraction:.0f}", percent(fraction))


def badge(text: object, kind: str = "") -> SafeString:
    """Return a word in a coloured box; ``kind`` is late, bad, good or empty."""
    return format_html('<span class="delayq-badge delayq-{}">{}</span>', kind or "plain", text)


def named(text: str) -> SafeString | str:
    """Return an id or the name of a task for a column of a list: never broken; the title has all of a long one."""
    return format_html('<span class="dq-name" title="{}">{}</span>', text, text) if text else NOTHING
