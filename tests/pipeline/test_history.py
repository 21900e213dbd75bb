"""From events to figures that somebody was told, through streams of files; and what is kept, pending, deleted."""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.history import DaysDone, History, HistoryOptions, read
from django_delayq.pipeline.quality import Expectation
from django_delayq.pipeline.store import Store
from django_delayq.pipeline.tables import FORMS, Table

from .history_stage import DAY, Database, Inbox, at, bulk, event, figures, history, never_begun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BEFORE = DAY - timedelta(days=1)


def table(root: Path, name: str) -> Table:
    return Table(Store(str(root)), name)


def batches(root: Path) -> dict[str, int]:
    """Return the number of the last landed batch of each query."""
    log = "".join(path.read_text() for path in sorted((root / "events" / "_delta_log").glob("*.json")))
    found = re.findall(r'"appId":"([0-9a-f-]{36})","version":(\d+)', log)
    return {query: int(number) for query, number in found}


def files_of(root: Path, name: str, day: date) -> list[str]:
    """Return the files of a day, which are others when it is written again."""
    return sorted(file.path for file in table(root, name).files({day: None}))


def test_a_run_lands_every_batch_and_tells_each_day_once(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event(), event(ts=at(BEFORE)), bulk(), never_begun("lost"))
    inbox.add(event("failed"), event(lateness_ms=61_000))

    summary = history(spark, root, inbox).run(database)

    assert database.rows == figures(inbox.events)
    assert database.calls == [[BEFORE, DAY]]
    assert (summary.rows, summary.bad, summary.batches, summary.days) == (6, 0, 2, (BEFORE, DAY))
    assert (summary.broken, summary.stopped, bool(summary.offsets)) == ({}, False, True)
    assert list(batches(root).values()) == [1]
    events = table(root, "events")
    assert {(file.day, file.hour) for file in events.files()} == {(BEFORE, 10), (DAY, 10)}
    versions = events.latest()
    assert versions is not None and versions.version() == 2  # the table, then a version for each batch
    again = history(spark, root, inbox).run(database)
    assert (again.rows, again.batches, again.days, again.offsets) == (0, 0, (), summary.offsets)


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
def test_only_the_days_of_new_events_are_computed_again(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event(ts=at(hour=1)), event(ts=at(BEFORE)))
    history(spark, root, inbox).run(database)
    untouched = {name: files_of(root, name, DAY) for name in ("attempts", "hours")}

    inbox.add(event(ts=at(BEFORE, hour=23)))  # late: of a day that is over
    summary = history(spark, root, inbox).run(database)

    assert summary.days == (BEFORE,)
    assert database.rows == figures(inbox.events)
    assert {name: files_of(root, name, DAY) for name in ("attempts", "hours")} == untouched


def test_a_lost_checkpoint_reads_all_again_and_doubles_nothing(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event(), event(ts=at(BEFORE)))
    history(spark, root, inbox).run(database)
    shutil.rmtree(root / "_checkpoints")
    inbox.add(event("failed"))

    summary = history(spark, root, inbox).run(database)

    assert (summary.rows, sorted(batches(root).values())) == (3, [0, 1])  # of two queries
    assert database.rows == figures(inbox.events)
    assert read(spark, f"{root}/attempts").count() == 3


