"""Options and columns of reading the queue: checked and understood without Spark running."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
)
from pyspark.sql.types import LongType, StructType, TimestampNTZType

from django_delayq.core.errors import Misconfigured
from django_delayq.pipeline.jobs import JOBS, JobsSource, ReadOptions

REDIS = {"redis": "redis://localhost:1/0"}
T0_MS = 1_700_000_000_000
T0 = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def read(**options: str) -> ReadOptions:
    return ReadOptions.parse({**REDIS, **options})


def test_without_options_all_queues_are_read_as_they_wait_and_run() -> None:
    options = read()
    assert (options.queues, options.states) == ((), ("waiting", "reserved"))
    assert (options.low, options.high, options.ids) == (None, None, None)
    assert (options.fetch, options.missing_queue) == (200, "fail")


def test_every_option_is_understood() -> None:
    options = read(
        queue=" a, b,a ",
        states="MORGUE, waiting",
        dueFrom="2023-11-14T22:13:20Z",
        dueTo=str(T0_MS + 5),
        fetch="10",
        missingQueue="empty",
        ids="a, b,a",
    )
    assert options == ReadOptions(("a", "b"), ("waiting", "morgue"), T0_MS, T0_MS + 5, ("a", "b"), 10, "empty")
    assert read(queue="*", states="*") == ReadOptions(states=("waiting", "reserved", "gated", "morgue"))


@pytest.mark.parametrize("text", ["2023-11-14T23:13:20+01:00", "2023-11-14 22:13:20.000Z", str(T0_MS), f" {T0_MS} "])
def test_a_moment_may_be_written_in_several_ways(text: str) -> None:
    assert read(dueFrom=text).low == T0_MS


def test_an_id_with_a_comma_is_given_as_json() -> None:
    assert read(ids='["a,b", 7, " x"]').ids == ("a,b", "7", " x")
    assert read(ids=" [] ").ids == ()


def test_a_fraction_of_a_millisecond_is_rounded_up() -> None:
    assert read(dueFrom="2023-11-14T22:13:20.000001Z").low == T0_MS + 1
    assert read(dueTo="1969-12-31T23:59:59.999500Z").high == 0


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("dueFrom", "2023-11-14T22:13:20", "no time zone"),
        ("dueTo", "2023-11-14", "no time zone"),
        ("dueTo", "tomorrow", "ISO 8601"),
        ("dueFrom", "1e3", "ISO 8601"),
        ("states", "waiting,buried", "states must be one of waiting, .*; got 'buried'"),
        ("states", "wating", "Did you mean 'waiting'"),
        ("states", " , ", "empty"),
        ("queue", "", "empty"),
        ("queue", "a,1b", "queue name '1b' is not usable"),
        ("fetch", "0", "1 to 1000"),
        ("fetch", "1001", "1 to 1000"),
        ("fetch", "ten", "1 to 1000"),
        ("pushdown", "true", "'pushdown' is no option here"),
        ("ids", " , ", "option ids is empty"),
        ("ids", '["a"', "ids must be JSON like"),
        ("ids", '["a", null]', "id must be a UUID, a str"),
        ("ids", '["a\\u0000"]', "control characters"),
        ("missingQueue", "ignore", "one of fail, empty"),
        ("dueform", "1", "Did you mean 'dueFrom'"),
        ("path", "somewhere", "is no option"),
    ],
)
def test_what_cannot_be_an_option_is_refused_with_what_to_write(name: str, value: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        read(**{name: value})


def test_bounds_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(Misconfigured, match="other way round"):
        read(dueFrom="5", dueTo="5")


def test_names_of_options_have_no_large_and_small_letters() -> None:
    source = JobsSource(CaseInsensitiveDict({**REDIS, "DUEFROM": "5", "Ids": "a"}))
    assert source.schema() == JOBS
    reader = source.reader(JOBS)
    assert (reader.options.low, reader.options.ids) == (5, ("a",))


def test_options_are_checked_before_anything_is_read() -> None:
    with pytest.raises(Misconfigured, match="ISO 8601"):
        JobsSource({**REDIS, "dueFrom": "?"}).schema()
    with pytest.raises(Misconfigured, match="1 to 1000"):
        JobsSource({**REDIS, "fetch": "?"}).reader(JOBS)


# -- columns -----------------------------------------------------------------------------------------------------------


def test_any_columns_may_be_asked_for_in_any_order() -> None:
    schema = StructType().add("due", "timestamp").add("id", "string")
    for requested in (schema, JOBS):
        JobsSource(REDIS).reader(requested)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("dew", LongType(), "Did you mean 'due'"),
        ("shard", LongType(), "is int, not bigint"),
        ("x", LongType(), "no column 'x'"),
        ("due", TimestampNTZType(), "is timestamp, not timestamp_ntz"),
    ],
)
def test_a_column_that_no_job_has_is_refused(name: str, kind: Any, text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        JobsSource(REDIS).reader(StructType().add(name, kind))
