"""The row of a run follows it, and never stops it."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_delayq.history.records import record, state_of
from django_delayq.models.history import PipelineRun

pytestmark = pytest.mark.django_db


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


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


def test_progress_is_written_once_a_second_at_most() -> None:
    clock = Clock()
    with record("history", "h", clock=clock) as run:
        with CaptureQueriesContext(connection) as seen:
            for done in range(1, 1201):
                clock.now += 1 / 512
                run.progress(rows=done)
        assert len([one for one in seen if one["sql"].startswith("UPDATE")]) == 2
        assert PipelineRun.objects.get().rows == 1024


def test_a_run_that_raises_has_failed_and_the_error_goes_on() -> None:
    with pytest.raises(LookupError, match="no such file"), record("bulk", "b") as run:
        run.progress(rows=3)
        raise LookupError("no such file\0")
    row = PipelineRun.objects.get()
    assert (row.state, row.rows, row.error) == ("failed", 3, "LookupError: no such file")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_run_that_is_interrupted_was_stopped(error: type[BaseException]) -> None:
    with pytest.raises(error), record("bulk", "b"):
        raise error
    assert (PipelineRun.objects.get().state, PipelineRun.objects.get().error) == ("stopped", error.__name__)


def test_a_run_that_is_told_to_stop_and_does_was_stopped() -> None:
    with record("history", "h") as run:
        run.stop()
    assert (PipelineRun.objects.get().state, PipelineRun.objects.get().error) == ("stopped", "")


def test_one_that_was_told_to_stop_and_raises_has_failed() -> None:
    with pytest.raises(ValueError, match="x"), record("history", "h") as run:
        run.stop()
        raise ValueError("x")
    assert PipelineRun.objects.get().state == "failed"


def test_an_endless_error_is_cut() -> None:
    with pytest.raises(ValueError, match="xxx"), record("history", "h"):
        raise ValueError("x" * 1_000_000)
    assert len(PipelineRun.objects.get().error) == 10_000


def test_what_is_no_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="magic"), record("magic", "m"):
        pass
    assert not PipelineRun.objects.exists()


def test_a_resumed_run_has_a_row_of_its_own() -> None:
    for _ in range(2):
        with record("bulk", "sms-1"):
            pass
    assert PipelineRun.objects.filter(run_id="sms-1").count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_database_that_refuses_stops_no_run_and_is_told_later(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        raise DatabaseError("away")  # as the wrapper is above Django's own, no transaction notices

    clock = Clock()
    with caplog.at_level(logging.WARNING, "django_delayq.history"):
        with connection.execute_wrapper(refuse):
            started = record("bulk", "b", clock=clock)
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
