"""Attempts and figures by hour, as pure functions of events."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from django_delayq.models.history import HourlyStat
from django_delayq.pipeline.transforms import attempts, day_of, hours

from .history_stage import Row, at, bulk, event, figures, frame, never_begun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: those of the model, in its order
COLUMNS = [each.name for each in HourlyStat._meta.fields if each.name != "id"]


def computed(spark: SparkSession, rows: list[Row], sla: dict[str, float] | None = None) -> dict[tuple[Any, ...], Row]:
    found = hours(attempts(frame(spark, rows), {"*": 60.0} if sla is None else sla)).toArrow().to_pylist()
    return {(row["hour"], row["queue"], row["task"]): row for row in found}


def some_events(seed: int, count: int) -> list[Row]:
    """Events of two queues and three tasks within five hours, of all kinds."""
    dice = random.Random(seed)
    kinds = ["succeeded"] * 6 + ["failed", "timeout", "crashed", "buried", "exhausted", "poison", "an odd reason"]
    found: list[Row] = []
    for _ in range(count):
        ts = at() + timedelta(minutes=dice.randrange(300), milliseconds=dice.randrange(1000))
        where = {"queue": dice.choice(["orders", "mails"]), "task": dice.choice(["a", "b", None])}
        kind = dice.randrange(10)
        if kind == 0:
            found.append(never_begun(dice.choice(["lost", "released", "cancelled", "expired"]), ts, **where))
        elif kind == 1:
            found.append(bulk(ts))
        else:
            late, took = (int(2 ** dice.uniform(0, 33)) - 1 for _ in range(2))
            found.append(
                event(dice.choice(kinds), ts, lateness_ms=late, duration_ms=took, attempt=dice.randrange(1, 4), **where)
            )
    return found


@pytest.fixture
def new_york(spark: SparkSession) -> Iterator[None]:
    """A session that somebody opened with another time zone."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def test_every_event_but_that_of_a_bulk_write_is_an_attempt(spark: SparkSession) -> None:
    one, other = event(), event("failed")
    twin = event(shard=1, stream_id=one["stream_id"])  # another shard may have the same id of a stream
    found = attempts(frame(spark, [one, bulk(), other, twin]), {})

    assert found.columns == [name for name in one if name not in ("jobs", "created")] + ["sla_missed"]
    assert sorted((row.id, row.shard, row.sla_missed) for row in found.collect()) == sorted(
        [(one["id"], 0, False), (other["id"], 0, False), (twin["id"], 1, False)]
    )


def test_the_limit_of_a_task_comes_before_that_of_its_queue_and_that_before_the_one_for_all(
    spark: SparkSession,
) -> None:
    sla = {"slow": 10.0, "mails": 1.0, 'it\'s "odd"': 0.0005, "*": 0.1}
    late = {
        name: event(task=task, queue=queue, lateness_ms=ms)
        for name, task, queue, ms in [
            ("task in time", "slow", "mails", 10_000),
            ("task late", "slow", "mails", 10_001),
            ("queue in time", "quick", "mails", 1_000),
            ("queue late", "quick", "mails", 1_001),
            ("all in time", "quick", "orders", 100),
            ("all late", "quick", "orders", 101),
            ("no task in time", None, "orders", 100),
            ("odd late", 'it\'s "odd"', "mails", 1),
        ]
    }
    late["never began"] = never_begun("lost", task="quick")
    names = {row["id"]: name for name, row in late.items()}

    missed = {names[row.id] for row in attempts(frame(spark, late.values()), sla).where("sla_missed").collect()}

    assert missed == {"task late", "queue late", "all late", "odd late"}


def test_every_outcome_counts_in_its_column_and_an_unknown_one_in_the_runs_only(spark: SparkSession) -> None:
    rows = [
        event(),
        event(attempt=3),
        event("failed", attempt=2),
        event("timeout"),
        event("crashed"),
        event("buried"),
        event("exhausted"),
        event("poison"),
        never_begun("undecodable"),
        event("unheard of"),
        never_begun("lost"),
        never_begun("released"),
        never_begun("cancelled"),
        never_begun("expired"),
        event(attempt=None),
        bulk(),
    ]
    ((key, found),) = computed(spark, rows).items()

    assert key == (at(), "orders", "shop.mail")
    assert {name: found[name] for name in COLUMNS[3:14]} == {
        "runs": 15,
        "succeeded": 3,
        "failed": 1,
        "timeout": 1,
        "crashed": 1,
        "lost": 1,
        "released": 1,
        "cancelled": 1,
        "expired": 1,
        "buried": 4,
        "retries": 2,
    }
    assert found["timed"] == 10


