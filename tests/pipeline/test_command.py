"""manage.py delayq_pipeline with Spark: from what workers did to the figures in the database, and how it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.settlement import ack, fail
from django_delayq.models.history import HourlyStat, PipelineRun
from django_delayq.pipeline.status import lag_of
from django_delayq.pipeline.store import Store
from django_delayq.pipeline.versions import Versions
from tests.support.processes import alive, wait_until

from .history_stage import move_day

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spawn = Callable[..., "subprocess.Popen[str]"]
#: time of all events that :func:`work` makes, so that no test depends on midnight
NOW = datetime.now(UTC)
TODAY = f"{NOW:%Y-%m-%d}"


def run(*arguments: str, err: StringIO | None = None) -> dict[str, Any]:
    """The last line of a subcommand, which is all that it prints on stdout."""
    out = StringIO()
    try:
        call_command("delayq_pipeline", *arguments, stdout=out, stderr=err or StringIO(), no_color=True)
    finally:
        run.said = out.getvalue()  # type: ignore[attr-defined]
    told: dict[str, Any] = json.loads(out.getvalue())
    assert out.getvalue().count("\n") == 1
    return told


def said() -> dict[str, Any]:
    """The last line of a subcommand that failed."""
    return json.loads(run.said)  # type: ignore[attr-defined, no-any-return]


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
    assert (before["unread"], before["last_run"], before["tables"]["events"]["days"]) == (50, None, 0)

    told = run("run")
    assert {name: told[name] for name in ("state", "rows", "bad", "days", "broken")} == {
        "state": "finished",
        "rows": 50,
        "bad": 0,
        "days": [TODAY],
        "broken": {},
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
    for name in ("events", "attempts", "hours"):
        assert (after["tables"][name]["days"], after["tables"][name]["first"]) == (1, TODAY)
        assert after["tables"][name]["bytes"] > 0
    lines = _text("status").splitlines()
    assert lines[0] == f"history in {root}, consumer 'history'"
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

    events = Versions(Store(str(root)), "events")
    today = date.fromisoformat(TODAY)
    assert len(events.files({today: None})) >= 2
    assert run("compact")["days"] == []
    old = NOW - timedelta(days=40)
    day = f"{old:%Y-%m-%d}"
    move_day(root, today, old.date())
    assert run("compact", "--older-than", "39")["days"] == [day]
    hours = [file.hour for file in events.files()]
    assert len(hours) == len(set(hours))

    HourlyStat.objects.update(hour=old)
    PipelineRun.objects.update(started_at=old, seen_at=old)
    kept = {"keep_events_days": 30, "keep_attempts_days": 50, "keep_hours_days": None}
    settings.DELAYQ = {**settings.DELAYQ, "PIPELINE": {"root": str(root), **kept}}
    dry = run("purge", "--dry-run", "--attempts", "39")
    assert (dry["state"], dry["days"]) == ("dry run", {"events": [day], "attempts": [day], "hours": []})
    assert dry["bytes"] > 0
    assert events.days() == [old.date()]
    told = run("purge")
    assert told["days"] == {"events": [day], "attempts": [], "hours": [], "quarantine": []}
    assert told["database"] == {"hours": 0, "runs": 0}
    assert events.days() == []
    assert list((root / "events").glob(f"write=*/day={day}/**/*.parquet")) == []
    told = run("purge", "--hours", "30")
    assert told["days"]["hours"] == [day]
    assert told["database"] == {"hours": 1, "runs": 5}
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
    with pytest.raises(CommandError, match="--to 2020-01-01 is before --from 2020-01-02"):
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


# -- signals -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def once(condition: Callable[[], bool], number: int) -> Iterator[list[float]]:
    """Sends this process a signal as soon as something is the case; the value is when that was."""
    sent: list[float] = []
    give_up = threading.Event()

    def watch() -> None:
        while not give_up.wait(0.02):
            if condition():
                sent.append(time.monotonic())
                os.kill(os.getpid(), number)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield sent
    finally:
        give_up.set()
        watcher.join()


@pytest.mark.django_db
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_ends_in_order(root: Path, delayq: Broker, number: int) -> None:
    work(delayq, 20)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    landed = root / "_checkpoints"

    def is_idle() -> bool:
        return landed.exists() and sum(one.events for one in lag_of(delayq, Store(str(root)), "history")) == 0

    err = StringIO()
    with once(is_idle, number) as sent:
        told = run("stream", "--interval", "0.5", err=err)
    assert time.monotonic() - sent[0] < 10
    assert (told["state"], told["rows"]) == ("stopped", 20)
    assert err.getvalue().startswith("history: reads every 0.5 s; SIGTERM or Ctrl-C ends it\n")
    assert PipelineRun.objects.get().state == "stopped"
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.django_db
def test_a_run_that_is_stopped_says_so_and_the_next_one_goes_on(root: Path, delayq: Broker) -> None:
    work(delayq, 300)
    with once(lambda: (root / "_checkpoints").exists(), signal.SIGTERM), pytest.raises(CommandError) as caught:
        run("run", "--max-rows", "50")
    assert caught.value.returncode == 4
    assert "stopped by SIGTERM; the same command resumes from here" in str(caught.value)
    assert said()["state"] == "stopped"
    row = PipelineRun.objects.get()
    assert row.state == "stopped"
    run("run")
    assert figures() == [("orders", "shop.pay", 300, 300, 0)]


@pytest.mark.django_db
def test_a_subcommand_that_cannot_look_for_itself_is_cut_short(root: Path, delayq: Broker, spark: SparkSession) -> None:
    """As compact does it: the jobs of Spark are cancelled under it."""
    from django_delayq.management.pipeline import common
    from django_delayq.management.pipeline.stopping import Stopped, StopRequest

    class Context:
        stdout = stderr = None
        stop_request = StopRequest()

    def is_busy() -> bool:
        return bool(spark.sparkContext.statusTracker().getActiveJobsIds())

    begun = time.monotonic()
    with (
        Context.stop_request,
        once(is_busy, signal.SIGTERM),
        pytest.raises(Stopped),
        common.record_run(Context, "compact", "c"),
        common.session(Context, {}, "app") as session,
    ):  # type: ignore[arg-type]
        session.range(10**12).selectExpr("sum(id * id % 7)").collect()
    assert time.monotonic() - begun < 30
    assert PipelineRun.objects.get().state == "stopped"
    assert spark.range(3).count() == 3


def test_a_dry_run_that_is_cut_short_was_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not failed, as the error of Spark's cancelled jobs would say."""

    def cut(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("Job 5 cancelled")

    monkeypatch.setattr("django_delayq.management.pipeline.common.session", cut)
    (tmp_path / "rows.csv").write_text("pk\n1\n")
    words = ("--task", "shop.report", "--id", "{pk}", "--due", "+1h", "--dry-run")
    with pytest.raises(CommandError, match="stopped by SIGTERM") as error:
        run("bulk", str(tmp_path / "rows.csv"), "--schema", "pk LONG", *words)
    assert error.value.returncode == 4


TWICE = """
import os, signal, sys, time
from django_delayq.management.pipeline.stopping import StopRequest
with StopRequest() as stop_request:
    print("ready", flush=True)
    while not stop_request():
        time.sleep(0.01)
    print("stopped by", stop_request.signal.name, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_the_process_at_once(spawn: Spawn, number: int) -> None:
    process = spawn(sys.executable, "-c", TWICE, stdout=subprocess.PIPE, cwd=Path(__file__).resolve().parents[2])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == f"stopped by {signal.Signals(number).name}\n"
    process.send_signal(number)
    assert process.wait(10) == -number


# -- a process of its own ----------------------------------------------------------------------------------------------

SETTINGS = """
from tests.pipeline.few_rows import CONF
from tests.settings import *
DELAYQ = {{**DELAYQ, "PIPELINE": {{"root": {root!r}, "master": "local[1]", "conf": CONF}}}}
TIME_ZONE = "America/Chicago"
"""


def test_a_stream_from_the_shell_ends_with_ctrl_c(
    broker: Broker, manage_env: dict[str, str], spawn: Spawn, tmp_path: Path
) -> None:
    """Ctrl-C goes to the whole group of processes; TIME_ZONE is far from UTC; nothing may be left over."""
    (tmp_path / "far_settings.py").write_text(SETTINGS.format(root=str(tmp_path / "history")))
    database = tmp_path / "far.sqlite3"
    env = {
        **os.environ,
        **manage_env,
        "DJANGO_SETTINGS_MODULE": "far_settings",
        "DELAYQ_TEST_DB": f"sqlite:///{database}",
    }
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    manage = [sys.executable, "-m", "django"]
    subprocess.run([*manage, "migrate", "--verbosity", "0"], env=env, check=True, timeout=120)
    work(broker, 12)

    command = [*manage, "delayq_pipeline", "stream", "--interval", "60"]
    process = spawn(*command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None

    def children() -> list[int]:
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in found.stdout.split()]

    def lines() -> list[str]:
        answer = subprocess.run(
            [*manage, "delayq_pipeline", "runs", "--json"],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return [f"{one['state']} {one['rows']}" for one in json.loads(answer.stdout)["runs"]]

    noise = []
    while not (noise and noise[-1].startswith("history: 12 events")):
        noise.append(process.stderr.readline())
        assert noise[-1], noise
    (java,) = children()
    os.killpg(process.pid, signal.SIGINT)
    asked = time.monotonic()
    output, errors = process.communicate(timeout=30)
    took = time.monotonic() - asked
    assert process.returncode == 0, errors
    assert took < 25, "nobody waits for the next interval; what is left is the end of Spark and of Python"
    assert (json.loads(output)["state"], json.loads(output)["rows"]) == ("stopped", 12)
    assert [one for one in (*noise, *errors.splitlines(keepends=True)) if "incubator" not in one] == [
        "history: reads every 60 s; SIGTERM or Ctrl-C ends it\n",
        noise[-1],
    ]
    wait_until(lambda: not alive(java), 10, "the end of Java")
    assert lines() == ["stopped 12"]
    import sqlite3

    hours = sqlite3.connect(database).execute("SELECT hour, runs FROM django_delayq_hourlystat").fetchall()
    assert sum(runs for _, runs in hours) == 12
    assert {hour[:13] for hour, _ in hours} == {f"{NOW:%Y-%m-%d %H}"}
