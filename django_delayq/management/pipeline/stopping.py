"""Handling of SIGTERM and Ctrl-C: the first requests an orderly stop, the second ends the process at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: pause between two checks for a stop request
CHECK_SECONDS: Final = 0.2


class Stopped(BaseException):
    """Stop before the work is done. Not an Exception, so that error handlers do not catch it."""


class StopRequest:
    """Stop request by a signal. Call it, from any thread, to find out if a stop is requested.

    A context manager, which installs the previous signal handlers again at its end. In a thread other than the main one
    signals cannot be handled, and a stop is never requested.
    """

    def __init__(self) -> None:
        #: signal that requested the stop
        self.signal: signal.Signals | None = None
        self._previous: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        previous, self._previous = self._previous, {}
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def listen(self) -> None:
        """Install the signal handlers; call again if other code has replaced them (Spark does)."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            self._previous.setdefault(number, signal.signal(number, self._handle_signal))

    def check(self) -> None:
        """Check for a stop request.

        Raises:
            Stopped: a stop was requested.
        """
        if self.signal is not None:
            raise Stopped(self.message)

    @property
    def message(self) -> str:
        """Message about the stop request; "" if there is none."""
        return "" if self.signal is None else f"stopped by {self.signal.name}; the same command resumes from here"

    def _handle_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            # Spark's Java process detects the end of this process by its pipe, however the process ends.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.signal = signal.Signals(number)

    @contextlib.contextmanager
    def cancelling(self, spark: SparkSession) -> Iterator[None]:
        """Cancel Spark's jobs and streams after a stop request, so that the code that waits for them continues.

        A thread does it, because a signal handler that raises would interrupt the communication with Java in the middle
        of a reply.
        """
        done = threading.Event()

        def watch() -> None:
            while not done.wait(CHECK_SECONDS):
                if self():
                    with contextlib.suppress(Exception):  # Spark may be about to end
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