def test_a_percentile_is_a_value_that_a_run_had(spark: SparkSession) -> None:
    rows = [event(lateness_ms=ms, duration_ms=7) for ms in (10, 20, 30, 40)]

    ((_, found),) = computed(spark, rows).items()

    # nearest rank: half of the runs, two, are not later than 20 ms
    assert (found["lateness_p50_ms"], found["lateness_p95_ms"], found["lateness_p99_ms"]) == (20, 40, 40)
    assert (found["lateness_max_ms"], found["lateness_sum_ms"], found["duration_p50_ms"]) == (40, 100, 7)


def test_histograms_have_the_buckets_that_the_model_names(spark: SparkSession) -> None:
    times = [0, 1, 2, 3, 4, 7, 8, 2**30 - 1, 2**30, 2**40, -5]
    rows = [event(lateness_ms=0, duration_ms=ms) for ms in times]

    ((_, found),) = computed(spark, rows).items()

    expected = [0] * 32
    for place in (0, 1, 2, 2, 3, 3, 4, 30, 31, 31, 0):
        expected[place] += 1
    assert found["duration_histogram"] == expected
    assert found["lateness_histogram"] == [11] + [0] * 31
    assert found["duration_sum_ms"] == sum(times) + 5


def test_runs_that_never_began_have_no_times(spark: SparkSession) -> None:
    ((_, found),) = computed(spark, [never_begun("lost"), event(lateness_ms=5, duration_ms=None)]).items()

    assert (found["runs"], found["timed"], found["lateness_sum_ms"]) == (2, 0, 0)
    assert found["lateness_p50_ms"] is found["lateness_max_ms"] is found["duration_p99_ms"] is None
    assert found["lateness_histogram"] == [0] * 32


@pytest.mark.usefixtures("new_york")
def test_the_hour_that_a_time_zone_has_twice_is_two_hours(spark: SparkSession) -> None:
    first, second = datetime(2026, 11, 1, 5, 30, tzinfo=UTC), datetime(2026, 11, 1, 6, 30, tzinfo=UTC)  # both 1:30
    late = datetime(2026, 11, 2, 1, 0, tzinfo=UTC)  # still the first in New York
    rows = [event(ts=first), event(ts=second), event(ts=second), event(ts=late)]

    found = {key[0].astimezone(UTC): row["runs"] for key, row in computed(spark, rows).items()}

    assert found == {first.replace(minute=0): 1, second.replace(minute=0): 2, late: 1}
    days = frame(spark, rows).select(day_of(F.col("ts")).alias("day")).distinct().collect()
    assert {str(row.day) for row in days} == {"2026-11-01", "2026-11-02"}


def test_no_events_are_no_hours(spark: SparkSession) -> None:
    found = hours(attempts(frame(spark, []), {"*": 1.0}))

    assert sorted(found.columns) == sorted(COLUMNS), "those of the model"
    kinds = {"hour": "timestamp", "queue": "string", "task": "string"}
    kinds |= {name: "array<bigint>" for name in COLUMNS if name.endswith("histogram")}
    assert dict(found.dtypes) == {name: kinds.get(name, "bigint") for name in COLUMNS}
    assert found.collect() == []


def test_figures_are_those_that_are_computed_without_spark(spark: SparkSession) -> None:
    rows = some_events(seed=1, count=600)

    assert computed(spark, rows) == figures(rows)


def test_counts_and_histograms_of_all_are_the_sums_of_those_of_the_parts(spark: SparkSession) -> None:
    rows = some_events(seed=2, count=400)
    random.Random(3).shuffle(rows)
    total: dict[tuple[Any, ...], Row] = {}
    for part in (rows[:50], rows[50:51], rows[51:]):
        for key, row in computed(spark, part).items():
            total[key] = added(total[key], row) if key in total else summable(row)

    assert total == {key: summable(row) for key, row in computed(spark, rows).items()}


def summable(row: Row) -> Row:
    of_ranks = ("_p50_", "_p95_", "_p99_", "_max_")
    return {name: row[name] for name in COLUMNS[3:] if not any(part in name for part in of_ranks)}


def added(one: Row, other: Row) -> Row:
    return {
        name: [a + b for a, b in zip(mine, other[name], strict=True)] if isinstance(mine, list) else mine + other[name]
        for name, mine in one.items()
    }
