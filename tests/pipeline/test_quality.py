"""Expectations on attempts, and the handling of attempts that break them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from django_delayq.pipeline import quality
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.quality import EXPECTATIONS, Expectation
from django_delayq.pipeline.tables import ATTEMPTS
from django_delayq.pipeline.transforms import attempts

from .history_stage import at, event, frame, never_begun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_each_broken_expectation_is_counted_by_its_name_and_nulls_break_none(spark: SparkSession) -> None:
    far = datetime.now(UTC) + timedelta(days=1)
    rows = [
        event(),
        never_begun("lost", attempt=None, due=None),
        event(id=None),
        event(id=""),
        event(task=None),
        event(outcome="odd"),
        event(ts=far),
        event(attempt=0),
        event(duration_ms=-1),
        event(started=at() - timedelta(hours=1)),
        never_begun("undecodable", task=None),
    ]
    counted = attempts(frame(spark, rows), {}).agg(*quality.counters(EXPECTATIONS)).first()

    assert counted is not None
    assert quality.by_name(EXPECTATIONS, counted.asDict()) == {
        "id is known": 2,
        "task is known": 1,
        "outcome is known": 1,
        "is not of the future": 1,
        "attempt is counted from 1": 1,
        "does not end before it begins": 1,
        "does not begin before it is due": 1,
    }
    assert counted["bad"] == 2


def test_the_reason_names_all_that_drops_a_row_and_nothing_else(spark: SparkSession) -> None:
    expected = (
        Expectation("first", "id <> 'x'", "drop"),
        Expectation("warned", "id <> 'x'"),
        Expectation("second", "attempt < 5", "drop"),
    )
    rows = attempts(frame(spark, [event(id="x", attempt=9), event(id="y", attempt=9), event(id="z")]), {})

    found = {row.id: row.reason for row in rows.withColumn("reason", quality.reason_of(expected)).collect()}

    assert found == {"x": "first, second", "y": "second", "z": None}


def test_a_run_ends_if_what_must_be_true_is_not(spark: SparkSession) -> None:
    strict = Expectation("worker is one of ours", "worker LIKE 'w%'", "fail")
    good = attempts(frame(spark, [event()]), {})
    bad = attempts(frame(spark, [event(worker="x"), event(), event(worker="y")]), {})

    quality.refuse_broken(good, [*EXPECTATIONS, strict])
    with pytest.raises(PipelineError, match=r"'worker is one of ours': 2 rows.*The events are kept"):
        quality.refuse_broken(bad, [*EXPECTATIONS, strict])


@pytest.mark.parametrize(
    ("expectations", "said"),
    [
        ([Expectation("one", "id = 1"), Expectation("one", "id = 2")], "Two expectations are named 'one'"),
        ([Expectation("broken", "id ==== 1")], "'broken' is no SQL over an attempt"),
        ([Expectation("elsewhere", "price > 0")], "'elsewhere' is no SQL over an attempt.*price"),
        ([Expectation("number", "attempt + 1")], "'number' must be true or false, but it is of type integer"),
    ],
)
def test_expectations_that_cannot_be_computed_are_refused_before_a_row_is_read(
    spark: SparkSession, expectations: list[Expectation], said: str
) -> None:
    with pytest.raises(PipelineError, match=said):
        quality.check(spark.createDataFrame([], ATTEMPTS), expectations)


def test_the_expectations_that_come_with_it_can_be_computed(spark: SparkSession) -> None:
    quality.check(spark.createDataFrame([], ATTEMPTS), EXPECTATIONS)


@pytest.mark.parametrize("wrong", [("", "true", "warn"), ("a", "", "warn"), ("a", "true", "shout")])
def test_an_expectation_without_name_or_expression_or_with_an_unknown_mode_is_refused(wrong: tuple[str, ...]) -> None:
    with pytest.raises(PipelineError):
        Expectation(*wrong)  # type: ignore[arg-type]
