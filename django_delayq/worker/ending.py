"""End of a worker process: its causes, its deadline and its exit code."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .attempt import Attempt
from .child import EXIT_NO_REDIS, EXIT_OK, EXIT_RECYCLE, EXIT_STUCK, ChildSpec, is_orphan
from .process import Process
from .shutdown import DRAIN, DUMP, STOP, Signals, log_stacks
from .timeouts import resident_mib

if TYPE_CHECKING:
    from .consumer import Consumer

logger: Final = logging.getLogger("django_delayq.worker.worker")

#: seconds before the grace period ends at which ``should_stop`` turns true
SHUTDOWN_WARNING_SECONDS: Final = 5.0


class Ending:
    """End of one worker process. Signals, commands, limits and errors begin it here.

    Args:
        stop: ends the worker inside another program, which has no main thread of ours that would.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        process: Process,
        child_spec: ChildSpec | None,
        stop: Callable[[], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        #: set when the worker has nothing more to do, for any reason
        self.done = threading.Event()
        #: end of the grace period (monotonic); None while the process works or drains
        self.stop_by: float | None = None
        self.exit_code = EXIT_OK
        #: signals of the main thread, if the worker is a program
        self.signals: Signals | None = None
        #: the fetch loop, if this process runs jobs
        self.consumer: Consumer | None = None
        self._name = process.name
        self._config = process.config
        self._child_spec = child_spec
        self._board = process.board
        self._log = process.hooks.log
        self._health = process.health
        self._stop = stop
        self._clock = clock
        self._signalled = False
        self._warning: threading.Timer | None = None
        self._deadline_lock = threading.Lock()

    @property
    def seconds_left(self) -> float:
        """Seconds until the end of the grace period."""
        return (self.stop_by or 0.0) - self._clock()

    @property
    def _is_supervised(self) -> bool:
        return self._child_spec is not None and not is_orphan(self._child_spec)

    # --- the main thread

    def wait(self) -> None:
        """Handle signals until the worker is done or its grace period is over."""
        while not self.done.is_set() and (self.stop_by is None or self.seconds_left > 0):
            self.wait_for_stop(None if self.stop_by is None else self.seconds_left)

    def wait_for_stop(self, seconds: float | None) -> bool:
        """Wait this long and handle signals meanwhile. Return True if the worker is done."""
        if self.signals is None:
            return self.done.wait(seconds)
        for number in self.signals.wait(seconds):
            self._handle_signal(number)
        return self.done.is_set()

    def _handle_signal(self, number: int) -> None:
        if number == DUMP:
            log_stacks()
        elif number == DRAIN:
            logger.info("worker %s drains", self._name)
            self.drain()
        elif number in STOP:
            if self._signalled:
                if self._is_supervised:
                    return  # a signal to the whole process group arrives twice; only the supervisor may stop at once
                logger.warning("worker %s stops at once", self._name)
                self.stop_by = 0.0
                return
            self._signalled = True
            self.begin(self._config.grace)
            logger.info("worker %s stops, %.0f s for running jobs", self._name, self.seconds_left)

    # --- any thread

    def drain(self) -> None:
        """Stop reserving, finish the held jobs, then be done."""
        if self.consumer is not None:
            self.consumer.stop(give_back=False)
        else:
            self.finish()

    def begin(self, grace: float) -> None:
        """Stop reserving, give back what has not begun, and give running jobs so many seconds.

        A deadline that was set before remains.
        """
        self._set_deadline(grace)
        if self.consumer is None:
            self.finish()
        else:
            self.consumer.stop()

    def _set_deadline(self, grace: float) -> None:
        """Set the end of the grace period and the warning before it, unless there is one already."""
        with self._deadline_lock:  # signals, commands and the timeout monitor come from different threads
            if self.stop_by is not None:
                return
            self.stop_by = self._clock() + grace
            if self.consumer is None:
                return
            delay = max(0.0, grace - SHUTDOWN_WARNING_SECONDS)
            self._warning = threading.Timer(delay, self._warn_handlers, [self.consumer])
            self._warning.daemon = True
            self._warning.start()

    def _warn_handlers(self, consumer: Consumer) -> None:
        for attempt in list(consumer.held):
            attempt.should_stop = True

    def cancel_warning(self) -> None:
        """Cancel the warning of the handlers."""
        if self._warning is not None:
            self._warning.cancel()

    def finish(self) -> None:
        """Record that the worker has nothing more to do."""
        self.done.set()
        self._poke()

    def fail(self, code: int) -> None:
        """End the process with this code, because one of its own threads died."""
        self.exit_code = code
        self.finish()

    def _poke(self) -> None:
        signals = self.signals  # the main thread takes them away at its end
        if signals is not None:
            signals.poke()

    def end_by_command(self, command: str) -> None:
        """Carry out a "stop" or "drain" command, which is meant for the whole program."""
        if self._board is not None and self._is_supervised:
            setattr(self._board, command, True)  # its supervisor sees it within a second
            return
        if command == "drain":
            self.drain()
        else:
            self.begin(self._config.grace)
        self._end_soon()

    def _end_soon(self) -> None:
        if self.signals is None:
            threading.Thread(target=self._end_alone, name="delayq-end", daemon=True).start()
        else:
            self._poke()  # wait() does the rest

    def _end_alone(self) -> None:
        """End the worker inside another program, which may not wait for ``done``."""
        if self.stop_by is None:
            self.done.wait()
        self._stop()

    # --- the timeout monitor

    def overran(self, attempt: Attempt) -> None:
        """End the process because this attempt cannot be ended."""
        self._log.hangs(attempt, "this process finishes its other jobs and ends")
        self.exit_code = EXIT_STUCK
        if self.consumer is not None:
            self.consumer.overran(attempt)
        self._set_deadline(self._config.grace)
        self._poke()

    def check(self) -> None:
        """Check the memory use, the supervisor and the patience with Redis every second, without network I/O."""
        most, patience = self._config.max_rss, self._config.redis_patience
        if self.stop_by is not None:
            return
        if most is not None and self.exit_code == EXIT_OK and resident_mib() > most:
            logger.info("worker %s uses more than %s MiB and is replaced", self._name, most)
            self.exit_code = EXIT_RECYCLE
            self.drain()
        if self._child_spec is not None and not self._is_supervised:
            logger.warning("worker %s lost its supervisor", self._name)
            self.begin(self._config.grace)
            self._poke()
        part = self.consumer.unreachable_for() if self.consumer is not None else 0.0
        whole = self._health.lasting()
        if patience is not None and (away := max(whole, part)) > patience:
            what = "Redis" if whole >= part else "a part of Redis"
            logger.error("worker %s ends: %s has been away for %.0f s", self._name, what, away)
            self.exit_code = EXIT_NO_REDIS
            self.begin(self._config.grace)
            self._end_soon()
