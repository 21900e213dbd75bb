"""Handling of SIGTERM and Ctrl-C: the first requests an orderly stop, the second ends the process at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: seconds between two checks for a stop request
LOOK: Final = 0.2


class Stopped(BaseException):
    """Stop before the work was done. Not an Exception, so that error handlers do not catch it."""


class Stopping:
    """Stop request by a signal; may be called, as ``stop()`` of a long run, from any thread.

    A context manager: outside of the block the previous signal handlers apply. In a thread other than the main one
    signals cannot be handled, and a stop is never requested.
    """

    def __init__(self) -> None:
        #: signal that requested the stop
        self.asked: signal.Signals | None = None
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.asked is not None

    def __enter__(self) -> Stopping:
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def listen(self) -> None:
        """Install the signal handlers; call again if other code has replaced them meanwhile (Spark does so)."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            before = signal.signal(number, self._heard)
            self._before.setdefault(number, before)

    def check(self) -> None:
        """Check for a stop request.

        Raises:
            Stopped: a stop was requested.
        """
        if self.asked is not None:
            raise Stopped(self.sentence)

    @property
    def sentence(self) -> str:
        """Message about the stop request; "" if there is none."""
        return "" if self.asked is None else f"stopped by {self.asked.name}; the same command goes on from here"

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        if self.asked is not None:
            # Spark's Java process detects the end of this process by its pipe, however the process ends.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.asked = signal.Signals(number)

    @contextlib.contextmanager
    def cancelling(self, spark: SparkSession) -> Iterator[None]:
        """Cancel Spark's jobs and streams after a stop request, so that the code that waits for them continues.

        A thread does it, because a signal handler that raises would interrupt the communication with Java in the middle
        of a reply.
        """
        done = threading.Event()

        def watch() -> None:
            while not done.wait(LOOK):
                if self():
                    with contextlib.suppress(Exception):  # Spark may be ending by itself
                        cancel(spark)

        watcher = threading.Thread(target=watch, name="delayq-stopping", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join(5)


def cancel(spark: SparkSession) -> None:
    """Cancel the running jobs and streams. Code that waits for them receives an exception or continues."""
    spark.sparkContext.cancelAllJobs()
    for query in spark.streams.active:
        query.stop()
