"""Comparison of two snapshots."""

from __future__ import annotations

import pytest

from django_delayq.core.counts import Counts
from django_delayq.core.figures import Figures, Histogram
from django_delayq.status import Change, QueueStatus, Rates, Snapshot, compare
from django_delayq.status.json_form import as_json

from .conftest import T0
from .test_take import lengths


def queue(name: str, **counters: int) -> QueueStatus:
    return QueueStatus(name, "python", Counts(name, T0, counters=counters), 1, 0)


def look(seconds: float, *queues: QueueStatus, figures: Figures | None = None) -> Snapshot:
    return Snapshot(T0 + seconds * 1000, queues, figures=figures or Figures())


def test_rates_are_the_growth_of_counters() -> None:
    before = look(0, queue("a", created=10, acked=3), queue("gone", acked=100))
    after = look(2, queue("a", created=30, changed=2, acked=13, failed=1, timeout=1, crashed=2), queue("new", acked=4))
    assert compare(before, after) == Change(
        2.0, Rates(11.0, 7.0, 2.0), {"a": Rates(11.0, 5.0, 2.0), "new": Rates(0.0, 2.0, 0.0)}
    )


def test_counters_that_went_back_are_no_change() -> None:
    found = compare(look(0, queue("a", acked=100)), look(1, queue("a", acked=5)))
    assert found.total == Rates()


@pytest.mark.parametrize("seconds", [0, -5])
def test_two_looks_at_one_moment_tell_no_rate(seconds: float) -> None:
    found = compare(look(0, queue("a", acked=1)), look(seconds, queue("a", acked=100)))
    assert (found.seconds, found.total.done) == (0.0, 0.0)


def test_lateness_and_runs_are_of_what_ended_in_between() -> None:
    before = Figures({"a": lengths(5, 5)}, {("a", "x"): lengths(100), ("a", "y"): lengths(50)})
    after = Figures(
        {"a": lengths(5, 5, 1000), "b": lengths(10)},
        {("a", "x"): lengths(100, 250), ("a", "y"): lengths(50), ("b", "x"): lengths(1)},
    )
    found = compare(look(0, queue("a"), figures=before), look(1, queue("a"), queue("b"), figures=after))
    assert (found.queues["a"].lateness, found.queues["a"].run) == (lengths(1000), lengths(250))
    assert (found.total.lateness, found.total.run) == (lengths(1000, 10), lengths(250, 1))
    assert dict(found.runs) == {("a", "x"): lengths(250), ("b", "x"): lengths(1)}


def test_figures_that_redis_lost_begin_anew() -> None:
    before, after = Figures({"a": lengths(5, 5)}), Figures({"a": lengths(10)})
    found = compare(look(0, queue("a"), figures=before), look(1, queue("a"), figures=after))
    assert found.total.lateness == lengths(10)
    assert found.total.run == Histogram()


def test_rates_of_the_json_form_have_one_decimal() -> None:
    shown = as_json(Snapshot(T0), Change(1.0, Rates(scheduled=12.345, done=0.06, failing=1.0)))
    rates = shown["totals"]["rates"]
    assert (rates["scheduled"], rates["done"], rates["failing"]) == (12.3, 0.1, 1.0)
