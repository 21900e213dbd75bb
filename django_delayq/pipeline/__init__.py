"""The data pipeline on Spark: schedule in bulk, keep the history of jobs, compare tables with the queue, repair by SQL.

Needs the extra ``[spark]``. What runs on Spark's executors needs pyspark, pyarrow, redis and this package, and no
Django; nothing else in the package imports this room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .session import SessionOptions

__all__ = ["register", "session"]


def register(spark: SparkSession) -> None:
    """Makes the formats ``delayq``, ``delayq.events`` and ``delayq.model`` known to a Spark session.

    Each may be registered again, so this may be called as often as one likes.
    """
    from .events import EventsSource
    from .jobs import JobsSource
    from .table import TableSource

    for source in (JobsSource, EventsSource, TableSource):
        spark.dataSource.register(source)


def session(options: SessionOptions | None = None) -> SparkSession:
    """A Spark session of our own, with the formats registered (:mod:`.session`)."""
    from .session import build, defaults

    spark: Any = build(options or defaults())
    register(spark)
    return spark  # type: ignore[no-any-return]
