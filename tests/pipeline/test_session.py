"""Starting Spark: what a session is told, and where its Pythons come from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_delayq.pipeline import session
from django_delayq.pipeline.errors import SparkMissing
from django_delayq.pipeline.session import SessionOptions, build, opened, running, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local", True),
        ("local[*,4]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://host:7077", False),
        ("yarn", False),
        ("k8s://https://host", False),
    ],
)
def test_only_a_driver_whose_executors_are_here_hides_behind_the_loopback(master: str, here: bool) -> None:
    options = SessionOptions(master=master)
    assert options.on_this_machine is here
    assert ("spark.driver.host" in settings(options)) is here
    assert settings(options)["spark.master"] == master


def test_what_is_ordered_comes_before_what_is_usual() -> None:
    told = settings(SessionOptions(conf={"spark.driver.memory": "3g", "spark.driver.host": "10.0.0.1", "spark.x": "y"}))
    assert (told["spark.driver.memory"], told["spark.driver.host"], told["spark.x"]) == ("3g", "10.0.0.1", "y")
    assert told["spark.sql.session.timeZone"] == "UTC"


def test_javas_own_options_stay_beside_ours() -> None:
    name = "spark.driver.extraJavaOptions"
    assert settings(SessionOptions())[name].endswith('log4j2.properties"')
    both = settings(SessionOptions(conf={name: "-Xss4m"}))[name]
    assert both.endswith("-Xss4m")
    assert "log4j2.configurationFile" in both
    theirs = {name: "-Dlog4j2.configurationFile=/etc/log4j2.xml"}
    assert settings(SessionOptions(conf=theirs))[name] == theirs[name]


def test_what_workers_are_told_is_not_shown() -> None:
    assert "geheim" not in repr(SessionOptions(environ={"REDIS": "redis://:geheim@host"}))


@pytest.mark.parametrize("name", session.PACKAGES)
def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SparkMissing, match=rf"The pipeline needs {name}: pip install 'django-delayq\[spark\]'"):
        session.check()


def test_the_session_that_runs_already_is_taken_and_left_running(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    with opened(SessionOptions(master="local[7]", conf={"spark.sql.ansi.enabled": "true"})) as same:
        assert same is spark
        assert same.sparkContext.master == "local[2]"
        assert same.conf.get("spark.sql.shuffle.partitions") == before
    assert running() is spark
    assert spark.range(3).count() == 3


def test_a_session_started_here_computes_in_utc_again(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/Chicago")
    build(SessionOptions())
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.parametrize(("master", "number"), [("local[*,4]", "2"), ("spark://host:7077", None), ("yarn", None)])
def test_a_cluster_has_as_many_shuffle_partitions_as_spark_chooses(master: str, number: str | None) -> None:
    assert settings(SessionOptions(master=master)).get("spark.sql.shuffle.partitions") == number


# -- in a process of its own -------------------------------------------------------------------------------------------

PROBE = """
import json, os, sys
from django_delayq.pipeline.session import SessionOptions, build
from tests.pipeline.few_rows import CONF
from pyspark.sql.datasource import DataSource, DataSourceReader

def look():
    return (os.environ.get("WHERE"), sys.executable)

class Reader(DataSourceReader):
    def read(self, partition):
        yield ("reads", *look())

class Source(DataSource):
    @classmethod
    def name(cls):
        return "probe"
    def schema(self):
        return "who string, told string, python string"
    def reader(self, schema):
        planned = ("plans", *look())
        class Both(Reader):
            def read(self, partition):
                yield planned
                yield from super().read(partition)
        return Both()

