"""Spark data pipeline: bulk loads, job history, a table-to-queue comparison, and repairs in SQL.

Needs the extra ``[spark]``. The code that runs on Spark's executors needs pyspark, pyarrow, redis and this package, but
not Django. No other part of the package imports this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .session import SessionOptions

__all__ = ["register", "session"]


def register(spark: SparkSession) -> None:
    """Register the formats ``delayq`` and ``delayq.events`` with a Spark session.

    The session becomes the active one of the calling thread; Spark needs that to find a format that is written to. Each
    thread that writes must therefore call this function too. Repeated calls are harmless.
    """
    from pyspark.sql import SparkSession

    from .events import EventsSource
    from .jobs import JobsSource
    from .session import activate

    if isinstance(spark, SparkSession):  # that of Spark Connect belongs to a server
        activate(spark)
    for source in (JobsSource, EventsSource):
        spark.dataSource.register(source)


def session(options: SessionOptions | None = None) -> SparkSession:
    """Return a new Spark session with the formats registered (:mod:`.session`)."""
    from .session import SessionOptions, build

    spark = build(options or SessionOptions())
    register(spark)
    return spark
