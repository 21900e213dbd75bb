"""Forked children of a process with threads."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager


def holds_in_a_child(lock: AbstractContextManager[object], check: Callable[[], bool]) -> bool:
    """Return the result of a check in a forked child; another thread of the parent holds the lock at the fork."""
    forked, inside = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            inside.set()
            forked.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that waits for the thread, which it does not have
        code = 1
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    forked.set()
    holder.join(30)
    return status == 0
