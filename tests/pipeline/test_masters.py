"""Masters other than ``local``: executors in processes of their own, on several hosts, with Spark's second tries."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from django_delayq.core import loads
from django_delayq.core.broker import Broker
from django_delayq.core.outcomes import ack
from django_delayq.pipeline.history import History, HistoryOptions
from tests.support.moments import in_days
from tests.support.processes import wait_until
from tests.support.redis_box import RedisBox

from . import shell_project
from .history_stage import Database
from .masters_program import PARTS, REDIS, ROWS, SLOW
from .shell_project import lake, summed
from .standalone import CONF, Standalone, has_hosts
from .test_history_redis import work
from .test_writer import counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.skipif(not has_hosts(), reason="needs a second loopback address, 127.0.0.2, as Linux has"),
]
Spawn = Callable[..., "subprocess.Popen[str]"]
WROTE = 20_000


@pytest.fixture(scope="module")
def redis_box(redis_box: RedisBox) -> Iterator[RedisBox]:
    """One with a port: executors of other machines cannot use a socket of this one, and the command says so."""
    with RedisBox(binary=redis_box.binary, tcp=True) as box:
        yield box


@dataclass(frozen=True, slots=True)
class Master:
    """Master that a driver connects to."""

    url: str
    #: of those that run tasks
    hosts: list[str]
    #: where each executor leaves a folder ``app-.../0``
    homes: list[Path]
    conf: dict[str, str] = field(default_factory=lambda: dict(CONF))


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    """A master and two workers of their own, which are two hosts to Spark."""
    folder = tmp_path_factory.mktemp("standalone")
    cluster = Standalone(folder)
    try:
        yield Master(cluster.url, cluster.hosts, [folder / host for host in cluster.hosts])
    finally:
        cluster.close()


@pytest.fixture(params=["standalone", "local-cluster"])
def master(request: pytest.FixtureRequest) -> Iterator[Master]:
    """Either of them. Spark takes the two executors of a local-cluster for one host, and works in its own home."""
    if request.param == "standalone":
        yield request.getfixturevalue("standalone")
        return
    work = Path(pyspark.__file__).parent / "work"
    known = set(work.glob("app-*"))
    yield Master("local-cluster[2,1,1024]", ["127.0.0.1"], [work])
    for left in set(work.glob("app-*")) - known:
        shutil.rmtree(left)


@pytest.fixture
def drive(spawn: Spawn, broker: Broker, redis_url: str) -> Callable[..., Driver]:
    """``drive(what, master, options, **said)`` starts ``masters_program``, and returns when Spark runs there."""

    def drive(what: str, master: Master, options: dict[str, str], **said: Any) -> Driver:
        conf = master.conf | said.pop("conf", {})
        target = {"redisEnv": REDIS, "prefix": broker.prefix, "queue": "q", "task": "t", **options}
        given = {"master": master.url, "conf": conf, "redis": redis_url, "options": target, **said}
        command = [sys.executable, "-m", "tests.pipeline.masters_program", what, json.dumps(given)]
        root = Path(__file__).resolve().parents[2]
        pipe = subprocess.PIPE
        process = spawn(*command, cwd=root, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
        driver = Driver(process)
        driver.hear()
        return driver

    return drive


class Driver:
    """A driver in a process of its own, which says a line of JSON now and then, and waits for one before it goes on."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hear(self) -> dict[str, Any]:
        """The next line of JSON."""
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                return told
            said.append(line)
        raise AssertionError("".join(said))

    @property
    def is_over(self) -> bool:
        """Return True if the process has ended."""
        return self.process.poll() is not None

    def go_on(self) -> None:
        """Lets it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Lets it end."""
        self.go_on()
        assert self.process.wait(120) == 0


def run_all(broker: Broker) -> Counter[str]:
    """Runs whatever is due: ids, and how often each of them came."""
    found: Counter[str] = Counter()
    queue = broker.queue("q")
    for number in queue.numbers:
        while jobs := queue.reserve(number, 1_000, worker="test").jobs:
            found.update(job.id for job in jobs)
            assert all(queue.settle([ack(job, 1, 1) for job in jobs]))
    return found


def executors(master: Master) -> set[Path]:
    """The folders of all executors that there have been."""
    return {found for home in master.homes for found in home.glob("app-*/[0-9]*")}


