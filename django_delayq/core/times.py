"""Times: what callers pass as due times and spans, Unix milliseconds, aware datetimes and texts in ISO 8601.

A ``delay`` stays a delay until Redis adds it to its own clock; an ``at`` is a moment and becomes Unix milliseconds.
Fractions of a millisecond are rounded up, so that no job is early.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from .errors import InvalidJob
from .inputs import short

TEN_YEARS_MS: Final = 3653 * 86_400_000
#: latest possible due time (in the year 2255): due scores are microseconds, and a double holds them exactly up to 2^53
MAX_DUE_MS: Final = 9_000_000_000_000
#: length of a lease if neither its holder nor the job names one
USUAL_TTR_MS: Final = 60_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_LONGEST_TEXT: Final = 64
_HINT_MS: Final = "is it in milliseconds? Seconds are expected"
_HINT_FAR: Final = "if it is meant, the setting ALLOW_FAR allows it"


def due_of(
    *,
    delay: timedelta | float | None = None,
    at: datetime | float | None = None,
    zone: tzinfo | None = None,
    allow_far: bool = False,
    what: str = "at",
) -> tuple[int | None, int | None]:
    """Return ``(due_ms, delay_ms)``, of which exactly one is set. Without ``delay`` and ``at`` the job is due at once.

    Args:
        delay: from now, by Redis's clock: a ``timedelta`` or seconds. A negative one is due at once.
        at: a moment: a ``datetime`` or Unix seconds. One in the past is due at once.
        zone: the zone of naive datetimes; None = they are refused, as Django does under ``USE_TZ``.
        allow_far: accept due times more than ten years ahead.
        what: name of ``at`` in messages.

    Raises:
        InvalidJob: both are given, or one is not usable; the message names a valid form.
    """
    if at is None:
        return None, 0 if delay is None else delay_ms_of(delay, allow_far=allow_far)
    if delay is not None:
        raise InvalidJob("delay= and at= exclude each other; give one of them")
    ms = _moment(at, zone, what)
    if ms < 0:
        raise InvalidJob(f"{what}= is before 1970; give a time from now as delay=")
    _check_far(f"{what}=", ms, at, allow_far=allow_far, since_ms=int(time.time() * 1000))
    return ms, None


def _moment(at: object, zone: tzinfo | None, what: str) -> int:
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            if zone is None:
                raise InvalidJob(
                    f"{what}={at.isoformat()} has no time zone; use django.utils.timezone.now() or "
                    "timezone.make_aware()"
                )
            at = at.replace(tzinfo=zone)
        return ms_of(at)
    if isinstance(at, date):
        raise InvalidJob(f"{what}= is a date; give a datetime, because a job is due at one moment of a day")
    if isinstance(at, timedelta):
        raise InvalidJob(f"{what}= is a timedelta; a time from now is given as delay=")
    return _ms_of_number(at, what, "a datetime or Unix seconds")


def delay_ms_of(delay: timedelta | float, *, allow_far: bool = False) -> int:
    """Return a delay, a ``timedelta`` or seconds, as whole milliseconds, rounded up; 0 for a negative one.

    A negative delay is a due time that has passed (``order.expires_at - now()``), so the job is due now.

    Raises:
        InvalidJob: not a number, or more than ten years (unless ``allow_far``).
    """
    return max(0, _ms_of(delay, "delay", allow_far=allow_far))


def span_ms_of(what: str, span: timedelta | float, *, allow_far: bool = False) -> int:
    """Return a length of time, a ``timedelta`` or seconds, as whole milliseconds, rounded up.

    Raises:
        InvalidJob: negative, not a number, or more than ten years (unless ``allow_far``). The message calls it
            ``what``.
    """
    ms = _ms_of(span, what, allow_far=allow_far)
    if ms < 0:
        raise InvalidJob(f"{what} is negative ({_show(ms)}); give 0 or more seconds")
    return ms


def ttr_ms_of(ttr: timedelta | float) -> int:
    """Return the length of a lease in ms.

    Raises:
        InvalidJob: it is not a valid length, or is 0.
    """
    ms = span_ms_of("ttr", ttr)
    if ms == 0:
        raise InvalidJob("ttr is 0, so nothing could be held; give the seconds that the work may take")
    return ms


def _ms_of(span: timedelta | float, what: str, *, allow_far: bool) -> int:
    if isinstance(span, timedelta):
        ms = _ms_of_span(span)
    else:
        ms = _ms_of_number(span, what, "a timedelta or a number of seconds")
    _check_far(what, ms, span, allow_far=allow_far)
    return ms


def _check_far(what: str, ms: int, given: object, *, allow_far: bool, since_ms: int = 0) -> None:
    """Refuse a time of more than ten years; with ``allow_far`` only one that cannot be stored."""
    if ms <= since_ms + TEN_YEARS_MS:
        return
    shown, ahead, length = (_show_moment(ms), " ahead", "later") if since_ms else (_show(ms), "", "longer")
    if not allow_far:
        hint = _HINT_FAR if isinstance(given, (datetime, timedelta)) else _HINT_MS
        raise InvalidJob(f"{what} is more than ten years{ahead} ({shown}); {hint}")
    if ms > MAX_DUE_MS:
        raise InvalidJob(f"{what} is {length} than can be stored ({shown}); the year 2255 is the end")


def _ms_of_number(value: object, what: str, wanted: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidJob(f"{what} must be {wanted}, not {type(value).__name__}")
    if isinstance(value, int):
        return int(value) * 1000
    if not math.isfinite(value):
        raise InvalidJob(f"{what} is {value}; give {wanted}")
    # 0.07 * 1000 is 70.00000000000001: rounding noise of binary fractions must not round up a millisecond.
    return math.ceil(round(value * 1000, 3)) if abs(value) < 1e13 else int(value) * 1000


def _ms_of_span(span: timedelta) -> int:
    """Return a span in ms, rounded up."""
    ms, rest = divmod(span, _MS)
    return ms + bool(rest)


def _show(ms: int) -> str:
    return f"{ms / 1000:g} s" if abs(ms) < 10**18 else f"about 10^{len(f'{abs(ms):x}') * 1204 // 1000} ms"


def _show_moment(ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="seconds")
    except OverflowError:
        return "after the year 9999"


def check_timezone(name: str, value: object) -> object:
    """Return ``value`` if it is the name of a time zone; otherwise raise :class:`InvalidJob`."""
    try:
        ZoneInfo(value if isinstance(value, str) else "")
    except (LookupError, ValueError, OSError):
        raise InvalidJob(f'{name} must be a name like "Europe/Berlin", got {short(value)}') from None
    return value


# -- moments -----------------------------------------------------------------------------------------------------------


def datetime_of(ms: float) -> datetime:
    """Return Unix ms as an aware ``datetime`` in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def ms_of(moment: datetime) -> int:
    """Return an aware ``datetime`` as Unix ms, rounded up, so that no job is early."""
    return _ms_of_span(moment - _EPOCH)


def iso_of(ms: float | None) -> str | None:
    """Return Unix ms as ``2026-11-21T11:23:43.123Z``; None for None and for a moment outside the calendar."""
    if ms is None:
        return None
    try:
        return datetime_of(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def parse_moment(text: object, *, what: str = "") -> datetime:
    """Return the aware ``datetime`` of a text in ISO 8601; messages begin with ``what``.

    Raises:
        InvalidJob: the text is not ISO 8601, or has no time zone.
    """
    prefix = f"{what}: " if what else ""
    try:
        if not isinstance(text, str) or len(text) > _LONGEST_TEXT or not text.isascii():
            raise ValueError
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidJob(
            f"{prefix}{short(text)} is no moment; write it in ISO 8601, like 2026-11-21T08:00:00+01:00"
        ) from None
    if moment.utcoffset() is None:
        raise InvalidJob(f"{prefix}{short(text)} has no time zone; end it with one, like +01:00 or Z")
    return moment
