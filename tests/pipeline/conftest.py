"""One Spark for all tests of the pipeline: ``local[2]``, with one try for each task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the pipeline needs the extra [spark]")

from django_delayq.pipeline.errors import SparkMissing
from django_delayq.pipeline.inputs import Files
from django_delayq.pipeline.session import SessionOptions, build
from tests.support import java

from . import few_rows
from .history_stage import Database, Inbox
from .stocked import _postgres, _sqlite, any_stock, postgres_stock, stock  # noqa: F401 (fixtures)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


java.ensure()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


def _home_without_zip(home: Path) -> Path:
    """Return a home of Spark whose workers import the installed pyspark: that in its zip is compiled at each start."""
    import pyspark

    home.mkdir()
    for name in ("bin", "jars", "sbin"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The run's Spark."""
    from django_delayq.pipeline import register

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        **few_rows.CONF,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
    }
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARK_HOME", str(_home_without_zip(folder / "home")))
            spark = build(SessionOptions(master="local[2]", app="tests", conf=conf))
    except SparkMissing as error:
        pytest.skip(str(error))
    register(spark)
    gateway: Any = spark.sparkContext._gateway
    yield spark
    spark.stop()
    # Its Java would live as long as this process, and be counted among what the tests have left behind.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)


@pytest.fixture
def spark(spark_session: SparkSession) -> SparkSession:
    """The run's Spark, with the formats of the pipeline."""
    return spark_session


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[DataFrame], Files]:
    """``stored(frame)``: files with its rows."""
    numbers = count()

    def store(frame: DataFrame) -> Files:
        path = str(tmp_path / f"stored-{next(numbers)}")
        frame.write.parquet(path)
        return Files((path,))

    return store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the folder of a history."""
    return tmp_path / "history"


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    """Return a stream of events made by hand."""
    return Inbox(tmp_path / "inbox")


@pytest.fixture
def database() -> Database:
    """Return a database that keeps the figures it gets."""
    return Database()
