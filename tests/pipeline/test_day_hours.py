"""Hours and days that are to be computed."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from django_delayq.pipeline.day_hours import DayHours, hour_number, lies_in, parts, whole

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
    assert [divmod(number, 24) for number in numbers[:-1]] == [
        ((DAY - date(1970, 1, 1)).days, 0),
        ((DAY - date(1970, 1, 1)).days, 23),
        ((NEXT - date(1970, 1, 1)).days, 0),
        (0, 0),
        (-1, 22),
    ]


@pytest.mark.parametrize(
    ("selected", "numbers"),
    [
        ({DAY: frozenset({3})}, [3]),
        ({DAY: frozenset({3, 4, 7}), NEXT: frozenset({0})}, [3, 4, 7, 24]),
        ({DAY: frozenset({23}), NEXT: frozenset({0, 1})}, [23, 24, 25]),
        (whole([NEXT]), list(range(24, 48))),
        ({DAY: frozenset()}, []),
        ({}, []),
    ],
)
def test_only_moments_of_wanted_hours_lie_in_them(spark: SparkSession, selected: DayHours, numbers: list[int]) -> None:
    begins = [MIDNIGHT + timedelta(hours=hour) for hour in range(-1, 50)]
    ends = [begin + timedelta(hours=1, microseconds=-1) for begin in begins]
    rows = spark.createDataFrame([(moment,) for moment in (*begins, *ends, None)], "ts timestamp")

    kept = [
        row.number
        for row in rows.where(lies_in(F.col("ts"), selected))
        .select((hour_number(F.col("ts")) - F.lit(int(MIDNIGHT.timestamp()) // 3600)).alias("number"))
        .collect()
    ]

    assert sorted(kept) == sorted(2 * numbers)


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
