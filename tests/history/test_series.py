"""Hours added up: percentiles, rates, series."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.db.models import JSONField, Value
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given, strategies as st

from django_delayq.history import series
from django_delayq.history.series import (
    BOUNDS,
    COLUMNS,
    COUNTS,
    Period,
    SeriesQuery,
    SeriesSum,
    added,
    known_queues,
    named,
    summary,
)
from django_delayq.models.history import HourlyStat

from .past import HOUR, NOON, histogram, hour_of, percentile, seed

DAY = Period(NOON.replace(hour=0), NOON.replace(hour=0) + timedelta(days=1))
LENGTHS = st.lists(st.integers(0, 2**33), min_size=1, max_size=40)


def row(**options: Any) -> tuple[Any, ...]:
    """A row as a query gives it."""
    given = hour_of(**options)
    return tuple(
        given.get(name, None if name.endswith(("p50_ms", "p95_ms", "p99_ms", "max_ms")) else 0) for name in COLUMNS
    )


# -- histograms ------------------------------------------------------------------------------------------------------


@given(lengths=LENGTHS, percent=st.sampled_from([1, 50, 95, 99, 100]))
def test_a_quantile_lies_in_the_bucket_of_the_exact_one(lengths: list[int], percent: int) -> None:
    found = SeriesSum(lateness=histogram(lengths), lateness_max=max(lengths)).lateness_ms(percent)
    place = histogram([percentile(lengths, percent)]).index(1)
    bounds = (0, *BOUNDS, inf)
    assert found is not None
    assert bounds[place] <= found <= min(bounds[place + 1], max(lengths))


@given(one=LENGTHS, other=LENGTHS)
def test_histograms_of_parts_add_up_to_the_one_of_all(one: list[int], other: list[int]) -> None:
    total = histogram(one)
    series.add_counts(total, histogram(other))
    assert total == histogram(one + other)


def test_every_length_has_one_bucket_and_without_counts_there_is_no_quantile() -> None:
    for place, bound in enumerate(BOUNDS):
        assert [histogram([length]).index(1) for length in (bound - 1, bound)] == [place, place + 1]
    assert (len(BOUNDS), BOUNDS[-1]) == (31, 2**30)
    assert SeriesSum().lateness_ms(50) is None
    total = histogram([5])
    for broken in ([], [1, 2], ()):
        series.add_counts(total, broken)
    series.add_counts(total, None, [], [1] * 33)
    series.add_counts(total)
    assert total == histogram([5])


# -- adding up -------------------------------------------------------------------------------------------------------


def test_one_task_and_hour_has_its_exact_percentiles_and_several_those_of_their_histograms() -> None:
    late = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1000]
    one = added([row(late=late)], DAY)
    assert (one.total.lateness_ms(50), one.total.lateness_ms(99)) == (1.0, 1000.0)
    assert one.slots[12].lateness_ms(99) == 1000.0
    two = added([row(late=late), row(late=[700] * 90, task="shop.other")], DAY)
    assert two.tasks["orders", "shop.cancel"].lateness_ms(99) == 1000.0
    assert two.total.lateness_ms(50) == pytest.approx(512 + 488 * 41 / 91, rel=0.02)
    assert two.total.lateness_ms(99) <= 1000


def one_by_one(rows: list[dict[str, Any]], of: Callable[[dict[str, Any]], Any]) -> dict[Any, tuple[Any, ...]]:
    """Rows added up by hand, column after column: what is the same of each group."""
    groups: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for each in rows:
        groups[of(each)].append(each)
    found = {}
    for group, some in groups.items():
        sums = [sum(each.get(name, 0) for each in some) for name in COUNTS]
        measures: list[Any] = []
        for measure in ("lateness", "duration"):
            whole = [each[f"{measure}_histogram"] for each in some if len(each[f"{measure}_histogram"]) == 32]
            measures.append([sum(counts[place] for counts in whole) for place in range(32)])
            measures.append(
                max((each[f"{measure}_max_ms"] for each in some if f"{measure}_max_ms" in each), default=None)
            )
        exact = [some[0].get(f"lateness_p{percent}_ms") for percent in (50, 95, 99)] if len(some) == 1 else None
        found[group] = (len(some), sums, measures, exact)
    return found


def seen_of(tally: SeriesSum) -> tuple[Any, ...]:
    measures = [tally.lateness, tally.lateness_max, tally.duration, tally.duration_max]
    exact = [tally.lateness_ms(percent) for percent in (50, 95, 99)] if tally.rows == 1 else None
    return tally.rows, tally.counts, measures, exact


def at_random(dice: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows of a day, some of them without runs, or with a histogram that is none."""
    names = dice.sample(
        [(hour, queue, f"shop.t{task}") for hour in range(24) for queue in "abc" for task in range(60)], count
    )
    rows = []
    for hour, queue, task in names:
        late = [dice.randrange(2 ** dice.randrange(1, 34)) for _ in range(dice.randrange(4))]
        took = [dice.randrange(90_000) for _ in late]
        made = hour_of(DAY.start + HOUR * hour, queue, task, late=late, took=took, failed=dice.randrange(9))
        if dice.random() < 0.05:
            made["lateness_histogram"] = dice.choice([[], [1, 2]])
        rows.append({**made, "succeeded": dice.randrange(9)})
    return rows


