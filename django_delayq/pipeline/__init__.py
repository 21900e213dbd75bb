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
    """Make the formats ``delayq``, ``delayq.events`` and ``delayq.model`` known to a Spark session.

    The session becomes the active one of the calling thread, without which Spark finds no format that is written to.
    So a thread that writes calls this, too; it may be called as often as one likes.

    Raises:
        PipelineError: Spark's workers would run another Python than this one, without the packages; the text says what
            to set.
    """
    from .events import EventsSource
    from .interpreter import check_workers
    from .jobs import JobsSource
    from .session import activate, is_classic
    from .table import TableSource

    if is_classic(spark):
        check_workers(spark)
        activate(spark)
    for source in (JobsSource, EventsSource, TableSource):
        spark.dataSource.register(source)


def session(options: SessionOptions | None = None) -> SparkSession:
    """A Spark session of our own, with the formats registered (:mod:`.session`)."""
    from .session import build, defaults

    spark: Any = build(options or defaults())
    register(spark)
    return spark  # type: ignore[no-any-return]
