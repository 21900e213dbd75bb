"""Moments as Unix ms, datetimes and texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from django_delayq.core import InvalidJob
from django_delayq.core.moments import datetime_of, iso_of, ms_of, parse_moment


def test_a_moment_is_the_same_in_every_form() -> None:
    moment = datetime(2026, 11, 21, 11, 23, 43, 123_000, UTC)
    assert iso_of(ms_of(moment)) == "2026-11-21T11:23:43.123Z"
    assert parse_moment("2026-11-21T11:23:43.123Z") == datetime_of(ms_of(moment)) == moment
    assert parse_moment("2026-11-21T12:23:43.123+01:00") == moment


def test_a_fraction_of_a_millisecond_is_rounded_up() -> None:
    assert ms_of(datetime(1970, 1, 1, 0, 0, 0, 1, UTC)) == 1
    assert ms_of(datetime(1970, 1, 1, 1, 0, 0, 1, timezone(timedelta(hours=1)))) == 1
    assert ms_of(datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC)) == 0


@pytest.mark.parametrize("ms", [None, 1e18, -1e18, float("nan")])
def test_a_moment_outside_the_calendar_has_no_text(ms: float | None) -> None:
    assert iso_of(ms) is None


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "1e3", "2026-99-99T00:00:00Z", "2026-11-21T00:00:00Z" * 4, "\u0662", 5, None]
)
def test_other_texts_are_refused_with_an_example(text: object) -> None:
    with pytest.raises(InvalidJob, match=r"is no moment; write it in ISO 8601, like 2026-"):
        parse_moment(text)


@pytest.mark.parametrize("text", ["2026-11-21", "2026-11-21T08:00:00"])
def test_a_moment_needs_a_time_zone(text: str) -> None:
    with pytest.raises(InvalidJob, match="has no time zone; end it with one"):
        parse_moment(text)