@pytest.mark.django_db
@pytest.mark.parametrize("count", [1, 7, 2_001, 4_100])
def test_rows_are_added_up_as_they_would_be_by_hand(count: int) -> None:
    """In lists as they come, and out of the database; more than are read at a time."""
    rows = at_random(random.Random(count), count)
    seed(*rows)
    slots = one_by_one(rows, lambda each: (each["hour"] - DAY.start) // HOUR)
    tasks = one_by_one(rows, lambda each: (each["queue"], each["task"]))
    (total,) = one_by_one(rows, lambda each: None).values()
    missing = [None if name.endswith(("p50_ms", "p95_ms", "p99_ms", "max_ms")) else 0 for name in COLUMNS]
    lists = [[each.get(name, usual) for name, usual in zip(COLUMNS, missing, strict=True)] for each in rows]
    with CaptureQueriesContext(connection) as queries:
        stored = summary(SeriesQuery(period=DAY), DAY)
    assert len(queries) == 1
    for found in (added(lists, DAY), stored):
        assert {place: seen_of(tally) for place, tally in enumerate(found.slots) if tally.rows} == slots
        assert {name: seen_of(tally) for name, tally in found.tasks.items()} == tasks
        assert seen_of(found.total) == total


@pytest.mark.django_db
def test_an_hour_whose_histogram_is_the_null_of_json_counts_without_it() -> None:
    seed(hour_of(), hour_of(task="shop.other"))
    HourlyStat.objects.filter(task="shop.other").update(lateness_histogram=Value(None, JSONField()))
    found = summary(SeriesQuery(period=DAY), DAY)
    assert found.total["runs"] == 6
    assert sum(found.total.lateness) == 3
    assert sum(found.total.duration) == 6


def test_failing_tasks_are_ordered_by_number_and_by_rate() -> None:
    rows = [
        row(task="shop.often", late=[1] * 100, failed=8, timeout=1, lost=1),
        row(task="shop.always", late=[1] * 2, buried=2),
        row(task="shop.fine"),
        row(task="shop.away", late=[1] * 4, released=2, expired=1),
    ]
    found = added(rows, DAY)
    assert [name[1] for name, _ in found.by_failures()] == ["shop.often", "shop.always"]
    assert [tally.failure_rate for _, tally in found.by_failures()] == [0.1, 1.0]
    assert found.tasks["orders", "shop.fine"].failure_rate == 0


def test_an_hour_in_which_nothing_began_has_no_lateness() -> None:
    found = added([row(late=(), runs=3, lost=3)], DAY)
    assert (found.total["runs"], found.total.lateness_ms(50)) == (3, None)
    assert added([], DAY).total.failure_rate is None


def test_runs_in_an_hour_are_the_mean_of_a_longer_piece() -> None:
    month = Period(DAY.start, DAY.start + timedelta(hours=175))
    assert (month.step, len(month.slots)) == (2, 88)
    found = added([row(hour=month.start, late=[1] * 10), row(hour=month.end - HOUR, late=[1] * 10)], month)
    assert (found.per_hour(0), found.per_hour(87)) == (5.0, 10.0)


# -- periods ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hours", "step"), [(1, 1), (24, 1), (170, 1), (171, 2), (720, 6), (8784, 72), (26352, 168)])
def test_a_chart_never_has_more_pieces_than_fit(hours: int, step: int) -> None:
    period = Period(NOON, NOON + HOUR * hours)
    assert period.step == step
    assert len(period.slots) <= series.MOST_SLOTS
    assert period.slot_of(period.end - HOUR) == len(period.slots) - 1


def test_named_periods_end_with_the_hour_that_goes_on(settings: Any) -> None:
    now = NOON + timedelta(minutes=20)
    assert named("24h", now) == Period(NOON - 23 * HOUR, NOON + HOUR)
    assert named("7d", now).hours == 168
    assert named("today", now) == Period(NOON.replace(hour=0), NOON + HOUR)
    with timezone.override(ZoneInfo("Asia/Kolkata")):  # midnight there is half past six
        assert named("today", now).start == (NOON - timedelta(days=1)).replace(hour=18)
    with timezone.override(ZoneInfo("America/Chicago")):
        assert named("today", now).start == NOON.replace(hour=6)
    with pytest.raises(ValueError, match="no period 'ever'; choose one of: today, 24h, 7d, 30d"):
        named("ever", now)


def test_a_period_is_whole_hours_and_neither_empty_nor_endless() -> None:
    found = Period.between(NOON + timedelta(minutes=5), NOON + timedelta(minutes=65))
    assert (found.start, found.end) == (NOON, NOON + 2 * HOUR)
    for start, end, said in (
        (NOON, NOON, "ends before"),
        (NOON + HOUR, NOON, "ends before"),
        (NOON, NOON + timedelta(days=1200), "longer than"),
        (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), "no calendar"),
    ):
        with pytest.raises(ValueError, match=said):
            Period.between(start, end)


# -- the database ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_wish_means_its_queue_its_task_and_its_period() -> None:
    seed(hour_of(), hour_of(queue="mail"), hour_of(task="shop.other"), hour_of(NOON - timedelta(days=1)))
    assert summary(SeriesQuery(period=DAY), DAY).total["runs"] == 9
    assert summary(SeriesQuery("orders", period=DAY), DAY).total["runs"] == 6
    assert summary(SeriesQuery("orders", "shop.other", DAY), DAY).total["runs"] == 3
    assert summary(SeriesQuery(period=DAY, queues=frozenset({"mail"})), DAY).total["runs"] == 3
    assert summary(SeriesQuery("orders", period=DAY, queues=frozenset({"mail"})), DAY).total["runs"] == 0
    assert SeriesQuery().rows(HourlyStat.objects.all()).count() == 4


@pytest.mark.django_db
def test_the_queues_of_the_history_are_named_once_each() -> None:
    assert known_queues() == []
    pairs = [("c", ""), ("b", "a"), ("a", "z"), ("b", "b")]
    seed(*(hour_of(NOON + HOUR * more, queue, task) for queue, task in pairs for more in range(5)))
    assert known_queues() == ["a", "b", "c"]
