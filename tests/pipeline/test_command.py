"""manage.py delayq_pipeline with Spark: from what workers did to the figures in the database, and how it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import ack, fail
from django_delayq.models.history import HourlyStat, PipelineRun
from django_delayq.pipeline.delta import EventTable
from tests.support.processes import alive, wait_until

from . import shell_project
from .history_stage import move_day
from .shell_project import ShellProject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spawn = Callable[..., "subprocess.Popen[str]"]
#: time of all events that :func:`work` makes, so that no test depends on midnight
NOW = datetime.now(UTC)
TODAY = f"{NOW:%Y-%m-%d}"


def run(*arguments: str, err: StringIO | None = None) -> dict[str, Any]:
    """The last line of a subcommand, which is all that it prints on stdout."""
    out = StringIO()
    call_command("delayq_pipeline", *arguments, stdout=out, stderr=err or StringIO(), no_color=True)
    told: dict[str, Any] = json.loads(out.getvalue())
    assert out.getvalue().count("\n") == 1
    return told


def work(broker: Broker, count: int, *, failing: int = 0, queue: str = "orders", together: int = 250) -> None:
    """Jobs that are scheduled, run and settled at :data:`NOW`; their events are written by Redis's own script."""
    opened = Broker(broker.connection, prefix=broker.prefix, test_clock=True).queue(queue, shards=2)
    now_ms = int(NOW.timestamp() * 1000)
    for number in opened.numbers:
        broker.client.hset(opened.shard(number).names["meta"], "test_clock", now_ms * 1000)
    for number in range(count + failing):
        opened.schedule(NewJob(f"{queue}-{number}", "shop.pay"))
    left = failing
    for number in opened.numbers:
        while jobs := opened.reserve(number, together, worker="w:1").jobs:
            settled = []
            for job in jobs:
                failed = fail(job, now_ms, 5, delay_ms=10**8, error_class="ValueError")
                settled.append(failed if left > 0 else ack(job, now_ms, 12))
                left -= 1
            opened.settle(settled)


def figures() -> list[tuple[Any, ...]]:
    return list(HourlyStat.objects.order_by("queue").values_list("queue", "task", "runs", "succeeded", "failed"))


@pytest.fixture
def root(spark: SparkSession, delayq: Broker, settings: Any, tmp_path: Path) -> Path:
    """The history's folder; commands run in the session of the tests."""
    folder = tmp_path / "history"
    settings.DELAYQ = {**settings.DELAYQ, "PIPELINE": {"root": str(folder)}}
    return folder


@pytest.mark.django_db
def test_what_workers_did_gets_into_the_database(root: Path, delayq: Broker) -> None:
    work(delayq, 40, failing=3)
    work(delayq, 7, queue="mails")
    before = json.loads(_text("status", "--json"))
    assert (before["unread"], before["last_run"], before["events"]["days"]) == (50, None, 0)

    told = run("run")
    assert {name: told[name] for name in ("state", "rows", "batches", "days")} == {
        "state": "finished",
        "rows": 50,
        "batches": 1,
        "days": [TODAY],
    }
    assert figures() == [("mails", "shop.pay", 7, 7, 0), ("orders", "shop.pay", 43, 40, 3)]
    row = PipelineRun.objects.get()
    assert (row.run_id, row.kind, row.state, row.rows, row.total, row.error) == (
        told["run_id"],
        "history",
        "finished",
        50,
        50,
        "",
    )
    assert row.detail["days"] == [TODAY]

    after = json.loads(_text("status", "--json"))
    assert (after["unread"], after["pending_days"]) == (0, [])
    assert after["last_run"]["run_id"] == told["run_id"]
    assert (after["events"]["days"], after["events"]["first"], after["events"]["rows"]) == (1, TODAY, 50)
    assert after["events"]["bytes"] > 0
    lines = _text("status").splitlines()
    assert lines[0] == f"history in {root}"
    assert lines[1].startswith(f"last run {told['run_id']}: finished, 50 events, started ")
    assert [line.split()[:3] for line in lines if line.startswith(("mails", "orders"))] == [
        ["mails", "2", "0"],
        ["orders", "2", "0"],
    ]

    work(delayq, 5, queue="mails")
    assert run("run", "--queues", "mails", "--max-rows", "2")["rows"] == 5
    assert figures()[0] == ("mails", "shop.pay", 12, 12, 0)
    assert PipelineRun.objects.filter(state="finished").count() == 2