def test_executors_write_each_job_once_and_a_second_write_of_the_same_run_skips_it(
    broker: Broker, master: Master, drive: Callable[..., Driver], tmp_path: Path
) -> None:
    later = in_days(30)
    files = 4
    for number in range(files):
        keys = range(number, WROTE, files)
        # a half of them is due, so that it can run between the two writes
        due = [later + timedelta(milliseconds=n) if n % 2 else datetime(2020, 1, 1, tzinfo=UTC) for n in keys]
        table = pa.table({"id": [f"job-{n}" for n in keys], "due": pa.array(due, pa.timestamp("us", "UTC"))})
        pq.write_table(table, tmp_path / f"{number}.parquet")

    driver = drive("write", master, {"runId": "r", "shards": "3"}, path=str(tmp_path))
    first = driver.hear()
    assert counts(broker, "r") == {"created": WROTE}
    assert first["parts"] == 2
    assert {each["host"] for each in first["tries"]} == set(master.hosts)
    wrote = [each for each in first["tries"] if each["job"] == max(one["job"] for one in first["tries"])]
    assert {(each["part"], each["status"]) for each in wrote} == {(0, "SUCCESS"), (1, "SUCCESS")}
    assert len({each["executor"] for each in wrote}) == 2
    ran = run_all(broker)
    assert ran == Counter({f"job-{n}": 1 for n in range(WROTE) if n % 2 == 0})

    driver.go_on()
    second = driver.hear()
    assert len(second["tries"]) > len(first["tries"]), "the tasks of the second write ran, too"
    driver.end()

    run = loads.read_load(broker, "r")
    assert run is not None and run.closed
    assert counts(broker, "r") == {"created": WROTE}
    assert not run_all(broker), "what has run is not put in again"
    left = broker.inspector.counts("q")
    assert (left.delayed, left.ready) == (WROTE - len(ran), 0)


def test_a_slow_task_that_spark_begins_once_more_beside_the_first_doubles_nothing(
    broker: Broker, standalone: Master, drive: Callable[..., Driver], tmp_path: Path
) -> None:
    speculating = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "250",
    }
    options = {"runId": "r", "shards": "1", "chunk": "100", "marks": str(tmp_path)}
    driver = drive("overtake", standalone, options, conf=speculating)
    both = [tmp_path / "halted-0", tmp_path / "halted-1"]
    wait_until(lambda: all(each.exists() for each in both) or driver.is_over, 240, "the second try of the task")
    assert not driver.is_over, driver.hear()
    before = counts(broker, "r")
    assert set(before) == {"created"}
    assert (PARTS - 1) * ROWS < before["created"] < PARTS * ROWS, "it is slow in the middle of its rows"
    (tmp_path / "go").touch()
    tries = driver.hear()["tries"]
    driver.end()

    of_slow = sorted((each for each in tries if each["part"] == SLOW), key=lambda each: int(each["attempt"]))
    assert [(each["attempt"], each["speculative"]) for each in of_slow] == [(0, False), (1, True)]
    assert {each["host"] for each in of_slow} == set(standalone.hosts)
    assert "SUCCESS" in {each["status"] for each in of_slow}
    assert {each.name for each in tmp_path.glob("went-on-*")} == {"went-on-0", "went-on-1"}
    assert counts(broker, "r") == {"created": PARTS * ROWS}
    assert run_all(broker) == Counter({f"job-{n}": 1 for n in range(PARTS * ROWS)})


def test_a_task_that_fails_three_times_at_three_places_doubles_nothing(
    broker: Broker, drive: Callable[..., Driver]
) -> None:
    conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": "250"}
    driver = drive("fail", Master("local[2,4]", [], [], {}), {"runId": "r", "shards": "2", "chunk": "100"}, conf=conf)
    tries = driver.hear()["tries"]
    driver.end()

    of_each = Counter((each["part"], each["attempt"], each["status"]) for each in tries)
    assert of_each == {(part, at, "SUCCESS" if at == 3 else "FAILED"): 1 for part in range(PARTS) for at in range(4)}
    run = loads.read_load(broker, "r")
    assert run is not None and run.closed
    assert counts(broker, "r") == {"created": PARTS * ROWS}
    assert run_all(broker) == Counter({f"job-{n}": 1 for n in range(PARTS * ROWS)})


def test_the_history_of_executors_equals_that_of_one_process(
    spark: SparkSession, broker: Broker, redis_url: str, manage_env: dict[str, str], master: Master, tmp_path: Path
) -> None:
    project = shell_project.make(tmp_path, manage_env)
    twin = tmp_path / "twin"
    for jobs in (120, 30):
        work(broker, random.Random(jobs), jobs)
        known = executors(master)
        command = [sys.executable, "-m", "django", "delayq_pipeline", "run", "--master", master.url, "--max-rows=100"]
        for name, value in master.conf.items():
            command += ["--conf", f"{name}={value}"]
        answer = subprocess.run(command, env=project.env, capture_output=True, text=True, timeout=300, check=False)
        assert answer.returncode == 0, answer.stderr[-3_000:]
        told = json.loads(answer.stdout)
        assert (told["state"], told["rows"]) == ("finished", read(jobs))
        assert told["batches"] >= jobs // 60
        assert len(executors(master) - known) == 2

    database = Database()
    History(spark, HistoryOptions(str(twin), redis=redis_url, prefix=broker.prefix), database).run()

    found = lake(spark, project.root)
    assert found == lake(spark, twin)
    assert len([row for row in found if row["outcome"] != "bulk"]) == 300
    assert project.figures() == summed(database.rows.values())
    assert project.runs() == [("finished", read(120)), ("finished", read(30))]


def read(jobs: int) -> int:
    """Events of :func:`work`: of each job in two queues, and of a chunk that was written to each of three shards."""
    return 2 * jobs + 3
