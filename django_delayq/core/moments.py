"""Moments as Unix milliseconds, aware datetimes and texts in ISO 8601, converted into each other."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from .errors import InvalidJob
from .inputs import short
from .times import ms_of_span

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_TEXT: Final = 64


def datetime_of(ms: float) -> datetime:
    """Return Unix ms as an aware ``datetime`` in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def ms_of(moment: datetime) -> int:
    """Return an aware ``datetime`` as Unix ms, rounded up, so that no job is early."""
    return ms_of_span(moment - _EPOCH)


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
