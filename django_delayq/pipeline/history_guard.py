"""Stop of a pipeline run from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from .errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS: Final = 0.2


@contextmanager
def stoppable(spark: SparkSession, stop: Callable[[], bool]) -> Iterator[threading.Event]:
    """Yield an event that is set when ``stop`` returns True; Spark's jobs of this thread are then cancelled.

    Errors caused by the cancellation are suppressed, because a requested stop is not a failure.
    """
    stopping, done = threading.Event(), threading.Event()
    context = spark.sparkContext
    tag = f"delayq-history-{id(done)}"

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            if stopping.is_set() or stop():
                stopping.set()
                with suppress(Exception):  # the session itself may be ending
                    context.cancelJobsWithTag(tag)

    watcher = threading.Thread(target=watch, name="delayq-history-stop", daemon=True)
    context.addJobTag(tag)
    watcher.start()
    try:
        yield stopping
    except (PySparkException, Py4JError, PipelineError):
        if not stopping.is_set():
            raise
    finally:
        done.set()
        watcher.join()
        context.removeJobTag(tag)