options = SessionOptions(master="local[1]", conf=CONF, environ={"WHERE": "redis://:geheim@host"})
spark = build(options)
spark.dataSource.register(Source)
frame = spark.read.format("probe").load()
rows = [list(row) for row in frame.collect()]
plan = frame._jdf.queryExecution().toString()
java = spark._sc._gateway.proc
words = open(f"/proc/{java.pid}/cmdline").read() + plan + str(spark.sparkContext.getConf().getAll())
print(json.dumps({"rows": rows, "secret": "geheim" in words, "java": java.pid}), flush=True)
sys.stdin.readline()                                     # and now SIGKILL to this process alone
"""


@pytest.mark.spark
def test_a_session_of_its_own(spawn: Spawn, tmp_path: Path) -> None:
    """One start of Spark for: the Python of the workers, the way of secrets, and the end of Java."""
    import json

    from tests.support.processes import alive, wait_until

    # A python3 without the packages is not to count.
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "python3").chmod(0o755)
    environ: dict[str, Any] = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": "python3",
    }
    process = spawn(
        sys.executable,
        "-c",
        PROBE,
        env={**os.environ, **environ},
        cwd=Path(__file__).resolve().parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    told = json.loads(line)
    worker = ["redis://:geheim@host", sys.executable]
    assert told["rows"] == [["plans", *worker], ["reads", *worker]]
    assert told["secret"] is False
    process.kill()
    wait_until(lambda: not alive(told["java"]), 20, "the end of Java, whose Python was killed")
    noise = [one for one in process.stderr.read().splitlines() if "incubator" not in one]
    assert noise == []


FOREIGN = """
import json, sys
from pyspark.sql import SparkSession, functions as F
from tests.pipeline.few_rows import CONF
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for key, value in CONF.items():
    builder = builder.config(key, value)
theirs = builder.config("spark.sql.session.timeZone", "Europe/Berlin").getOrCreate()
theirs.range(1).withColumn("p", F.lit("old")).write.partitionBy("p").parquet(sys.argv[1])
def conf(spark):
    names = ("spark.sql.session.timeZone", "spark.sql.parquet.outputTimestampType", "spark.sql.ansi.enabled")
    return [spark.conf.get(name) for name in names]
before = conf(theirs)
from django_delayq.pipeline.session import SessionOptions, build, opened
with opened(SessionOptions(conf={"spark.sql.ansi.enabled": "false"})) as ours:
    found = conf(ours)
theirs.range(1).withColumn("p", F.lit("new")).write.partitionBy("p").mode("overwrite").parquet(sys.argv[1])
kept = [row.p for row in theirs.read.parquet(sys.argv[1]).collect()]
same = SparkSession.builder.getOrCreate() is theirs
print(json.dumps([before == conf(theirs), found, kept, same]))
"""


@pytest.mark.spark
def test_a_session_started_elsewhere_is_left_as_it_was(tmp_path: Path) -> None:
    import json

    answer = subprocess.run(
        [sys.executable, "-c", FOREIGN, str(tmp_path / "table")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert json.loads(answer.stdout) == [True, ["UTC", "TIMESTAMP_MICROS", "false"], ["new"], True]


def test_a_java_that_is_missing_is_named_with_a_way_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "version" in session.check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissing, match=rf"{tmp_path}/bin/java does not run .*openjdk-17-jre-headless"):
        session.check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissing, match="java does not run"):
        session.check_java()


def test_a_java_that_does_not_start_is_explained() -> None:
    program = (
        "from django_delayq.pipeline.session import SessionOptions, build\n"
        "build(SessionOptions(master='local[1]', conf={'spark.driver.memory': '7q'}))\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 1
    assert "PipelineError: Spark did not start" in answer.stderr
    assert "spark.driver.memory (7q)" in answer.stderr


CLUSTER = """
import os
from django_delayq.pipeline.session import SessionOptions, opened
options = SessionOptions(master="local-cluster[2,1,1024]", environ={"WHERE": "redis://:geheim@host"})
with opened(options) as spark:
    def look(batches):
        import os, pandas, sys
        for _ in batches:
            yield pandas.DataFrame([(os.environ.get("WHERE"), sys.executable)])
    rows = spark.range(2, numPartitions=2).mapInPandas(look, "a string, b string").distinct().collect()
    conf = str(spark.sparkContext.getConf().getAll())
print([tuple(row) for row in rows] == [("redis://:geheim@host", os.sys.executable)], "geheim" in conf)
"""


@pytest.mark.slow
@pytest.mark.spark
def test_executors_of_other_processes_are_told_the_same_and_the_configuration_shows_nothing() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", CLUSTER],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert answer.stdout == "True False\n", answer.stdout + answer.stderr[-3000:]
