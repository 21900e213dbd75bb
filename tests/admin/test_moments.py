"""Moments of the admin's pages: relative, and absolute beside it."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.utils import timezone

from django_delayq.admin.formatting import moment

NOW = "2026-11-23 12:00:00"


def ms(text: str) -> float:
    return timezone.make_aware(datetime.fromisoformat(text)).timestamp() * 1000


@pytest.mark.parametrize(
    ("text", "relative", "brief"),
    [
        ("2026-11-23 11:59:15", "45 s ago", "11:59:15"),
        ("2026-11-24 03:00:00", "in 15 h", "24 Nov 03:00"),
        ("2027-01-02 12:00:00", "in 40 d", "2 Jan 2027"),
    ],
)
def test_a_list_shows_the_time_of_day_or_the_date_beside_the_relative_time(
    text: str, relative: str, brief: str
) -> None:
    when = moment(ms(text), ms(NOW))

    assert when is not None
    assert (when.relative, when.brief.replace("\xa0", " ")) == (relative, brief)
    assert when.full.startswith(text)
    assert f'data-at="{when.brief}"' in when.html


def test_a_moment_out_of_range_is_shown_as_its_number() -> None:
    when = moment(1e18, ms(NOW))

    assert when is not None
    assert when.brief == "1000000000000000000 ms"