def _text(*arguments: str) -> str:
    out = StringIO()
    call_command("delayq_pipeline", *arguments, stdout=out, stderr=StringIO(), no_color=True)
    return out.getvalue()


@pytest.mark.django_db
def test_days_are_computed_anew_made_compact_and_taken_away(root: Path, delayq: Broker, settings: Any) -> None:
    for _ in range(2):
        work(delayq, 3)
        run("run")
    HourlyStat.objects.all().delete()
    told = run("backfill", "--from", TODAY, "--to", TODAY)
    assert (told["state"], told["rows"], told["days"]) == ("finished", 6, [TODAY])
    assert figures() == [("orders", "shop.pay", 6, 6, 0)]

    table = EventTable(str(root))
    today = date.fromisoformat(TODAY)
    assert len(table.files()) >= 2
    assert run("compact")["days"] == []
    old = NOW - timedelta(days=40)
    day = f"{old:%Y-%m-%d}"
    move_day(root, today, old.date())
    assert run("compact", "--older-than", "39")["days"] == [day]
    hours = [file.hour for file in table.files()]
    assert len(hours) == len(set(hours))
    assert run("run")["days"] == [], "compacted files are published"

    HourlyStat.objects.update(hour=old)
    PipelineRun.objects.update(started_at=old, seen_at=old)
    kept = {"keep_events_days": 50, "keep_hours_days": None}
    settings.DELAYQ = {**settings.DELAYQ, "PIPELINE": {"root": str(root), **kept}}
    assert run("purge", "--dry-run")["days"] == []
    assert run("purge")["database"] == {"hours": 0, "runs": 0}
    kept = {"keep_events_days": 39, "keep_hours_days": None}
    settings.DELAYQ = {**settings.DELAYQ, "PIPELINE": {"root": str(root), **kept}}
    dry = run("purge", "--dry-run")
    assert (dry["state"], dry["days"], dry["keep_days"]) == ("dry run", [day], {"events": 39, "hours": None})
    assert dry["bytes"] > 0
    assert {file.day for file in table.files()} == {old.date()}
    settings.DELAYQ = {**settings.DELAYQ, "PIPELINE": {"root": str(root), **kept, "keep_hours_days": 30}}
    told = run("purge")
    assert (told["days"], told["database"]) == ([day], {"hours": 1, "runs": 6})
    assert table.files() == []
    assert figures() == []


@pytest.mark.django_db
def test_a_failure_is_short_and_kept(root: Path, delayq: Broker) -> None:
    work(delayq, 1)
    root.write_text("a file in the way")
    with pytest.raises(CommandError) as caught:
        run("run")
    assert caught.value.returncode == 1
    assert len(str(caught.value).splitlines()) < 12
    assert "\tat org.apache" not in str(caught.value)
    row = PipelineRun.objects.get()
    assert (row.state, row.rows) == ("failed", 0)
    assert row.error
    with pytest.raises(CommandError, match="No events from 2020-01-01 to 2020-01-02 are kept"):
        root.unlink()
        run("backfill", "--from", "2020-01-01", "--to", "2020-01-02")
    with pytest.raises(CommandError, match="The last day, 2020-01-01, is before the first, 2020-01-02"):
        run("backfill", "--from", "2020-01-02", "--to", "2020-01-01")


@pytest.mark.django_db
@pytest.mark.broken_on_purpose
def test_events_that_are_lost_make_the_run_fail_loudly(root: Path, delayq: Broker) -> None:
    work(delayq, 10)
    run("run")
    work(delayq, 10, together=1)
    queue = delayq.queue("orders")
    for number in queue.numbers:
        delayq.client.xtrim(queue.shard(number).names["event"], maxlen=1, approximate=False)
    with pytest.raises(CommandError, match="orders"):
        run("run")
    row = PipelineRun.objects.latest("pk")
    assert row.state == "failed"
    assert row.error.startswith("EventsLost: ")
    assert run("run", "--allow-loss")["rows"] == 2, "the one of each shard that is left"
    assert run("run")["rows"] == 0


# -- a process of its own ----------------------------------------------------------------------------------------------


@pytest.fixture
def shell(manage_env: dict[str, str], broker: Broker, tmp_path: Path) -> ShellProject:
    """A project whose TIME_ZONE is far from UTC."""
    return shell_project.make(tmp_path, manage_env)


