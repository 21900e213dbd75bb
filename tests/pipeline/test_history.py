"""From events to figures that somebody was told, through streams of files; and what is kept, pending, deleted."""

from __future__ import annotations

import logging
import re
import shutil
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.history import DaysDone, History, HistoryOptions, Summary, read
from django_delayq.pipeline.quality import Expectation
from django_delayq.pipeline.store import Store
from django_delayq.pipeline.tables import FORMS, Table

from .history_stage import DAY, Database, Inbox, at, bulk, event, figures, history, never_begun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEFORE = DAY - timedelta(days=1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "history"


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


def test_a_stream_tells_what_came_and_ends_when_it_is_told_to(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event())
    seen: list[Summary] = []
    stopped_at: list[float] = []

    def heard(summary: Summary) -> None:
        seen.append(summary)
        inbox.add(event("failed"))

    def stop() -> bool:
        if len(seen) == 2 and not stopped_at:
            stopped_at.append(time.monotonic())
        return bool(stopped_at)

    runs = history(spark, root, inbox).stream(0.1, database, stop, on_summary=heard)

    assert time.monotonic() - stopped_at[0] < 1
    assert (runs, [summary.rows for summary in seen]) == (2, [1, 1])
    assert database.rows == figures(inbox.events[:2])


def test_a_stream_that_waits_for_its_next_run_ends_within_a_second(
    spark: SparkSession, root: Path, inbox: Inbox
) -> None:
    inbox.add(event())
    ran, stop = threading.Event(), threading.Event()
    asked: list[float] = []

    def order() -> None:
        ran.wait(60)
        asked.append(time.monotonic())
        stop.set()

    helper = threading.Thread(target=order)
    helper.start()
    history(spark, root, inbox).stream(3600, stop=stop.is_set, on_summary=lambda summary: ran.set())
    ended = time.monotonic()
    helper.join()

    assert ended - asked[0] < 1


@pytest.mark.parametrize("place", ["batch", "figures"])
def test_a_run_that_is_stopped_in_the_middle_is_carried_on_by_the_next(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database, place: str
) -> None:
    for _ in range(3):
        inbox.add(event(), event(ts=at(BEFORE)))
    stop = threading.Event()

    def step(name: str) -> None:
        if name == {"batch": "batch landed", "figures": "landed"}[place]:
            stop.set()

    began = time.monotonic()
    summary = history(spark, root, inbox, step).run(database, stop=stop.is_set)

    assert summary.stopped
    assert (summary.days, database.calls) == ((), [])
    assert time.monotonic() - began < 30
    again = history(spark, root, inbox).run(database)
    assert not again.stopped
    assert database.rows == figures(inbox.events)


def test_a_second_process_is_refused_or_stopped_while_one_is_at_work(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    inbox.add(event())
    said: list[Any] = []

    def meanwhile(name: str) -> None:
        if name == "hours published":
            with pytest.raises(PipelineError, match="Another process uses the history"):
                history(spark, root, inbox, wait_s=0).run(database)
            said.append(history(spark, root, inbox, wait_s=60).run(database, stop=lambda: True).stopped)

    history(spark, root, inbox, meanwhile).run(database)

    assert said == [True]
    assert database.rows == figures(inbox.events)


def test_a_stream_waits_for_another_process_however_long_it_takes(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    inbox.add(event())
    said = threading.Event()
    caplog.set_level(logging.WARNING, "django_delayq")
    caplog.handler.addFilter(lambda record: said.set() or True if "Another process" in record.getMessage() else True)
    seen: list[Summary] = []

    def other() -> None:
        with Store(str(root)).alone(0, lambda: False):
            holds.set()
            said.wait(60)

    holds = threading.Event()
    helper = threading.Thread(target=other)
    helper.start()
    holds.wait(60)
    runs = history(spark, root, inbox, wait_s=0).stream(0.1, database, lambda: bool(seen), on_summary=seen.append)
    helper.join()

    assert said.is_set()
    assert (runs, seen[0].rows, seen[0].stopped) == (1, 1, False)
    assert database.rows == figures(inbox.events)


def test_a_stream_that_waits_for_another_process_ends_when_it_is_told_to(
    spark: SparkSession, root: Path, inbox: Inbox
) -> None:
    inbox.add(event())
    asked: list[float] = []

    def stop() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 3

    seen: list[Summary] = []
    with Store(str(root)).alone(0, lambda: False):
        history(spark, root, inbox, wait_s=0).stream(0.1, stop=stop, on_summary=seen.append)

    assert time.monotonic() - asked[3] < 1
    assert [(summary.rows, summary.stopped) for summary in seen] == [(0, True)]


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
