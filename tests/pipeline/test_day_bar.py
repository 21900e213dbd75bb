"""The bars of backfill, compact and purge."""

from __future__ import annotations

import io
import json
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq.core.broker import Broker
from django_delayq.models.history import HourlyStat, PipelineRun
from django_delayq.pipeline import history as driver
from django_delayq.pipeline.store import Store
from django_delayq.pipeline.tables import Table

from .history_stage import DAY, at, bulk, event, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = [DAY + timedelta(days=number) for number in range(3)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(log: io.StringIO) -> list[str]:
    """Return the lines that were shown, in order."""
    return log.getvalue().splitlines()


@pytest.fixture
def root(spark: SparkSession, delayq: Broker, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three days of events in two batches each, 5 attempts and a note of a bulk write in each day."""
    monkeypatch.setattr("django_delayq.management.progress.LINE_SECONDS", 0.0)
    folder = tmp_path / "history"
    settings.DELAYQ = {**settings.DELAYQ, "PIPELINE": {"root": str(folder)}}
    table = Table(Store(str(folder)), "events")
    for number, count in enumerate((2, 3)):
        rows = [event(ts=at(day)) for day in DAYS for _ in range(count)] + [bulk(at(day)) for day in DAYS]
        table.append(table.write(frame(spark, rows)), "q", number)
    return folder


def run(*arguments: str, screen: io.StringIO) -> dict[str, Any]:
    out = io.StringIO()
    call_command("delayq_pipeline", *arguments, stdout=out, stderr=screen, no_color=True)
    told: dict[str, Any] = json.loads(out.getvalue())
    return told


def backfill(first: date, last: date, screen: io.StringIO, *more: str) -> dict[str, Any]:
    return run(*more, "backfill", "--from", str(first), "--to", str(last), screen=screen)


@pytest.mark.django_db
def test_backfill_compact_and_purge_show_how_far_they_are(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "ROWS_AT_ONCE", 10)
    screen = io.StringIO()
    assert backfill(DAYS[0], DAYS[2], screen)["rows"] == 15
    told = lines(screen)
    assert [line.partition(" rows,")[0] for line in told] == [
        "backfill, 0 of 3 days: 0 %, 0 of 15",
        "backfill, 2 of 3 days: 66 %, 10 of 15",
        "backfill, 3 of 3 days: 100 %, 15 of 15",
        "backfill, 3 of 3 days: 100 %, 15 of 15",
    ]
    assert all(" rows/s" in line for line in told)
    assert told[1].endswith(" left")
    row = PipelineRun.objects.get(kind="backfill")
    assert (row.state, row.rows, row.total) == ("finished", 15, 15)
    assert sum(HourlyStat.objects.values_list("runs", flat=True)) == 15

    screen = io.StringIO()
    assert run("compact", screen=screen)["days"] == [str(day) for day in DAYS]
    assert [line.partition(" rows,")[0] for line in lines(screen)] == [
        "compact, 0 of 3 days: 0 %, 0 of 15",
        "compact, 1 of 3 days: 33 %, 5 of 15",
        "compact, 2 of 3 days: 66 %, 10 of 15",
        *["compact, 3 of 3 days: 100 %, 15 of 15"] * 2,
    ]
    row = PipelineRun.objects.get(kind="compact")
    assert (row.state, row.rows, row.total, row.detail["days"]) == ("finished", 15, 15, [str(day) for day in DAYS])

    screen = io.StringIO()
    gone = run("purge", "--events", "1", "--attempts", "1", screen=screen)["days"]
    assert gone["events"] == gone["attempts"] == [str(day) for day in DAYS]
    told = lines(screen)
    assert told[0].startswith("purge: 0 %, 0 of 6 days, 0 days/s")
    assert told[-1].startswith("purge: 100 %, 6 of 6 days, ")
    assert len(told) == 8


@pytest.mark.django_db
def test_where_nobody_looks_nothing_is_drawn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_delayq.management.progress.LINE_SECONDS", float("inf"))
    for more, screen in (((), io.StringIO()), (("--verbosity", "0"), Terminal())):
        out = io.StringIO()
        call_command(
            "delayq_pipeline",
            *more,
            "backfill",
            "--from",
            str(DAY),
            "--to",
            str(DAY),
            stdout=out,
            stderr=screen,
            no_color=True,
        )
        assert json.loads(out.getvalue())["rows"] == 5
        assert screen.getvalue() == ""


@pytest.mark.django_db
def test_a_bar_is_left_when_the_work_fails(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("django_delayq.pipeline.upkeep.compact_day", full)
    screen = io.StringIO()
    with pytest.raises((OSError, CommandError), match="No space left"):
        run("compact", screen=screen)
    assert lines(screen)[-1].startswith("compact, 0 of 3 days: 0 %, 0 of 15 rows")
    assert PipelineRun.objects.get().state == "failed"
