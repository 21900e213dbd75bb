"""``register()``: the thread that calls it may write, and the Python of Spark's workers is looked at."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from django_delayq.core.broker import Broker
from django_delayq.pipeline import register
from django_delayq.pipeline import session as interpreter
from django_delayq.pipeline.bulk import BulkOptions, bulk
from django_delayq.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


@pytest.fixture
def target(redis_url: str, prefix: str) -> dict[str, str]:
    return {"redis": redis_url, "prefix": prefix, "queue": "q", "task": "app.send"}


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.sql("SELECT concat('job-', id) AS id FROM range(3)")


def in_a_thread(call: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(120)


def waiting(broker: Broker) -> list[str]:
    return sorted(view.id for view in broker.inspector.page("q", "waiting").jobs)


# -- threads -----------------------------------------------------------------------------------------------------------


def test_a_bulk_write_works_from_any_thread(spark: SparkSession, broker: Broker, target: dict[str, str]) -> None:
    options = BulkOptions(id="job-{id}", args=("id",), **target)  # type: ignore[arg-type]
    done = in_a_thread(lambda: bulk(spark, spark.range(3), options))
    assert (done.counts, waiting(broker)) == ({"created": 3}, ["job-0", "job-1", "job-2"])


def test_a_thread_that_registers_the_formats_writes_to_them(
    spark: SparkSession, rows: DataFrame, broker: Broker, target: dict[str, str]
) -> None:
    def write() -> None:
        register(spark)
        rows.write.format("delayq").options(**target).mode("append").save()

    in_a_thread(write)
    assert waiting(broker) == ["job-0", "job-1", "job-2"]


def test_a_thread_that_registers_the_formats_streams_to_them(
    spark: SparkSession, broker: Broker, target: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "1.json").write_text('{"id": "job-0"}\n')

    def stream() -> None:
        register(spark)
        frame = spark.readStream.schema("id string").json(str(tmp_path / "rows"))
        writer = frame.writeStream.format("delayq").options(**target, checkpointLocation=str(tmp_path / "done"))
        writer.trigger(availableNow=True).start().awaitTermination(60)

    in_a_thread(stream)
    assert waiting(broker) == ["job-0"]


# -- interpreters ------------------------------------------------------------------------------------------------------


@pytest.fixture
def workers(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[[object], SparkSession]:
    """The session as one that was made with another ``PYSPARK_PYTHON``, whatever earlier tests have attached to it."""
    monkeypatch.delitem(spark.sparkContext.environment, "PYTHONPATH", raising=False)

    def session(program: object) -> SparkSession:
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(program))
        return spark

    return session


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment, which has no packages."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def script(folder: Path, text: str) -> Path:
    program = folder / "a-python"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return program


def test_a_python_without_the_packages_is_refused_and_the_text_says_what_to_set(
    workers: Callable[[object], SparkSession], bare: Path
) -> None:
    with pytest.raises(PipelineError) as caught:
        register(workers(bare))
    text = str(caught.value)
    assert f"Spark's workers would run {bare}, which lacks " in text
    assert "redis, pyarrow, pandas. " in text
    assert f"Set PYSPARK_PYTHON={sys.executable} in the environment before the SparkSession is created" in text


def test_another_python_that_has_the_packages_is_taken(
    workers: Callable[[object], SparkSession],
    bare: Path,
    tmp_path: Path,
    target: dict[str, str],
    rows: DataFrame,
    broker: Broker,
) -> None:
    equipped = tmp_path / "equipped"
    shutil.copytree(bare.parent.parent, equipped, symlinks=True)
    (packages,) = equipped.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text("\n".join(entry for entry in sys.path if entry.endswith("-packages")))
    register(workers(equipped / "bin" / "python"))
    rows.write.format("delayq").options(**target).mode("append").save()
    assert waiting(broker) == ["job-0", "job-1", "job-2"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("echo '[\"2.9\", []]'", "(Python 2.9), and this process runs Python "),
        ("echo 'no such option' >&2; exit 3", "which fails: no such option"),
        ("exit 4", "which fails: exit code 4"),
        ("echo hello", "which is no Python"),
        ("exec sleep 60", "which did not start within 0.5 s"),
    ],
)
def test_what_is_no_python_of_ours_is_named_with_its_fault(
    workers: Callable[[object], SparkSession], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, fault: str
) -> None:
    if "sleep" in text:
        monkeypatch.setattr(interpreter, "ANSWER_SECONDS", 0.5)
    program = script(tmp_path, text)
    with pytest.raises(PipelineError, match="Set PYSPARK_PYTHON=") as caught:
        register(workers(program))
    assert f"would run {program}" in str(caught.value)
    assert fault in str(caught.value)


def test_a_python_that_is_not_there_is_refused(workers: Callable[[object], SparkSession]) -> None:
    with pytest.raises(PipelineError, match=r"would run python9, and there is no such program\. Set PYSPARK_PYTHON="):
        register(workers("python9"))


def test_the_python_of_this_process_is_not_started(
    workers: Callable[[object], SparkSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    register(workers(sys.executable))
