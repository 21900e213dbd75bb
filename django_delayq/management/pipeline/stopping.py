"""SIGTERM and Ctrl-C: the first asks for an orderly end, the second ends the process at once."""

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
#: seconds between two looks at whether somebody wants an end
LOOK: Final = 0.2


class Stopped(BaseException):
    """Somebody wanted an end before the work was done. No error: nobody who takes care of errors is to catch it."""


class Stopping:
    """Whether somebody wants an end; to be called, as ``stop()`` of a long run, from any thread.

    A context manager: outside of the block signals mean what they meant before. In a thread that is not the main one
    signals cannot be listened to, and nobody is ever asked to stop.
    """

    def __init__(self) -> None:
        #: the signal that asked for it
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
        """Listen to the signals; again, when somebody else has taken them over meanwhile (Spark does so)."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            before = signal.signal(number, self._heard)
            self._before.setdefault(number, before)

    def check(self) -> None:
        """Go on only if nobody wants an end.

        Raises:
            Stopped: somebody does.
        """
        if self.asked is not None:
            raise Stopped(self.sentence)

    @property
    def sentence(self) -> str:
        """Who wants an end, in words."""
        return "" if self.asked is None else f"stopped by {self.asked.name}; the same command goes on from here"

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        if self.asked is not None:
            # Spark's Java hears of our end by the pipe to it, whatever that end is like.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.asked = signal.Signals(number)

    @contextlib.contextmanager
    def cancelling(self, spark: SparkSession) -> Iterator[None]:
        """When an end is wanted, Spark's jobs and streams are cancelled, so that what waits for them goes on.

        By a thread, because a handler that raised would leave the conversation with Java in the middle of an answer.
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
    """Ends the jobs and the streams that run now; whoever waits for them gets an exception or goes on."""
    spark.sparkContext.cancelAllJobs()
    for query in spark.streams.active:
        query.stop()