def piped(shell: ShellProject) -> dict[str, Any]:
    return {"env": shell.env, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


MANAGE = (sys.executable, "-m", "django", "delayq_pipeline")


@pytest.mark.spark
def test_a_stream_from_the_shell_ends_with_ctrl_c(broker: Broker, shell: ShellProject, spawn: Spawn) -> None:
    """Ctrl-C goes to the whole group of processes; nothing may be left over."""
    work(broker, 12)
    process = spawn(
        *MANAGE, "stream", "--interval", "60", env=shell.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    noise = []
    while not (noise and noise[-1].startswith("history: 12 events")):
        noise.append(process.stderr.readline())
        assert noise[-1], noise
    (java,) = children(process)
    os.killpg(process.pid, signal.SIGINT)
    asked = time.monotonic()
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert time.monotonic() - asked < 10, "nobody waits for the next interval"
    told = json.loads(output)
    assert (told["state"], told["rows"], told["runs"]) == ("stopped", 12, 1)
    assert [one for one in (*noise, *errors.splitlines(keepends=True)) if "incubator" not in one] == [
        "history: reads every 60 s; SIGTERM or Ctrl-C ends it\n",
        noise[-1],
    ]
    wait_until(lambda: not alive(java), 10, "the end of Java")
    assert shell.runs() == [("stopped", 12)]
    with contextlib.closing(sqlite3.connect(shell.database)) as connection:
        hours = connection.execute("SELECT hour, runs FROM django_delayq_hourlystat").fetchall()
    assert sum(runs for _, runs in hours) == 12
    assert {hour[:13] for hour, _ in hours} == {f"{NOW:%Y-%m-%d %H}"}


def children(process: subprocess.Popen[str]) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in found.stdout.split()]


@pytest.mark.spark
def test_a_run_that_is_stopped_says_so_and_the_next_one_goes_on(
    broker: Broker, shell: ShellProject, spawn: Spawn
) -> None:
    work(broker, 300)
    process = spawn(*MANAGE, "run", "--max-rows", "50", **piped(shell))
    wait_until((shell.root / "events").exists, 60, "the table")
    (java,) = children(process)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (4, "")
    assert errors.splitlines()[-1] == "CommandError: stopped by SIGTERM; the same command resumes from here"
    wait_until(lambda: not alive(java), 10, "the end of Java")
    assert shell.runs()[0][0] == "stopped"
    subprocess.run([*MANAGE, "run"], env=shell.env, check=True, timeout=120, capture_output=True)
    assert [figure[:4] for figure in shell.figures()] == [("orders", "shop.pay", 300, 300)]


@pytest.mark.spark
def test_a_bulk_load_that_is_stopped_says_how_it_is_resumed(shell: ShellProject, spawn: Spawn, tmp_path: Path) -> None:
    """Also where Java is still starting; the second signal would end it at once."""
    (tmp_path / "rows.csv").write_text("pk\n1\n")
    words = (
        *MANAGE,
        "bulk",
        str(tmp_path / "rows.csv"),
        "--format",
        "csv",
        "--queue",
        "feed",
        "--id",
        "{pk}",
        "--payload",
        "pk",
    )
    settings = tmp_path / "shell_settings.py"
    settings.write_text(settings.read_text() + 'DELAYQ["QUEUES"] = {"feed": {"kind": "pull"}}\n')
    process = spawn(*words, "--run-id", "r", **piped(shell))
    wait_until(lambda: bool(shell.runs()), 60, "the row of the run")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 4, errors
    assert errors.splitlines()[-1] == (
        "CommandError: stopped by SIGINT; run r is incomplete: resume it with the same command and --run-id r"
    )


TWICE = """
import django, signal, time
django.setup()
from django_delayq.management.pipeline.common import PipelineCommand

class Slow(PipelineCommand):
    def _end(self, name):
        print("stopped by", name, flush=True)
        time.sleep(60)

with Slow().listening():
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_the_process_at_once(spawn: Spawn, number: int, manage_env: dict[str, str]) -> None:
    env = {**os.environ, **manage_env}
    process = spawn(sys.executable, "-c", TWICE, stdout=subprocess.PIPE, env=env)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == f"stopped by {signal.Signals(number).name}\n"
    process.send_signal(number)
    assert process.wait(10) == -number
