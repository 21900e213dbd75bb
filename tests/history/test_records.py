"""The row of a run follows it, and never stops it."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_delayq.history import records
from django_delayq.history.records import record, state_of
from django_delayq.models.history import PipelineRun

pytestmark = pytest.mark.django_db


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Seconds that pass when a test says so."""
    seconds = SimpleNamespace(now=100.0)
    monkeypatch.setattr(records, "time", SimpleNamespace(monotonic=lambda: seconds.now))
    return seconds


def test_a_run_that_ends_has_its_last_numbers() -> None:
    with record("bulk", "sms-1", queue="sms", task="shop.sms", total=10, detail={"path": "a.csv"}) as run:
        row = PipelineRun.objects.get()
        assert (row.state, row.kind, row.run_id, row.queue, row.task, row.total) == (
            "running",
            "bulk",
            "sms-1",
            "sms",
            "shop.sms",
            10,
        )
        run.progress(rows=4, created=3, known=1)
        run.progress(rows=10, created=7, known=2, bad=1, detail={"quarantine": "/q"})
    row = PipelineRun.objects.get()
    assert (row.state, row.rows, row.created, row.known, row.bad, row.error) == ("finished", 10, 7, 2, 1, "")
    assert row.detail == {"path": "a.csv", "quarantine": "/q"}
    assert row.ended_at is not None
    assert row.ended_at >= row.started_at


def test_progress_is_written_once_a_second_at_most(clock: SimpleNamespace) -> None:
    with record("history", "h") as run:
        with CaptureQueriesContext(connection) as seen:
            for done in range(1, 1201):
                clock.now += 1 / 512
                run.progress(rows=done)
        assert len([one for one in seen if one["sql"].startswith("UPDATE")]) == 2
        assert PipelineRun.objects.get().rows == 1024


@pytest.mark.parametrize(
    ("stopped", "raised", "state", "error"),
    [
        (False, LookupError("no such file\0"), "failed", "LookupError: no such file"),
        (False, ValueError("x" * 1_000_000), "failed", "ValueError: ".ljust(10_000, "x")),
        (False, KeyboardInterrupt(), "stopped", "KeyboardInterrupt"),
        (False, SystemExit(), "stopped", "SystemExit"),
        (True, ValueError("x"), "failed", "ValueError: x"),
        (True, None, "stopped", ""),
    ],
    ids=["raises", "endless error", "interrupted", "exits", "told to stop and raises", "told to stop"],
)
def test_a_run_that_does_not_finish_has_failed_or_was_stopped(
    stopped: bool, raised: BaseException | None, state: str, error: str
) -> None:
    with nullcontext() if raised is None else pytest.raises(type(raised)), record("history", "h") as run:
        run.progress(rows=3)
        if stopped:
            run.stop()
        if raised is not None:
            raise raised
    row = PipelineRun.objects.get()
    assert (row.state, row.rows, row.error) == (state, 3, error)


def test_what_is_no_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="magic"), record("magic", "m"):
        pass
    assert not PipelineRun.objects.exists()


def test_a_count_that_no_run_has_is_refused() -> None:
    with record("bulk", "b") as run, pytest.raises(TypeError, match="no count 'row'; choose from: bad, created"):
        run.progress(row=5)


def test_a_resumed_run_has_a_row_of_its_own() -> None:
    for _ in range(2):
        with record("bulk", "sms-1"):
            pass
    assert PipelineRun.objects.filter(run_id="sms-1").count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_database_that_refuses_stops_no_run_and_is_told_later(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        raise DatabaseError("away")  # as the wrapper is above Django's own, no transaction notices

    with caplog.at_level(logging.WARNING, "django_delayq.history"):
        with connection.execute_wrapper(refuse):
            started = record("bulk", "b")
            run = started.__enter__()
            clock.now += 2
            run.progress(rows=5)
        assert not PipelineRun.objects.exists()
        clock.now += 2
        run.progress(rows=7)
        assert PipelineRun.objects.get().rows == 7
        started.__exit__(None, None, None)
    assert PipelineRun.objects.get().state == "finished"
    assert [one.getMessage() for one in caplog.records] == [
        "run b: its row could not be written, but the run continues: away"
    ] * 2


def test_a_run_without_progress_for_an_hour_has_died() -> None:
    now = timezone.now()
    run = PipelineRun(state="running", seen_at=now - timedelta(minutes=59, seconds=59))
    assert state_of(run, now) == "running"
    assert state_of(run, now + timedelta(seconds=2)) == "died"
    run.state = "finished"
    assert state_of(run, now + timedelta(days=2)) == "finished"
