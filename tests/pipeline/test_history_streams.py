"""Streams of the history, interrupted runs, and a second process beside one."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.history import Summary
from django_delayq.pipeline.store import Store

from .history_stage import DAY, Database, Inbox, at, event, figures, history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BEFORE = DAY - timedelta(days=1)


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