def test_an_event_that_one_query_has_read_twice_counts_once(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    twice = event()
    inbox.add(twice)
    inbox.add(twice, event("failed"))

    history(spark, root, inbox).run(database)

    assert database.rows == figures(inbox.events)
    assert read(spark, f"{root}/attempts").count() == 2


def test_figures_that_could_not_be_told_are_told_by_the_next_run(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event(), event(ts=at(BEFORE)))
    database.is_down = True
    with pytest.raises(ConnectionError, match="the database is down"):
        history(spark, root, inbox).run(database)
    assert history(spark, root, inbox).status().pending == (BEFORE, DAY)

    database.is_down = False
    summary = history(spark, root, inbox).run(database)

    assert (summary.rows, summary.days) == (0, (BEFORE, DAY))
    assert database.rows == figures(inbox.events)
    assert history(spark, root, inbox).status().pending == ()


def test_what_cannot_be_counted_lies_in_the_quarantine_until_it_can(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    good, odd, bad = event(), event(attempt=0), event(worker="stranger", ts=at(BEFORE))
    inbox.add(good, odd, bad)
    strict = Expectation("worker is ours", "worker LIKE 'w%'", "drop")
    warned = Expectation("attempt", "attempt >= 1")

    summary = history(spark, root, inbox, expectations=(strict, warned)).run(database)

    assert (summary.rows, summary.bad, summary.broken) == (3, 1, {"worker is ours": 1, "attempt": 1})
    assert database.rows == figures([good, odd])
    rows = read(spark, f"{root}/quarantine").collect()
    assert [(row.id, row.reason, row.day) for row in rows] == [(bad["id"], "worker is ours", BEFORE)]
    assert table(root, "attempts").days() == [DAY]

    summary = history(spark, root, inbox, expectations=(warned,)).backfill(BEFORE, DAY, database)

    assert (summary.rows, summary.bad) == (3, 0)
    assert database.rows == figures([good, odd, bad])
    assert table(root, "quarantine").days() == []


def test_a_broken_must_ends_the_run_but_loses_no_event(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event(worker="stranger"))
    must = Expectation("worker is ours", "worker LIKE 'w%'", "fail")
    for _ in range(2):
        with pytest.raises(PipelineError, match="'worker is ours': 1 rows"):
            history(spark, root, inbox, expectations=(must,)).run(database)
    assert database.rows == {}

    history(spark, root, inbox).run(database)

    assert database.rows == figures(inbox.events)


def test_a_backfill_computes_days_of_which_there_are_events_and_no_others(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event(lateness_ms=5_000), event(ts=at(BEFORE), lateness_ms=5_000))
    history(spark, root, inbox).run(database)
    stricter = history(spark, root, inbox, sla={"*": 1.0})

    summary = stricter.backfill(BEFORE - timedelta(days=30), BEFORE, database)

    assert summary.days == (BEFORE,)
    assert database.rows == figures(inbox.events[1:], sla=1.0) | figures(inbox.events[:1])
    with pytest.raises(PipelineError, match=r"No events from .* are kept"):
        stricter.backfill(date(2020, 1, 1), date(2020, 1, 2), database)
    with pytest.raises(PipelineError, match="is before the first"):
        stricter.backfill(DAY, BEFORE, database)


def test_old_days_are_compacted_and_the_figures_stay_the_same(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for _ in range(2):
        inbox.add(event(), event(ts=today))
    kept = history(spark, root, inbox)
    kept.run(database)

    assert kept.compact(older_than_days=2) == (DAY,)

    status = {day.day: day for day in kept.status().days}
    assert (status[DAY].files, status[today.date()].files) == (1, 2)
    inbox.add(event("failed"))
    kept.run(database)
    assert database.rows == figures(inbox.events)
    assert kept.compact() == (DAY,)
    assert kept.compact() == ()


def test_purged_days_are_gone_and_a_straggler_does_not_bring_back_half_of_one(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    now = datetime.now(UTC)
    old, older = (now - timedelta(days=days) for days in (40, 200))
    inbox.add(event(ts=old), event(ts=older), event(ts=now))
    kept = history(spark, root, inbox, keep_hours_days=None)
    kept.run(database)
    told = dict(database.rows)

    # a path needs no Spark for that
    gone = History(None, HistoryOptions(str(root), keep_hours_days=None)).purge()

    assert (gone.events, gone.attempts) == ((older.date(), old.date()), (older.date(),))
    assert (gone.hours, gone.quarantine) == ((), ())
    assert [day.day for day in kept.status().days if day.bytes["hours"]] == [older.date(), old.date(), now.date()]
    inbox.add(event(ts=old))
    with caplog.at_level(logging.WARNING):
        assert kept.run(database).days == ()
    assert f"stay as they are: {old.date()}" in caplog.text
    assert database.rows == told
    with pytest.raises(PipelineError, match="are kept"):
        kept.backfill(older.date(), old.date(), database)
    assert kept.purge(events_days=0.001, attempts_days=10, hours_days=10).hours == (older.date(), old.date())


def test_the_status_says_what_is_there_without_spark(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    empty = History(None, HistoryOptions(str(root))).status()
    assert (empty.days, empty.pending, empty.offsets, empty.lag) == ((), (), {}, None)
    assert (empty.bytes, empty.behind) == (0, None)
    inbox.add(event(), event(ts=at(BEFORE)))
    inbox.add(event(id=None))
    history(spark, root, inbox).run(database)

    status = History(None, HistoryOptions(str(root))).status()

    assert [(day.day, day.files) for day in status.days] == [(BEFORE, 1), (DAY, 2)]
    assert {name: bool(size) for name, size in status.days[0].bytes.items()} == {
        "events": True,
        "attempts": True,
        "hours": True,
        "quarantine": False,
    }
    assert status.days[1].bytes["quarantine"] > 0
    live = [(name, file) for name in FORMS for file in table(root, name).files()]
    assert status.bytes == sum((root / name / file.path).stat().st_size for name, file in live)
    assert status.offsets


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"root": ""}, "root must be a folder"),
        ({"root": "a/*/b"}, "root must be a folder"),
        ({"consumer": "a/b"}, "consumer must be a name"),
        ({"max_rows": 0}, "max_rows must be 1 or more"),
        ({"sla": {"*": -1}}, "sla: '\\*' must be"),
        ({"sla": {"*": float("nan")}}, "sla: '\\*' must be"),
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        HistoryOptions(**{"root": "x", **wrong})


def test_a_backfill_tells_how_far_it_is(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.pipeline.history.ROWS_AT_ONCE", 3)
    after = DAY + timedelta(days=1)
    inbox.add(event(ts=at(BEFORE)), event(), event(), bulk(), event(ts=at(after)))
    history(spark, root, inbox).run(database)
    told: list[DaysDone] = []

    summary = history(spark, root, inbox).backfill(BEFORE, after, database, on_days=told.append)

    assert told == [DaysDone(0, 3, 0, 4), DaysDone(2, 3, 3, 4), DaysDone(3, 3, 4, 4)]
    assert summary.rows == 4
    assert database.rows == figures(inbox.events)


def test_a_compaction_and_a_purge_tell_how_far_they_are(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    for _ in range(2):
        inbox.add(event(ts=at(BEFORE)), event())
    inbox.add(event())
    history(spark, root, inbox).run(database)
    told: list[DaysDone] = []
    history(spark, root, inbox).compact(on_days=told.append)
    assert told == [DaysDone(0, 2, 0, 5), DaysDone(1, 2, 2, 5), DaysDone(2, 2, 5, 5)]
    told.clear()
    assert history(spark, root, inbox).compact(on_days=told.append) == ()
    assert told == [DaysDone(0, 0, 0, 0)]
    told.clear()

    gone = History(None, HistoryOptions(str(root))).purge(1, 1, None, on_days=told.append)

    assert (gone.events, gone.attempts, gone.hours) == ((BEFORE, DAY), (BEFORE, DAY), ())
    assert told == [DaysDone(number, 4) for number in range(5)]
