"""From events to figures that a database gets; and what is kept, pending, deleted."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_delayq.pipeline import history as driver
from django_delayq.pipeline.delta import EventTable
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.history import History, HistoryOptions, read

from .history_stage import DAY, PLACE, Database, Inbox, at, bulk, event, figures, history, never_begun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BEFORE = DAY - timedelta(days=1)


def test_a_run_lands_every_batch_and_publishes_each_hour_once(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event(), event(ts=at(BEFORE)), bulk(), never_begun("lost"))
    inbox.add(event("failed"), event(lateness_ms=61_000))
    seen: list[int] = []

    summary = history(spark, root, inbox, database).run(seen.append)

    assert database.rows == figures(inbox.events)
    assert database.calls == [{at(BEFORE), at()}]
    assert (summary.rows, summary.batches, summary.days, seen) == (6, 2, (BEFORE, DAY), [4, 6])
    table = EventTable(str(root))
    assert {(file.hour, file.batch) for file in table.files()} == {(at(BEFORE), 0), (at(), 0), (at(), 1)}
    latest = table.latest()
    assert latest is not None and latest.version() == 3  # the table, the shard's name, then a version for each batch
    assert table.positions(latest) == {PLACE: "2-7"}
    assert list(database.batches.values()) == [1]
    again = history(spark, root, inbox, database).run()
    assert (again.rows, again.batches, again.days, len(database.calls)) == (0, 0, (), 1)


@pytest.fixture
def in_tokyo(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python and the session of Spark live where days begin nine hours earlier."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.usefixtures("in_tokyo")
def test_only_the_hours_of_new_events_are_computed_again(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event(ts=at(hour=1)), event(ts=at(BEFORE)), event(ts=at(BEFORE, hour=23)))
    history(spark, root, inbox, database).run()

    inbox.add(event(ts=at(BEFORE, hour=23)))  # late: of a day that is over
    summary = history(spark, root, inbox, database).run()

    assert summary.days == (BEFORE,)
    assert database.calls[-1] == {at(BEFORE, hour=23)}
    assert database.rows == figures(inbox.events)


def test_a_database_that_went_back_to_a_copy_gets_the_hours_that_it_lacks(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event(), event(ts=at(BEFORE)))
    history(spark, root, inbox, database).run()
    copy = Database(dict(database.rows), dict(database.batches))
    inbox.add(event("failed"), event(ts=at(hour=3)))
    history(spark, root, inbox, database).run()

    summary = history(spark, root, inbox, copy).run()

    assert (summary.rows, summary.days, copy.calls) == (0, (DAY,), [{at(), at(hour=3)}])
    assert copy.rows == database.rows == figures(inbox.events)
    empty = Database()
    history(spark, root, inbox, empty).run()
    assert empty.rows == database.rows


def test_figures_that_could_not_be_published_are_published_by_the_next_run(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event(), event(ts=at(BEFORE)))
    database.is_down = True
    with pytest.raises(ConnectionError, match="the database is down"):
        history(spark, root, inbox, database).run()
    assert {file.day for file in history(spark, root, inbox, database).pending()} == {BEFORE, DAY}

    database.is_down = False
    summary = history(spark, root, inbox, database).run()

    assert (summary.rows, summary.days) == (0, (BEFORE, DAY))
    assert database.rows == figures(inbox.events)
    assert history(spark, root, inbox, database).pending() == []


def test_metrics_of_many_days_are_published_in_portions_and_the_last_one_has_the_batch(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "DAYS_AT_ONCE", 2)
    days = [DAY + timedelta(days=number) for number in range(3)]
    inbox.add(*(event(ts=at(day)) for day in days))

    def die(name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        history(spark, root, inbox, database, lambda name: die(name) if name == "hours published" else None).run()
    assert (len(database.rows), database.batches) == (2, {})

    assert history(spark, root, inbox, database).run().days == tuple(days)
    assert database.calls[1:] == [{at(days[0]), at(days[1])}, {at(days[2])}]
    assert database.rows == figures(inbox.events)
    assert list(database.batches.values()) == [0]


def test_a_backfill_computes_days_of_which_there_are_events_and_no_others(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox.add(event(lateness_ms=5_000), event(ts=at(BEFORE), lateness_ms=5_000), bulk(at(BEFORE)))
    history(spark, root, inbox, database).run()
    wrong = {**next(iter(database.rows.values())), "hour": at(BEFORE, hour=3)}
    database.rows[wrong["hour"], "orders", "no.events"] = wrong
    stricter = history(spark, root, inbox, database, sla={"*": 1.0})
    told: list[tuple[int, int]] = []

    summary = stricter.backfill(BEFORE - timedelta(days=30), BEFORE, lambda *done: told.append(done))

    assert (summary.rows, summary.days) == (2, (BEFORE,))
    assert told == [(0, 1), (1, 1)]
    assert database.rows == figures(inbox.events[1:], sla=1.0) | figures(inbox.events[:1])
    with pytest.raises(PipelineError, match=r"No events from .* are kept"):
        stricter.backfill(date(2020, 1, 1), date(2020, 1, 2))
    with pytest.raises(PipelineError, match="is before the first"):
        stricter.backfill(DAY, BEFORE)
    monkeypatch.setattr(driver, "DAYS_AT_ONCE", 1)
    stricter.backfill(BEFORE, DAY, lambda *done: told.append(done))
    assert told[2:] == [(0, 2), (1, 2), (2, 2)]
    assert database.rows == figures(inbox.events, sla=1.0)


def test_old_days_are_compacted_and_the_figures_stay_the_same(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    inbox.add(event(), event(ts=today), event(ts=at(BEFORE)))
    inbox.add(event(), event(ts=today))
    kept = history(spark, root, inbox, database)
    assert kept.compact() == ()
    kept.run()
    told: list[tuple[int, int]] = []

    # A day that is not published stays, because only the names of its files tell what is missing.
    assert history(spark, root, inbox, Database()).compact() == ()
    assert kept.compact(older_than_days=2, on_days=lambda *done: told.append(done)) == (DAY,)

    assert told == [(0, 1), (1, 1)]
    files = [file.day for file in kept.table.files()]
    assert (files.count(DAY), files.count(BEFORE), files.count(today.date())) == (1, 1, 2)
    inbox.add(event("failed"))
    assert kept.run().days == (DAY,)
    assert database.rows == figures(inbox.events)
    assert kept.compact() == (DAY,)
    assert kept.compact() == ()
    assert kept.run().days == ()
    assert read(spark, f"{root}/events").count() == 6


def test_purged_days_are_gone_and_a_straggler_does_not_bring_back_half_of_one(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    now = datetime.now(UTC)
    old, older = (now - timedelta(days=days) for days in (40, 200))
    inbox.add(event(ts=old), event(ts=older), event(ts=now))
    kept = history(spark, root, inbox, database)
    kept.run()
    told = dict(database.rows)
    without_spark = History(None, HistoryOptions(str(root)))
    assert without_spark.purge(None) == ()
    assert without_spark.outdated(30) == (older.date(), old.date())

    assert without_spark.purge(30) == (older.date(), old.date())

    assert [file.day for file in kept.table.files()] == [now.date()]
    inbox.add(event(ts=old))
    with caplog.at_level(logging.WARNING):
        assert kept.run().days == ()
    assert f"stay as they are: {old.date()}" in caplog.text
    assert database.rows == told
    with pytest.raises(PipelineError, match="are kept"):
        kept.backfill(older.date(), old.date())
    assert kept.purge(300) == ()
    assert kept.table.closed_before() == (now - timedelta(days=30)).date()


@pytest.mark.parametrize("root", ["", "a/*/b"])
def test_a_root_that_cannot_be_is_refused(root: str) -> None:
    with pytest.raises(PipelineError, match="root must be a folder"):
        HistoryOptions(root)


# --- a second process


def test_a_second_process_is_refused_or_waits_while_one_is_at_work(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event())
    refused: list[str] = []
    waiting = threading.Thread(target=lambda: History(None, HistoryOptions(str(root), wait_s=60)).purge(None))

    def meanwhile(name: str) -> None:
        if name == "hours published":
            with pytest.raises(PipelineError, match="Another process uses the history") as raised:
                history(spark, root, inbox, database, wait_s=0).run()
            refused.append(str(raised.value))
            waiting.start()
            waiting.join(0.3)
            assert waiting.is_alive()

    history(spark, root, inbox, database, meanwhile).run()

    waiting.join(60)
    assert len(refused) == 1
    assert not waiting.is_alive()
    assert database.rows == figures(inbox.events)


LOCKED = """
import sys
from django_delayq.pipeline.delta import EventTable
with EventTable(sys.argv[1]).alone(0):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_lock_holds_as_long_as_its_process_lives(root: Path) -> None:
    table = EventTable(str(root))
    command = [sys.executable, "-c", LOCKED, str(root)]
    cwd = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(PipelineError, match="Another process uses the history"), table.alone(0):
            pytest.fail("two at once")
        other.kill()
    with table.alone(10):
        pass
