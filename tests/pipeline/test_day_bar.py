"""The bars of backfill and compact."""

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
from django_delayq.pipeline.delta import EventTable

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
    table = EventTable(str(folder))
    for number, count in enumerate((2, 3)):
        rows = [event(ts=at(day)) for day in DAYS for _ in range(count)] + [bulk(at(day)) for day in DAYS]
        table.commit(table.open(), table.write(frame(spark, rows), number), number, {})
    return folder


def run(*arguments: str, screen: io.StringIO) -> dict[str, Any]:
    out = io.StringIO()
    call_command("delayq_pipeline", *arguments, stdout=out, stderr=screen, no_color=True)
    told: dict[str, Any] = json.loads(out.getvalue())
    return told


def backfill(first: date, last: date, screen: io.StringIO, *more: str) -> dict[str, Any]:
    return run(*more, "backfill", "--from", str(first), "--to", str(last), screen=screen)


@pytest.mark.django_db
def test_backfill_and_compact_show_how_far_they_are(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "DAYS_AT_ONCE", 2)
    screen = io.StringIO()
    assert backfill(DAYS[0], DAYS[2], screen)["rows"] == 21
    told = lines(screen)
    assert [line.partition(" days,")[0] for line in told] == [
        "backfill: 0 %, 0 of 3",
        "backfill: 66 %, 2 of 3",
        *["backfill: 100 %, 3 of 3"] * 2,
    ]
    assert all(" days/s" in line for line in told)
    assert told[1].endswith(" left")
    row = PipelineRun.objects.get(kind="backfill")
    assert (row.state, row.rows) == ("finished", 21)
    assert sum(HourlyStat.objects.values_list("runs", flat=True)) == 15

    assert run("compact", screen=io.StringIO())["days"] == [], "nothing is published yet"
    run("run", screen=io.StringIO())
    screen = io.StringIO()
    assert run("compact", screen=screen)["days"] == [str(day) for day in DAYS]
    assert [line.partition(" days,")[0] for line in lines(screen)] == [
        "compact: 0 %, 0 of 3",
        "compact: 33 %, 1 of 3",
        "compact: 66 %, 2 of 3",
        *["compact: 100 %, 3 of 3"] * 2,
    ]
    row = PipelineRun.objects.filter(kind="compact").latest("pk")
    assert (row.state, row.detail["days"]) == ("finished", [str(day) for day in DAYS])


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
        assert json.loads(out.getvalue())["rows"] == 7
        assert screen.getvalue() == ""


@pytest.mark.django_db
def test_a_bar_is_left_when_the_work_fails(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError("No space left on device")

    run("run", screen=io.StringIO())
    monkeypatch.setattr("django_delayq.pipeline.delta.EventTable.compact", full)
    screen = io.StringIO()
    with pytest.raises((OSError, CommandError), match="No space left"):
        run("compact", screen=screen)
    assert lines(screen)[-1].startswith("compact: 0 %, 0 of 3 days")
    assert PipelineRun.objects.get(kind="compact").state == "failed"
