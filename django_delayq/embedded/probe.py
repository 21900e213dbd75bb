"""Questions to a server that may not be there, and waiting for another process."""

from __future__ import annotations

import fcntl
import socket
import time
from collections.abc import Callable
from pathlib import Path


def ask(path: Path, request: bytes, password: str = "") -> bytes:
    """Return the reply to one inline command over a fresh connection; b"" if there is none within a second."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            if password:
                connection.sendall(f"AUTH {password}\r\n".encode())
                connection.recv(1024)
            connection.sendall(request)
            return connection.recv(16384)
        except OSError:
            return b""


def listens(path: Path) -> bool:
    """Return True if there is a server at the socket, also one that is too busy to answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # full backlog or a stopped process: there is one
        return True


def try_lock(descriptor: int) -> bool:
    """Return True if the exclusive lock on the file is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Return True once the condition holds; it is tried every 10 ms, since another process cannot signal us."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
