"""Signals of the operating system, in a form that a main thread can wait for without a lock.

TERM and INT: stop within the grace period; the second one: at once. USR1: stop reserving, finish the held jobs, end.
TTIN: write the stacks of all threads to stderr and the log.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import select
import signal
import sys
import threading
import traceback
from types import FrameType, TracebackType
from typing import Any, Final

logger = logging.getLogger(__name__)

STOP: Final = frozenset({signal.SIGTERM, signal.SIGINT})
DRAIN: Final = signal.SIGUSR1
DUMP: Final = signal.SIGTTIN


class Signals:
    """Self-pipe: signal handlers only write a byte, and :meth:`wait` reads it.

    Main thread only. Restores the previous handlers at its end.

    Args:
        ignore: signals to ignore (a child ignores the terminal's Ctrl-C, because its supervisor stops it).
        also: further signals to receive.
    """

    def __init__(self, *, ignore: frozenset[int] = frozenset(), also: frozenset[int] = frozenset()) -> None:
        self._listen = (STOP | {DRAIN, DUMP} | also) - ignore
        self._ignore = ignore
        self._previous: dict[int, Any] = {}
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._previous_fd = -1

    def __enter__(self) -> Signals:
        self._previous_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self._listen:
            self._previous[number] = signal.signal(number, _noted)
        for number in self._ignore:
            self._previous[number] = signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr may not be a real file
            # makes a crash write the stacks to stderr, and so the SIGABRT that a supervisor sends to a child without
            # signs of life
            faulthandler.enable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._previous_fd)
        ends = self._read, self._write
        self._read = self._write = -1  # a late poke must not write into a file that gets the number next
        for end in ends:
            os.close(end)

    def poke(self) -> None:
        """End a :meth:`wait` from any thread."""
        with contextlib.suppress(OSError):  # full: the waiting thread wakes up anyway
            os.write(self._write, b"\0")

    def wait(self, timeout: float | None) -> list[int]:
        """Return the signals that arrived within ``timeout`` seconds; [] at the timeout or a poke."""
        ready, _, _ = select.select([self._read], [], [], timeout)
        if not ready:
            return []
        with contextlib.suppress(BlockingIOError):
            return [number for number in os.read(self._read, 512) if number]
        return []


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the wake-up descriptor has the signal already."""


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
