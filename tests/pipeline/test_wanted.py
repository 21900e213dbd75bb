"""Hours and days that are to be computed."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from django_delayq.pipeline.lake import batch_name, may_have
from django_delayq.pipeline.wanted import Wanted, by_day, hour_number, lies_in, parts, whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = date(2026, 10, 20)
NEXT = DAY + timedelta(days=1)
MIDNIGHT = datetime(2026, 10, 20, tzinfo=UTC)


def test_an_hour_is_found_again_from_its_number(spark: SparkSession) -> None:
    moments = [
        MIDNIGHT,
        MIDNIGHT + timedelta(hours=23, minutes=59),
        MIDNIGHT + timedelta(hours=24),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 22, 30, tzinfo=UTC),
        None,
    ]
    rows = spark.createDataFrame([(moment,) for moment in moments], "ts timestamp")
    numbers = [row.number for row in rows.select(hour_number(F.col("ts")).alias("number")).collect()]

    assert numbers[-1] is None
    assert by_day(numbers[:-1]) == {
        DAY: {0, 23},
        NEXT: {0},
        date(1970, 1, 1): {0},
        date(1969, 12, 31): {22},
    }
    assert by_day([]) == {}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({DAY: frozenset({3})}, [3]),
        ({DAY: frozenset({3, 4, 7}), NEXT: frozenset({0})}, [3, 4, 7, 24]),
        ({DAY: frozenset({23}), NEXT: frozenset({0, 1})}, [23, 24, 25]),
        (whole([NEXT]), list(range(24, 48))),
        ({DAY: frozenset()}, []),
        ({}, []),
    ],
)
def test_only_moments_of_wanted_hours_lie_in_them(spark: SparkSession, wanted: Wanted, found: list[int]) -> None:
    begins = [MIDNIGHT + timedelta(hours=hour) for hour in range(-1, 50)]
    ends = [begin + timedelta(hours=1, microseconds=-1) for begin in begins]
    rows = spark.createDataFrame([(moment,) for moment in (*begins, *ends, None)], "ts timestamp")

    kept = [
        row.number
        for row in rows.where(lies_in(F.col("ts"), wanted))
        .select((hour_number(F.col("ts")) - F.lit(int(MIDNIGHT.timestamp()) // 3600)).alias("number"))
        .collect()
    ]

    assert sorted(kept) == sorted(2 * found)


@pytest.mark.parametrize(
    ("rows", "most_days", "most_rows", "sizes"),
    [
        ({}, 3, 0, [3, 3, 1]),
        ({0: 5, 1: 5, 2: 5, 3: 50, 4: 1}, 31, 10, [2, 1, 1, 3]),
        ({0: 100, 6: 100}, 31, 10, [1, 5, 1]),
        ({}, 31, 0, [7]),
    ],
)
def test_days_come_in_portions_that_are_not_too_large(
    rows: dict[int, int], most_days: int, most_rows: int, sizes: list[int]
) -> None:
    days = [DAY + timedelta(days=number) for number in range(7)]
    found = list(parts(days, {days[at]: count for at, count in rows.items()}, most_days, most_rows))
    assert [len(part) for part in found] == sizes
    assert [day for part in found for day in part] == days
    assert list(parts([], {}, 1, 1)) == []


def test_the_name_of_a_batch_tells_which_hours_it_has() -> None:
    name = batch_name("ab12cd34-7", {9, 11})
    assert name == "batch=ab12cd34-7-h9-11"
    assert [hour for hour in range(24) if may_have(name, {hour})] == [9, 10, 11]
    assert may_have(name, {3, 10})
    assert not may_have(name, set())
    for unknown in (batch_name("ab12cd34-7", None), "batch=compact-0abc1234", "batch=q-h1", "odd"):
        assert may_have(unknown, {0})
