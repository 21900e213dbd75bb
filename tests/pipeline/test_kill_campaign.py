"""Campaign of kills: drivers, executors and Redis die at every step, and a recount without transforms agrees."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from deltalake import DeltaTable

from django_delayq.core import loads
from django_delayq.core.broker import Broker
from django_delayq.core.errors import QueueUnavailable
from django_delayq.core.events import Event, parts
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import Settlement
from django_delayq.pipeline.bulk import BulkOptions
from django_delayq.pipeline.reconcile import ReconcileOptions, Reconciliation
from tests.support import event_entries
from tests.support.processes import alive, children, wait_until
from tests.support.redis_box import RedisBox
from tests.support.seeds import seed_of_run

from . import shell_project
from .history_stage import Row, figures
from .shell_project import ShellProject
from .test_bulk_crashes import load_of, start, write_rows
from .test_history_redis import ended
from .test_writer import take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.spark]
Spawn = Callable[..., "subprocess.Popen[str]"]
CLUSTER = "local-cluster[2,1,1024]"
SHARDS = {"orders": 2, "mails": 1}
#: attempts in each round: in all more than 20,000
ATTEMPTS = 2_300
#: events of each round that a clock wrote which was behind
LATE = 60
HOUR_MS = 3_600_000
EXECUTOR = b"CoarseGrainedExecutorBackend"


@pytest.fixture(scope="module")
def redis_box(redis_box: RedisBox) -> Iterator[RedisBox]:
    """One that dies and has lost nothing that it acknowledged."""
    with RedisBox(binary=redis_box.binary, tcp=True, aof="always") as box:
        yield box


@pytest.fixture(autouse=True)
def no_homes_left() -> Iterator[None]:
    """Delete what the executors of a local-cluster leave behind."""
    work = Path(pyspark.__file__).parent / "work"
    known = set(work.glob("app-*"))
    yield
    for left in set(work.glob("app-*")) - known:
        shutil.rmtree(left, ignore_errors=True)


def tried(call: Callable[[], Any]) -> Any:
    """Return the result of a call that is repeated while Redis is away."""
    for _ in range(100):
        try:
            return call()
        except QueueUnavailable:
            time.sleep(0.1)
    return call()


class Work(threading.Thread):
    """Jobs that end somehow. Each is settled until there is an answer, and a quarter of them once more after that."""

    def __init__(self, broker: Broker, dice: random.Random) -> None:
        super().__init__()
        self._broker, self._dice = broker, dice
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.errors: list[BaseException] = []

    def run(self) -> None:
        try:
            while self.outcomes.total() < ATTEMPTS:
                for name, shards in SHARDS.items():
                    self._some(name, shards)
        except BaseException as error:
            self.errors.append(error)

    def _some(self, name: str, shards: int) -> None:
        queue = tried(lambda: self._broker.queue(name, shards=shards))
        jobs = [NewJob(f"{self._dice.random()}", f"shop.{name}") for _ in range(100)]
        tried(lambda: queue.schedule_many(jobs))
        for number in queue.numbers:
            while held := tried(partial(queue.reserve, number, 20, worker="w:1")).jobs:
                now_ms = int(tried(self._broker.now_ms))
                ends = [ended(job, self._dice.randrange(4), now_ms) for job in held]
                tried(partial(queue.settle, ends))
                self.outcomes.update((name, end.outcome) for end in ends)
                if self._dice.random() < 0.25:
                    self._settle_again(queue, ends)

    @staticmethod
    def _settle_again(queue: Any, ends: Sequence[Settlement]) -> None:
        assert not any(tried(lambda: queue.settle(ends)))

    def late(self) -> None:
        """Write events of attempts that ended hours ago behind newer ones."""
        now_ms = int(self._broker.now_ms())
        for name, shards in SHARDS.items():
            for number in range(shards):
                written = []
                for _ in range(LATE // 3):
                    ms = now_ms - self._dice.randrange(72 * HOUR_MS)
                    due, took = ms - self._dice.randrange(90_000), self._dice.randrange(500)
                    packed = event_entries.pack(
                        outcome="failed",
                        id=f"late-{self._dice.random()}",
                        task=f"shop.{name}",
                        key=f"{ms:032x}",
                        due=due,
                        started=ms,
                        ms=took,
                        attempt=2,
                    )
                    written.append((ms, [packed]))
                    self.outcomes[name, "failed"] += 1
                event_entries.add(self._broker, name, number, written)


# -- kills -------------------------------------------------------------------------------------------------------------


def descendants(pid: int) -> list[int]:
    """Return all processes below one."""
    return [one for child in children(pid) for one in (child, *descendants(child))]


def executors_of(pid: int) -> list[int]:
    found = []
    for child in descendants(pid):
        try:
            if EXECUTOR in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
        except OSError:  # it has ended
            continue
    return found


def kill_driver(process: subprocess.Popen[str]) -> None:
    """Kill a driver; wait until its Java and its executors are gone, too."""
    below = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    wait_until(lambda: not any(map(alive, below)), 60, "the end of what a killed driver had started")


class Rounds:
    """Runs of a history, each with another kill."""

    def __init__(self, project: ShellProject, box: RedisBox, spawn: Spawn, dice: random.Random) -> None:
        self._project, self._box, self._spawn, self._dice = project, box, spawn, dice

    def run(self) -> None:
        """Run without a kill."""
        process = self._begin()
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-3_000:]

    def at_step(self, step: str) -> None:
        """Kill a driver that has just done a step."""
        process = self._python("tests.pipeline.history_kill_program", step)
        assert process.stdout is not None and process.stderr is not None
        said = process.stdout.readline()
        assert said == f"at {step}\n", said + process.stderr.read()[-3_000:]
        kill_driver(process)

    def somewhere(self) -> None:
        """Kill a driver at any moment."""
        process = self._begin()
        time.sleep(self._dice.uniform(1, 15))
        kill_driver(process)

    def executor(self) -> None:
        """Kill an executor at work; the run does not fail."""
        process = self._begin("--master", CLUSTER)
        wait_until(lambda: len(executors_of(process.pid)) == 2 or process.poll() is not None, 120, "two executors")
        time.sleep(self._dice.uniform(0, 3))
        for pid in executors_of(process.pid)[:1]:
            os.kill(pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-3_000:]

    def redis(self) -> None:
        """Kill Redis during a run, which may fail then."""
        process = self._begin()
        for _ in range(3):
            time.sleep(self._dice.uniform(1, 4))
            self._box.restart()
        process.communicate(timeout=300)

    def together(self) -> None:
        """Begin two runs and a compaction at once: they wait for each other."""
        begun = [
            self._begin(),
            self._begin(),
            self._python("django", "delayq_pipeline", "compact", "--older-than=0.001"),
        ]
        for process in begun:
            _, errors = process.communicate(timeout=400)
            assert process.returncode == 0, errors[-3_000:]

    def _begin(self, *more: str) -> subprocess.Popen[str]:
        return self._python("django", "delayq_pipeline", "run", "--max-rows=700", *more)

    def _python(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", *arguments]
        return self._spawn(*command, env=self._project.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# -- recount -----------------------------------------------------------------------------------------------------------


def in_redis(broker: Broker) -> dict[tuple[str, int, str], Event]:
    """Return the attempts in the streams by place and position. A stream keeps its last 10,000 events."""
    places = [(name, number) for name, shards in SHARDS.items() for number in range(shards)]
    events = (event for place in places for event in event_entries.read_events(broker, *place, limit=1_000_000))
    return {(event.queue, event.shard, event.position): event for event in events if event.outcome != "bulk"}


def row_of(event: Event) -> Row:
    """Return an attempt as :func:`figures` takes it."""
    number = {name: int(event.fields.get(name) or 0) for name in ("due", "started", "ms", "attempt")}
    begun = number["started"] > 0
    return {
        "queue": event.queue,
        "shard": event.shard,
        "stream_id": event.position,
        "ts": datetime.fromtimestamp(parts(event.position)[1] / 1000, UTC),
        "task": event.fields.get("task"),
        "outcome": event.outcome,
        "attempt": number["attempt"],
        "lateness_ms": number["started"] - number["due"] if begun else None,
        "duration_ms": number["ms"] if begun else None,
    }


def published(database: Path) -> dict[tuple[datetime, str, str], Row]:
    """Return the hourly metrics of the database, read with SQL."""
    connection = sqlite3.connect(database)
    connection.row_factory = sqlite3.Row
    rows = list(map(dict, connection.execute("SELECT * FROM django_delayq_hourlystat")))
    connection.close()
    found = {}
    for row in rows:
        row["hour"] = datetime.fromisoformat(row["hour"]).replace(tzinfo=UTC)
        row |= {name: json.loads(row[name]) for name in row if name.endswith("_histogram")}
        found[row["hour"], row["queue"], row["task"]] = row
    assert len(found) == len(rows)
    return found


def test_no_kill_loses_or_doubles_an_attempt(
    broker: Broker, redis_box: RedisBox, manage_env: dict[str, str], spawn: Spawn, tmp_path: Path
) -> None:
    dice = random.Random(seed_of_run())
    project = shell_project.make(tmp_path, manage_env)
    rounds = Rounds(project, redis_box, spawn, dice)
    kills: list[Callable[[], None]] = [
        rounds.run,
        lambda: rounds.at_step("files written"),
        rounds.redis,
        lambda: rounds.at_step("batch landed"),
        rounds.executor,
        lambda: rounds.at_step("hours published"),
        rounds.together,
        rounds.somewhere,
        rounds.somewhere,
    ]
    outcomes: Counter[tuple[str, str]] = Counter()
    attempts: dict[tuple[str, int, str], Event] = {}
    for kill in kills:
        work = Work(broker, dice)
        work.late()
        work.start()
        kill()
        work.join(300)
        assert not work.errors
        outcomes += work.outcomes
        attempts |= in_redis(broker)
    rounds.run()
    states = Counter(state for state, _ in project.runs())
    assert states["running"] >= 3, "drivers were killed at work"

    assert Counter((event.queue, event.outcome) for event in attempts.values()) == outcomes
    assert outcomes.total() >= 20_000
    names = ["queue", "shard", "stream_id", "outcome"]
    stored = DeltaTable(str(project.root / "events")).to_pyarrow_table(columns=names).to_pylist()
    kept = Counter(tuple(row.values()) for row in stored if row["outcome"] != "bulk")
    assert kept == Counter((*place, event.outcome) for place, event in attempts.items())
    recounted = figures(map(row_of, attempts.values()))
    found = published(project.database)
    assert found.keys() == recounted.keys()
    assert [{name: found[key][name] for name in row} for key, row in recounted.items()] == list(recounted.values())


# -- bulk loads --------------------------------------------------------------------------------------------------------

JOBS = 150_000


def test_four_kills_of_a_bulk_load_double_and_lose_no_job(
    broker: Broker, redis_box: RedisBox, redis_url: str, spawn: Spawn, tmp_path: Path
) -> None:
    dice = random.Random(seed_of_run())
    for file in range(4):
        keys, later = range(file, JOBS, 4), datetime(2040, 1, 1, tzinfo=UTC)
        write_rows(tmp_path / f"{file}.parquet", keys, later, lambda n: n // 4 % 10 == 0)
    said = {**load_of(broker, redis_url, allowFar="true"), "path": str(tmp_path)}
    ran: Counter[str] = Counter()

    def has(most: int) -> bool:
        run = tried(lambda: loads.read_load(broker, "r"))
        return run is not None and sum(tried(lambda: loads.progress(broker, run)).values()) >= most

    for number, kill in enumerate(("driver", "redis", "executor", "driver"), 1):
        master = CLUSTER if kill == "executor" else "local[2]"
        process = start(spawn, "files", {**said, "rate": 12_000, "master": master})
        most = number * JOBS // 5 - dice.randrange(10_000)
        wait_until(partial(has, most), 180, f"{most} stored jobs")
        assert process.poll() is None, "it is at work when it is killed"
        if kill == "redis":
            redis_box.restart()
        if kill == "executor":
            os.kill(executors_of(process.pid)[0], signal.SIGKILL)
            time.sleep(2)
        kill_driver(process)
        ran.update(list(tried(lambda: take(broker, 2_000))))
    process = start(spawn, "files", said)
    out, _ = process.communicate(timeout=300)
    assert json.loads(out.splitlines()[-1]) == {"done": True}

    ran.update(list(take(broker, JOBS)))
    left: Counter[str] = Counter()
    for key in broker.client.scan_iter(f"{broker.prefix}*:body"):
        left.update(map(bytes.decode, broker.client.hkeys(key)))
    assert ran + left == Counter(map(str, range(JOBS)))
    assert set(ran) == {str(n) for n in range(JOBS) if n // 4 % 10 == 0}
    assert loads.progress(broker, loads.read_load(broker, "r")) == {"created": JOBS}  # type: ignore[arg-type]


# -- reconciles --------------------------------------------------------------------------------------------------------

ROWS = 3_000


def test_concurrent_reconciles_put_each_missing_job_back_once(
    spark: SparkSession, broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    rows = [(pk, now + timedelta(hours=1), now - timedelta(hours=1)) for pk in range(ROWS)]
    frame = spark.createDataFrame(rows, "pk LONG, due TIMESTAMP, created TIMESTAMP")
    queue = broker.queue("q", shards=3)
    queue.schedule_many(NewJob(f"row-{pk}", "close", delay_ms=HOUR_MS) for pk in range(0, ROWS, 3))
    together = threading.Barrier(3)

    def reconcile(number: int) -> int:
        options = BulkOptions(
            id="row-{pk}", due="due", args=("pk",), queue="q", task="close", redis=redis_url, prefix=broker.prefix
        )
        chosen = ReconcileOptions(jobs=options, grace_ms=60_000, scratch=str(tmp_path / f"scratch-{number}"))
        made = Reconciliation(spark, chosen, lambda before: frame)
        found = made.look()
        together.wait(120)
        return made.put_back(found).get("created", 0)

    with ThreadPoolExecutor(3) as pool:
        created = list(pool.map(reconcile, range(3)))
    assert sum(created) == ROWS - ROWS // 3
    ids: Counter[str] = Counter()
    for key in broker.client.scan_iter(f"{broker.prefix}*:body"):
        ids.update(map(bytes.decode, broker.client.hkeys(key)))
    assert ids == Counter(f"row-{pk}" for pk in range(ROWS))
