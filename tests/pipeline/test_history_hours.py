"""A run computes the hours that new events came of, and no others; what comes out is the same."""

from __future__ import annotations

import random
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_delayq.pipeline import computing
from django_delayq.pipeline.day_hours import whole
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.history import read
from django_delayq.pipeline.store import PendingDays, Store
from django_delayq.pipeline.tables import Table
from django_delayq.pipeline.upkeep import count_attempts

from .history_stage import DAY, Database, Inbox, Row, at, event, figures, frame, history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEFORE = DAY - timedelta(days=1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a lake"


def hours_of(root: Path, table: str, day: date = DAY) -> dict[int | None, list[str]]:
    """The hours of a day, each with its files, which are others if it was written again."""
    found: dict[int | None, list[str]] = {}
    for file in Table(Store(str(root)), table).files(whole([day])):
        found.setdefault(file.hour, []).append(file.path)
    return found


def stream_ids(spark: SparkSession, root: Path, table: str) -> list[str]:
    return sorted(row.stream_id for row in read(spark, f"{root}/{table}").select("stream_id").collect())


def check(spark: SparkSession, root: Path, inbox: Inbox, database: Database) -> None:
    """Assert that the history is the same as if it had been computed at once."""
    known = {row["stream_id"]: row for row in inbox.events}.values()
    good = [row for row in known if row["id"]]
    assert database.rows == figures(good)
    assert stream_ids(spark, root, "attempts") == sorted(row["stream_id"] for row in good)
    assert stream_ids(spark, root, "quarantine") == sorted(row["stream_id"] for row in known if not row["id"])


def test_only_the_touched_hours_of_a_day_are_written_again(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(*(event(ts=at(hour=hour)) for hour in (0, 7, 8, 23)), event(ts=at(hour=23), id=None))
    history(spark, root, inbox).run(database)
    before = {table: hours_of(root, table) for table in ("attempts", "quarantine")}
    assert (set(before["attempts"]), set(before["quarantine"])) == ({0, 7, 8, 23}, {23})

    inbox.add(event("failed", ts=at(hour=7)), event(ts=at(hour=9)), event(ts=at(hour=9), id=None))
    history(spark, root, inbox).run(database)

    after = {table: hours_of(root, table) for table in ("attempts", "quarantine")}
    assert {hour for hour, number in after["attempts"].items() if before["attempts"].get(hour) != number} == {7, 9}
    assert after["quarantine"].keys() == {9, 23}
    assert after["quarantine"][23] == before["quarantine"][23]
    check(spark, root, inbox, database)


def test_batches_of_other_hours_are_not_opened(spark: SparkSession, root: Path, inbox: Inbox) -> None:
    for hour in (3, 5, 5):
        inbox.add(event(ts=at(hour=hour)))
    history(spark, root, inbox).run()

    events = Table(Store(str(root)), "events")

    assert sorted(file.hour or 0 for file in events.files()) == [3, 5, 5]
    found = events.read(spark, {DAY: frozenset({5, 6}), BEFORE: None})
    assert len(found.inputFiles()) == 2
    assert {row.ts.hour for row in found.collect()} == {5}
    assert events.read(spark, {DAY: frozenset({4})}).collect() == []
    assert count_attempts(spark, events, [DAY, BEFORE]) == {DAY: 3}


def test_what_comes_bit_by_bit_is_the_same_as_what_comes_at_once(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    """Late events, events that come twice, bad ones, through hours and days in no order, with compactions between."""
    dice = random.Random(11)
    days = [DAY - timedelta(days=number) for number in range(3)]
    for number in range(4):
        fresh: list[Row] = []
        for _ in range(dice.randrange(1, 9)):
            ts = at(dice.choice(days), dice.choice([0, 1, 12, 23]), dice.randrange(60))
            outcome, task = dice.choice(["succeeded", "failed", "buried"]), dice.choice(["shop.a", "shop.b"])
            more = {"id": None} if dice.random() < 0.2 else {}
            fresh.append(event(outcome, ts, task=task, lateness_ms=dice.randrange(100_000), **more))
        inbox.add(*fresh, *dice.sample(inbox.events, min(len(inbox.events), 2)))
        kept = history(spark, root, inbox)
        kept.run(database)
        if number == 2:
            assert kept.compact()
        check(spark, root, inbox, database)


def test_hours_from_which_the_bad_rows_have_gone_leave_the_quarantine(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event(ts=at(hour=1), id=None), event(ts=at(hour=2)))
    history(spark, root, inbox).run(database)
    inbox.add(event(ts=at(hour=1)))

    summary = history(spark, root, inbox, expectations=()).run(database)

    assert summary.days == (DAY,)
    assert hours_of(root, "quarantine") == {}
    assert database.rows == figures(inbox.events)


@pytest.mark.parametrize("what", ["attempts", "hours"])
def test_a_day_that_a_table_does_not_have_is_computed_whole(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database, what: str
) -> None:
    inbox.add(event(ts=at(hour=1)), event(ts=at(hour=2)))
    history(spark, root, inbox).run(database)
    Table(Store(str(root)), what).purge(DAY)
    inbox.add(event("failed", ts=at(hour=2)))

    history(spark, root, inbox).run(database)

    assert set(hours_of(root, "attempts")) == {1, 2}
    check(spark, root, inbox, database)


def test_a_day_that_a_run_has_left_pending_is_computed_whole(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    """The pending day may have any content; here an hour and all metrics are wrong."""
    inbox.add(event(ts=at(hour=1)), event(ts=at(hour=2)), event(ts=at(BEFORE)))
    history(spark, root, inbox).run(database)
    untouched = hours_of(root, "attempts", BEFORE)
    attempts = Table(Store(str(root)), "attempts")
    wrong = attempts.write(frame(spark, [event(ts=at(hour=5))]).drop("jobs", "created"))
    attempts.replace(wrong, {DAY: frozenset({1})}, attempts.replaced())
    assert set(hours_of(root, "attempts")) == {2, 5}
    PendingDays(Store(str(root))).note([DAY])
    inbox.add(event("failed", ts=at(hour=2)), event(ts=at(BEFORE, hour=11)))

    history(spark, root, inbox).run(database)

    assert set(hours_of(root, "attempts")) == {1, 2}
    assert hours_of(root, "attempts", BEFORE)[10] == untouched[10]
    check(spark, root, inbox, database)


def test_figures_are_told_in_portions_that_the_driver_can_hold(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "METRICS_AT_ONCE", 3)
    days = [DAY + timedelta(days=number) for number in range(4)]
    rows = [event(ts=at(day, hour)) for day, count in zip(days, (1, 2, 4, 1), strict=True) for hour in range(count)]
    inbox.add(*rows)

    summary = history(spark, root, inbox).run(database)

    assert database.calls == [days[:2], [days[2]], [days[3]]]
    assert summary.days == tuple(days)
    assert database.rows == figures(rows)


def test_a_broken_must_is_not_forgotten_when_events_of_other_hours_come(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    """The run that sees it fails, and leaves the whole day pending: it is not forgotten with the next hour."""
    from django_delayq.pipeline.quality import Expectation

    must: dict[str, Any] = {"expectations": (Expectation("worker is ours", "worker LIKE 'w%'", "fail"),)}
    inbox.add(event(ts=at(hour=1)))
    history(spark, root, inbox, **must).run(database)
    inbox.add(event(ts=at(hour=2), worker="stranger"))
    with pytest.raises(PipelineError, match="1 rows"):
        history(spark, root, inbox, **must).run(database)
    inbox.add(event(ts=at(hour=3)))
    with pytest.raises(PipelineError, match="1 rows"):
        history(spark, root, inbox, **must).run(database)
    history(spark, root, inbox).run(database)
    assert database.rows == figures(inbox.events)
