"""``kill -9`` of a driver at work on the history: the next run ends as if it had not happened."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_delayq.core.broker import Broker
from django_delayq.pipeline.history import History, HistoryOptions
from tests.support.processes import alive, wait_until

from . import shell_project
from .history_stage import Database
from .shell_project import ShellProject, lake, summed
from .test_history_redis import counted, work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.spark]
Spawn = Callable[..., "subprocess.Popen[str]"]
#: what has just been done when it is killed
MOMENTS = [
    pytest.param("files written", id="when a batch is written, and in no version"),
    pytest.param("batch landed", id="when a batch is landed, and its hours are not in the database"),
    pytest.param("hours published", id="when the hours are in the database"),
]


@pytest.fixture
def project(manage_env: dict[str, str], broker: Broker, tmp_path: Path) -> ShellProject:
    """A project whose history has read something before; a twin, which nobody kills, reads the same events."""
    return shell_project.make(tmp_path, manage_env)


def kill_at(step: str, project: ShellProject, spawn: Spawn) -> None:
    """Starts a run, and kills it when it is there; its Java dies with it."""
    command = [sys.executable, "-m", "tests.pipeline.history_kill_program", step]
    process = spawn(*command, env=project.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    said = process.stdout.readline()
    assert said == f"at {step}\n", said + process.stderr.read()[-3_000:]
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True)
    (java,) = map(int, found.stdout.split())
    process.send_signal(signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    wait_until(lambda: not alive(java), 30, "the end of Java, whose Python was killed")


def run(project: ShellProject) -> None:
    command = [sys.executable, "-m", "django", "delayq_pipeline", "run"]
    subprocess.run(command, env=project.env, capture_output=True, timeout=300, check=True)


@pytest.mark.parametrize("step", MOMENTS)
def test_a_history_whose_driver_was_killed_equals_one_that_nobody_killed(
    spark: SparkSession,
    broker: Broker,
    redis_url: str,
    project: ShellProject,
    spawn: Spawn,
    tmp_path: Path,
    step: str,
) -> None:
    work(broker, random.Random(1), 60)
    run(project)
    work(broker, random.Random(2), 40)
    kill_at(step, project, spawn)
    run(project)  # nothing has come since, so it knows only by the files what is not published

    database = Database()
    options = HistoryOptions(str(tmp_path / "twin"), redis=redis_url, prefix=broker.prefix)
    History(spark, options, database).run()
    events = lake(spark, project.root)
    keys = [(row["queue"], row["shard"], row["stream_id"]) for row in events if row["outcome"] != "bulk"]
    assert len(set(keys)) == len(keys) == 2 * (60 + 40) == sum(counted(broker).values())
    assert events == lake(spark, tmp_path / "twin")
    assert project.figures() == summed(database.rows.values())
    assert [state for state, _ in project.runs()] == ["finished", "running", "finished"]
