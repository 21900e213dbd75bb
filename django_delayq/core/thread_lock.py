"""Lock between the threads of a process, which a forked child gets free.

A child has only the thread that forked. A lock that another thread held at that moment would be held there for ever.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakSet


class ThreadLock:
    """Lock for a ``with`` block, in which the process must not fork."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


_locks: WeakSet[ThreadLock] = WeakSet()


def _free() -> None:
    for lock in list(_locks):
        lock._lock = threading.Lock()


os.register_at_fork(after_in_child=_free)
