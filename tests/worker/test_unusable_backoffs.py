"""Back-offs of users that fail, or return what is no pause."""

from __future__ import annotations

import logging
import math
from datetime import timedelta
from typing import Any

import pytest

from django_delayq.core import TaskOptions
from tests.support.attempt_stage import MAX_DELAY, safe_delay


def _raises(_n: int) -> float:
    raise ValueError("no")


def _exits(_n: int) -> float:
    raise SystemExit(3)


@pytest.mark.parametrize(
    "policy",
    [
        _raises,
        _exits,
        lambda n: None,
        lambda n: "10",
        lambda n: math.nan,
        lambda n: math.inf,
        lambda n: True,
        lambda: 1.0,
        lambda n: -math.inf,
        lambda n: 1j,
    ],
)
def test_a_broken_policy_falls_back_to_the_default_and_is_logged(policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert 16 <= safe_delay(policy, 1) <= 76
    assert "the default back-off is used" in caplog.text


@pytest.mark.parametrize(
    ("answer", "delay"),
    [
        (0, 0.0),
        (-5, 0.0),
        (2.5, 2.5),
        (timedelta(minutes=1), 60.0),
        (10**30, MAX_DELAY),
        (10**400, MAX_DELAY),
        (-(10**400), 0.0),
    ],
)
def test_answers_are_brought_into_range(answer: Any, delay: float) -> None:
    assert safe_delay(lambda n: answer, 3) == delay


def test_the_default_is_clamped_too() -> None:
    assert safe_delay(TaskOptions().retry_in, 10**9) == MAX_DELAY
    assert safe_delay(TaskOptions().retry_in, 10**90) == MAX_DELAY


def test_the_programs_end_is_not_swallowed() -> None:
    def interrupted(_n: int) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        safe_delay(interrupted, 0)
