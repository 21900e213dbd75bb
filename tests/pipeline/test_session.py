"""Starting Spark: what a session is told, where its Pythons come from, whose signals its Java hears."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_delayq.pipeline import session
from django_delayq.pipeline.errors import PipelineError, SparkMissing
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


def test_an_old_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    assert session.check() == pyspark.__version__
    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    with pytest.raises(SparkMissing, match=r"pyspark 4\.1\.2 is too old, 4\.2 or newer is needed: pip install"):
        session.check()


@pytest.mark.parametrize("name", ["pyspark", "pyarrow", "pandas"])
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
import json, os, signal, sys, time
os.environ["TZ"] = "America/Chicago"; time.tzset()          # what Django does
from django_delayq.pipeline.session import SessionOptions, build
from tests.pipeline.few_rows import CONF
from pyspark.sql.datasource import DataSource, DataSourceReader

def look():
    return (os.environ.get("WHERE"), sys.executable, time.tzname[0], os.environ.get("TZ"))

class Reader(DataSourceReader):
    def read(self, partition):
        yield ("reads", *look())

class Source(DataSource):
    @classmethod
    def name(cls):
        return "probe"
    def schema(self):
        return "who string, told string, python string, zone string, tz string"
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
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(json.dumps({
    "rows": rows, "secret": "geheim" in words, "zone": spark._jvm.java.util.TimeZone.getDefault().getID(),
    "driver": [os.environ["TZ"], time.localtime(0).tm_hour, os.environ.get("PYTHONPATH")],
    "java": java.pid, "group": os.getpgid(java.pid) == os.getpgid(0),
}), flush=True)
sys.stdin.readline()                                     # meanwhile the whole group is sent SIGTERM
print(spark.range(5).count(), flush=True)
sys.stdin.readline()                                     # and now SIGKILL to this process alone
"""


def test_a_session_of_its_own(spawn: Spawn, tmp_path: Path) -> None:
    """One start of Spark for: the Python of the workers, their zone, the way of secrets, and signals."""
    import json

    from tests.support.processes import alive, wait_until

    # Neither is to count: a python3 without the packages, and a PYTHONPATH with nothing of ours.
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "python3").chmod(0o755)
    environ: dict[str, Any] = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": "python3",
        "PYTHONPATH": "",
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
    worker = ["redis://:geheim@host", sys.executable, "UTC", "UTC"]
    assert told["rows"] == [["plans", *worker], ["reads", *worker]]
    assert told["secret"] is False
    assert told["zone"] == "UTC"
    assert told["driver"] == ["America/Chicago", 18, ""], "nothing of this process is changed"
    assert told["group"] is False

    os.killpg(process.pid, signal.SIGTERM)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "5\n", "Java goes on until its Python ends it"
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


@pytest.mark.parametrize(
    ("options", "environ", "words"),
    [
        ({"master": "sc://host"}, {}, "not Spark Connect"),
        ({}, {"SPARK_REMOTE": "sc://host"}, "unset SPARK_REMOTE"),
    ],
)
def test_spark_connect_is_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], environ: dict[str, str], words: str
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PipelineError, match=words):
        session._start(SessionOptions(**options))  # type: ignore[arg-type]


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
        import os, pandas, sys, time
        for _ in batches:
            yield pandas.DataFrame([(os.environ.get("WHERE"), sys.executable, time.tzname[0])])
    rows = spark.range(2, numPartitions=2).mapInPandas(look, "a string, b string, c string").distinct().collect()
    conf = str(spark.sparkContext.getConf().getAll())
print([tuple(row) for row in rows] == [("redis://:geheim@host", os.sys.executable, "UTC")], "geheim" in conf)
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
        env={**os.environ, "TZ": "America/Chicago"},
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert answer.stdout == "True False\n", answer.stdout + answer.stderr[-3000:]
