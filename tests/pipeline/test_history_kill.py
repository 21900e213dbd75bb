"""``kill -9`` of a driver at work on the history: the next run ends as if it had not happened."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
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
#: what has just been done when it is killed, and whether the day is noted as not done with
MOMENTS = [
    pytest.param("batch written", False, id="when a batch is written, and not yet where it belongs"),
    pytest.param("batch landed", True, id="when a batch is landed, and Spark has not yet noted it"),
    pytest.param("attempts: files written", True, id="before the attempts are exchanged"),
    pytest.param("attempts: replaced", True, id="when the attempts are exchanged, and the figures are not"),
    pytest.param("hours: replaced", True, id="before the figures are in the database"),
    pytest.param("hours published", True, id="when the figures are in the database, and the day is not yet settled"),
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
    assert said.startswith("at ") and fnmatchcase(said[3:-1], step), said + process.stderr.read()[-3_000:]
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True)
    (java,) = map(int, found.stdout.split())
    process.send_signal(signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    wait_until(lambda: not alive(java), 30, "the end of Java, whose Python was killed")


def run(project: ShellProject) -> None:
    command = [sys.executable, "-m", "django", "delayq_pipeline", "run"]
    subprocess.run(command, env=project.env, capture_output=True, timeout=300, check=True)


@pytest.mark.parametrize(("step", "is_noted"), MOMENTS)
def test_a_history_whose_driver_was_killed_equals_one_that_nobody_killed(
    spark: SparkSession,
    broker: Broker,
    redis_url: str,
    project: ShellProject,
    spawn: Spawn,
    tmp_path: Path,
    step: str,
    is_noted: bool,
) -> None:
    work(broker, random.Random(1), 60)
    run(project)
    work(broker, random.Random(2), 40)
    kill_at(step, project, spawn)
    pending = project.root / "_pending_days"
    assert bool(list(pending.glob("2*"))) == is_noted
    run(project)  # nothing has come since, so it knows only by its notes what is not done

    database = Database()
    History(spark, HistoryOptions(str(tmp_path / "twin"), redis=redis_url, prefix=broker.prefix, consumer="twin")).run(
        database
    )
    attempts = lake(spark, project.root, "attempts")
    keys = [(row["queue"], row["shard"], row["stream_id"]) for row in attempts]
    assert len(set(keys)) == len(keys) == 2 * (60 + 40) == sum(counted(broker).values())
    for table in ("attempts", "hours", "events"):
        assert lake(spark, project.root, table) == lake(spark, tmp_path / "twin", table), table
    assert project.figures() == summed(database.rows.values())
    assert [state for state, _ in project.runs()] == ["finished", "running", "finished"]
    assert list(pending.glob("2*")) == []
