"""Times: accepted forms of due times, that no job runs early, and moments as numbers, datetimes and texts."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from django_delayq.core import InvalidJob
from django_delayq.core.times import (
    MAX_DUE_MS,
    TEN_YEARS_MS,
    datetime_of,
    delay_ms_of,
    due_of,
    iso_of,
    ms_of,
    parse_moment,
    span_ms_of,
)

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, (None, 0)),
        ({"delay": 0}, (None, 0)),
        ({"delay": 60}, (None, 60_000)),
        ({"delay": 0.07}, (None, 70)),
        ({"delay": 1.1}, (None, 1100)),
        ({"delay": 0.0001}, (None, 1)),
        ({"delay": timedelta(minutes=30)}, (None, 1_800_000)),
        ({"delay": timedelta(microseconds=1)}, (None, 1)),
        ({"at": 1_900_000_000}, (1_900_000_000_000, None)),
        ({"at": 1_900_000_000.25}, (1_900_000_000_250, None)),
        ({"at": 0}, (0, None)),
        ({"at": datetime(1970, 1, 2, tzinfo=UTC)}, (86_400_000, None)),
        ({"at": datetime(2030, 6, 1, 12, tzinfo=BERLIN)}, (1_906_538_400_000, None)),
        ({"at": datetime(2030, 1, 1, microsecond=1, tzinfo=UTC)}, (1_893_456_000_001, None)),
        ({"at": datetime(2030, 6, 1, 12), "zone": BERLIN}, (1_906_538_400_000, None)),
    ],
)
def test_what_callers_may_write(given: dict[str, Any], wanted: tuple[int | None, int | None]) -> None:
    assert due_of(**given) == wanted


@given(st.floats(0, 3e8))
def test_a_delay_is_never_shorter_than_asked_and_at_most_a_millisecond_longer(seconds: float) -> None:
    ms = delay_ms_of(seconds)
    assert -0.0006 <= ms - seconds * 1000 <= 1.0006


@given(st.datetimes(datetime(1970, 1, 2), datetime(2029, 1, 1), timezones=st.timezones()))
def test_a_moment_is_exact_in_every_zone(at: datetime) -> None:
    due_ms, _ = due_of(at=at)
    assert due_ms is not None
    exact = Fraction((at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1), 1000)
    assert 0 <= due_ms - exact < 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"delay": 1, "at": 2}, "give one of them"),
        ({"delay": math.nan}, "delay is nan"),
        ({"delay": math.inf}, "delay is inf"),
        ({"delay": True}, "a timedelta or a number of seconds, not bool"),
        ({"delay": "60"}, "not str"),
        ({"delay": 1_800_000_000}, "more than ten years.*is it in milliseconds"),
        ({"delay": 10**400}, "more than ten years"),
        ({"delay": 1e300}, "more than ten years"),
        ({"delay": timedelta.max}, r"more than ten years \([^;]*\); if it is meant"),
        ({"at": datetime(2030, 1, 1)}, "has no time zone; use django.utils.timezone"),
        ({"at": date(2030, 1, 1)}, "is a date; give a datetime"),
        ({"at": timedelta(1)}, "given as delay="),
        ({"at": "2030-01-01"}, "a datetime or Unix seconds, not str"),
        ({"at": False}, "not bool"),
        ({"at": math.nan}, "at is nan"),
        ({"at": -1}, "before 1970"),
        ({"at": datetime(1960, 1, 1, tzinfo=UTC)}, "before 1970"),
        ({"at": 1_900_000_000_000}, "more than ten years ahead.*is it in milliseconds"),
        ({"at": datetime(2100, 1, 1, tzinfo=UTC)}, r"ten years ahead \(2100-01-01T00:00:00\+00:00\); if it is meant"),
        ({"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))}, "more than ten years ahead"),
        ({"at": 10**400}, "more than ten years ahead"),
        ({"at": 10**400, "allow_far": True}, "later than can be stored"),
        ({"at": datetime(2300, 1, 1, tzinfo=UTC), "allow_far": True}, "the year 2255 is the end"),
        ({"delay": timedelta(days=366 * 400), "allow_far": True}, "longer than can be stored"),
    ],
)
def test_what_is_refused_says_what_to_write_instead(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message) as caught:
        due_of(**given)
    assert len(str(caught.value)) < 200


def test_the_far_future_is_allowed_on_request() -> None:
    at = datetime(2200, 1, 1, tzinfo=UTC)
    assert due_of(at=at, allow_far=True) == (7_258_118_400_000, None)
    assert delay_ms_of(TEN_YEARS_MS / 1000) == TEN_YEARS_MS


def test_the_latest_due_time_still_fits_into_a_double_as_a_score() -> None:
    score = MAX_DUE_MS * 1000 + 999
    assert int(float(score)) == score
    assert int(float(score + 1)) == score + 1


def test_naive_moments_at_the_ends_of_the_calendar_are_no_crash() -> None:
    with pytest.raises(InvalidJob):
        due_of(at=datetime.min, zone=BERLIN)
    with pytest.raises(InvalidJob):
        due_of(at=datetime.max, zone=BERLIN)


@pytest.mark.parametrize("delay", [-1, -0.5, -1e300, timedelta(seconds=-1), timedelta.min])
def test_a_negative_delay_is_due_now(delay: float | timedelta) -> None:
    assert due_of(delay=delay) == (None, 0)
    with pytest.raises(InvalidJob, match=r"expires is negative \(-1 s\); give 0 or more seconds"):
        span_ms_of("expires", -1)


def test_a_moment_is_the_same_in_every_form() -> None:
    moment = datetime(2026, 11, 21, 11, 23, 43, 123_000, UTC)
    assert iso_of(ms_of(moment)) == "2026-11-21T11:23:43.123Z"
    assert parse_moment("2026-11-21T11:23:43.123Z") == datetime_of(ms_of(moment)) == moment
    assert parse_moment("2026-11-21T12:23:43.123+01:00") == moment
    assert ms_of(datetime(1970, 1, 1, 1, 0, 0, 1, timezone(timedelta(hours=1)))) == 1, "a part of a ms is rounded up"
    assert ms_of(datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC)) == 0


@pytest.mark.parametrize("ms", [None, 1e18, -1e18, float("nan")])
def test_a_moment_outside_the_calendar_has_no_text(ms: float | None) -> None:
    assert iso_of(ms) is None


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "1e3", "2026-99-99T00:00:00Z", "2026-11-21T00:00:00Z" * 4, "\u0662", 5, None]
)
def test_other_texts_are_refused_with_an_example(text: object) -> None:
    for naive in ("2026-11-21", "2026-11-21T08:00:00"):
        with pytest.raises(InvalidJob, match="has no time zone; end it with one"):
            parse_moment(naive)
    with pytest.raises(InvalidJob, match=r"is no moment; write it in ISO 8601, like 2026-"):
        parse_moment(text)
