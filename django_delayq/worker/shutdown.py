"""Signals of the operating system, in a form that a main thread can wait for.

TERM and INT: stop within the grace period; the second one: at once. USR1: stop reserving, finish the held jobs, end.
USR2, from a child to its supervisor: an operator has told it to stop the program; others may follow. TTIN: write the
stacks of all threads to stderr and the log.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Final

logger = logging.getLogger(__name__)

STOP: Final = frozenset({signal.SIGTERM, signal.SIGINT})
DRAIN: Final = signal.SIGUSR1
STOP_REQUEST: Final = signal.SIGUSR2
DUMP: Final = signal.SIGTTIN
_LOOK_SECONDS: Final = 1.0


class Signals:
    """Signals that arrive while the block of this context manager runs; :meth:`wait` calls their handlers.

    Main thread only. Restores the previous handlers at its end. Until then a signal is only put into a queue, whose
    ``put`` may interrupt itself.

    Args:
        handlers: what :meth:`wait` calls, by signal.
        ignore: signals to ignore (a child ignores the terminal's Ctrl-C, because its supervisor stops it).
    """

    def __init__(self, handlers: Mapping[int, Callable[[], object]], *, ignore: frozenset[int] = frozenset()) -> None:
        self._handlers = handlers
        self._ignore = ignore
        self._previous: dict[int, Any] = {}
        self._arrived: SimpleQueue[int] = SimpleQueue()

    def __enter__(self) -> Signals:
        for number in {*self._handlers, *self._ignore}:
            self._previous[number] = signal.signal(number, signal.SIG_IGN if number in self._ignore else self._note)
        with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr may not be a real file
            # makes a crash write the stacks to stderr, and so the SIGABRT that a supervisor sends to a child without
            # signs of life
            faulthandler.enable()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._arrived.put(number)

    def poke(self) -> None:
        """End a :meth:`wait` from any thread, or the next one."""
        self._arrived.put(0)

    def wait(self, timeout: float | None) -> None:
        """Wait up to ``timeout`` seconds for signals, and call their handlers. A poke ends it, too."""
        numbers: list[int] = []
        until = time.monotonic() + (math.inf if timeout is None else timeout)
        left = math.inf
        while not numbers and left > 0.0:
            left = max(0.0, until - time.monotonic())
            with contextlib.suppress(Empty):
                # Where the system lets another thread take a signal, its handler runs only when this wait ends.
                numbers.append(self._arrived.get(timeout=min(left, _LOOK_SECONDS)))
                while True:
                    numbers.append(self._arrived.get_nowait())
        for number in filter(None, numbers):
            self._handlers[number]()


def log_stacks() -> str:
    """Write the stacks of all threads of this process to stderr and the log. Return the text of the log entry.

    Written from Python code, with the interpreter lock held: a dump from inside the signal handler reads frames that
    other threads are changing, and may crash the process.
    """
    with contextlib.suppress(AttributeError, OSError, ValueError):
        faulthandler.dump_traceback(all_threads=True)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}")
    text = "\n".join(parts)
    logger.warning("stacks of process %d\n%s", os.getpid(), text)
    return text
