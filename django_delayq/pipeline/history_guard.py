"""Exclusive access to a history, and a stop of its pipeline run from outside."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from .errors import PipelineError
from .store import HISTORY_LOG, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(HISTORY_LOG)

POLL_SECONDS: Final = 0.2


@contextmanager
def exclusive(
    store: Store, wait_s: float, give_up: Callable[[], bool] = lambda: False, *, patient: bool = False
) -> Iterator[None]:
    """Hold the lock of a history.

    Args:
        wait_s: seconds to wait for another process.
        give_up: polled while waiting; True = stop waiting.
        patient: after ``wait_s``, log a warning and continue to wait.

    Raises:
        PipelineError: another process still holds the lock.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(store.alone(wait_s, give_up))
        except PipelineError as error:
            if not patient or give_up():
                raise
            log.warning("%s; waiting for it", error)
            stack.enter_context(store.alone(float("inf"), give_up))
        yield


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
