"""``register()``: the thread that calls it may write, and Spark's workers may run another Python."""

from __future__ import annotations

import shutil
import sys
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from django_delayq.core.broker import Broker
from django_delayq.pipeline import register
from django_delayq.pipeline.bulk import BulkOptions, bulk
from django_delayq.pipeline.inputs import Files

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


def test_a_bulk_write_works_from_any_thread(
    spark: SparkSession, broker: Broker, target: dict[str, str], stored: Callable[[DataFrame], Files]
) -> None:
    options = BulkOptions(id="job-{id}", args=("id",), **target)  # type: ignore[arg-type]
    done = in_a_thread(lambda: bulk(spark, stored(spark.range(3)), options))
    assert (done.counts, waiting(broker)) == ({"created": 3}, ["job-0", "job-1", "job-2"])


def test_a_thread_that_registers_the_formats_writes_to_them(
    spark: SparkSession, rows: DataFrame, broker: Broker, target: dict[str, str]
) -> None:
    def write() -> None:
        register(spark)
        rows.write.format("delayq").options(**target).mode("append").save()

    in_a_thread(write)
    assert waiting(broker) == ["job-0", "job-1", "job-2"]


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


def test_a_python_without_the_packages_is_refused_with_what_it_lacks(
    workers: Callable[[object], SparkSession], bare: Path, target: dict[str, str], rows: DataFrame, broker: Broker
) -> None:
    with pytest.raises(Exception, match=r"No module named '\w+'"):
        in_a_bare_python(workers(bare), rows, target)
    assert broker.known_queue("q") is None


def in_a_bare_python(spark: SparkSession, rows: DataFrame, target: dict[str, str]) -> None:
    register(spark)
    rows.write.format("delayq").options(**target).mode("append").save()


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
