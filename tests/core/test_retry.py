"""Back-off policies: their delays, and their limits."""

from __future__ import annotations

import math
import pickle
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from django_delayq.core import Misconfigured, retry


@given(st.integers(0, 10_000), st.integers())
def test_the_default_grows_with_the_fourth_power_and_a_random_part(n: int, seed: int) -> None:
    random.seed(seed)
    low = n**4 + 15
    assert low <= retry.default_backoff(n) <= low + 30 * (n + 1)


def test_twenty_five_retries_of_the_default_take_about_three_weeks() -> None:
    days = sum(n**4 + 15 + 15 * (n + 1) for n in range(25)) / 86400
    assert 20 < days < 21


def test_presets_give_the_figures_they_promise() -> None:
    assert [retry.fixed(7)(n) for n in (0, 1, 99)] == [7, 7, 7]
    assert [retry.steps(1, 5, 9)(n) for n in range(5)] == [1, 5, 9, 9, 9]
    assert retry.steps([1] * 2 + [5]) == retry.steps(1, 1, 5)
    assert [retry.quadratic(10)(n) for n in range(4)] == [10, 40, 90, 160]
    ladder = retry.ladder()
    assert [ladder(n) for n in (0, 8, 9, 18, 19, 38, 39, 1000)] == [10, 10, 60, 60, 300, 300, 1440, 1440]
    assert retry.fixed(timedelta(minutes=1))(0) == 60


@pytest.mark.parametrize(
    ("value", "pauses"),
    [
        (7, [7, 7, 7]),
        (0.5, [0.5, 0.5, 0.5]),
        (timedelta(minutes=2), [120, 120, 120]),
        ([1, 5], [1, 5, 5]),
        ((1, timedelta(seconds=5), 9.5), [1, 5, 9.5]),
        ("ladder", [10, 10, 10]),
        ("quadratic", [10, 40, 90]),
        (lambda n: n + 1.0, [1, 2, 3]),
    ],
)
def test_a_policy_may_be_given_as_seconds_steps_a_name_or_a_function(value: Any, pauses: list[float]) -> None:
    policy = retry.policy_of(value)
    assert [policy(n) for n in range(3)] == pauses


def test_every_preset_has_its_name() -> None:
    assert set(retry.PRESETS) == {"default", "lowkiq", "ladder", "exponential", "quadratic"}
    assert retry.policy_of("lowkiq") is retry.policy_of("default") is retry.default_backoff
    assert retry.policy_of("exponential") == retry.exponential()
    for name, policy in retry.PRESETS.items():
        assert retry.policy_of(name) is policy and policy(0) >= 0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("laddr", "Did you mean 'ladder'"),
        ("no such thing", "the presets are default, lowkiq, ladder"),
        ([], "at least one pause"),
        (["10"], "numbers of seconds"),
        (-1, "numbers of seconds"),
        (math.nan, "numbers of seconds"),
        (True, "not bool True"),
        (None, "not NoneType None"),
        ({"delay": 1}, "a list of seconds"),
    ],
)
def test_what_is_no_policy_is_refused_with_advice(wrong: Any, sentence: str) -> None:
    with pytest.raises(Misconfigured, match=sentence):
        retry.policy_of(wrong)
    with pytest.raises(Misconfigured, match="at least one"):
        retry.steps()
    for pause in (-1, math.nan, math.inf, "5", None, True, 1e12):
        with pytest.raises(Misconfigured, match="numbers of seconds"):
            retry.fixed(pause)  # type: ignore[arg-type]
        with pytest.raises(Misconfigured):
            retry.exponential(1, pause)  # type: ignore[arg-type]


def test_the_exponential_with_full_jitter_spreads_over_its_whole_range() -> None:
    policy = retry.exponential(1, 1000, full_jitter=True)
    random.seed(7)
    drawn = [policy(20) for _ in range(500)]
    assert min(drawn) < 100
    assert max(drawn) > 900


@given(st.integers(0, 2000), st.sampled_from([1.1, 1.5, 2.0, 3.0]))
def test_the_exponential_never_shrinks_unless_full_jitter_is_wanted(n: int, factor: float) -> None:
    policy = retry.exponential(1, 3600, factor=factor)
    assert policy(n) <= policy(n + 1) + 1e-9
    for full in (False, True):
        assert 0 <= retry.exponential(2, 100, full_jitter=full)(n) <= min(100, 2 * 2 ** min(n, 60))


def test_the_exponential_spreads_over_half_of_each_pause() -> None:
    random.seed(7)
    drawn = [retry.exponential()(3) for _ in range(500)]
    assert 4 <= min(drawn) < 4.2 and 7.8 < max(drawn) <= 8


@pytest.mark.parametrize("preset", [retry.fixed(1), retry.steps(1, 2), retry.exponential(), retry.quadratic(3)])
def test_presets_can_be_compared_and_carried_to_another_process(preset: Any) -> None:
    assert pickle.loads(pickle.dumps(preset)) == preset
    assert "0x" not in repr(preset)
