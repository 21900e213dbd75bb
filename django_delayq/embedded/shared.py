"""Servers shared within a process, one per folder, released when the process exits."""

from __future__ import annotations

import atexit
import contextlib
import os

from ..core.errors import Misconfigured
from ..core.thread_lock import ThreadLock
from .server import EmbeddedRedis

_shared: dict[tuple[int, str], EmbeddedRedis] = {}
_shared_guard = ThreadLock()


def ensure(directory: str | os.PathLike[str], *, appendfsync: str = "everysec", binary: str | None = None) -> str:
    """Return the URL of the folder's server, started if necessary and ready. Safe from any thread and process.

    The server ends with the last process that called this (at its normal exit). A second call returns at once, or
    starts the server again if it has ended.

    Raises:
        Misconfigured: there is no server program, it cannot be started, or the folder is not safe to use.
    """
    # The pid is part of the key: after a fork the child is a separate user, and its exit must not end our server.
    key = (os.getpid(), os.path.realpath(directory))
    with _shared_guard:
        server = _shared.get(key)
        if server is None:
            server = EmbeddedRedis(directory, appendfsync=appendfsync, binary=binary).start()
            _shared[key] = server
            if len([pid for pid, _ in _shared if pid == key[0]]) == 1:
                atexit.register(_release_all, key[0])
        elif not server.running:
            server.start()
        return server.url


def release_all() -> None:
    """Release every server of :func:`ensure`, for a program that ends without its exit handlers (``os._exit``)."""
    _release_all(os.getpid())


def _release_all(pid: int) -> None:
    if pid != os.getpid():  # an exit handler inherited by fork
        return
    for (owner, path), server in list(_shared.items()):
        if owner == pid:
            with contextlib.suppress(OSError, Misconfigured):
                server.release()
            del _shared[owner, path]
