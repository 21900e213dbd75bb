"""Probes of a server that may not exist, and waiting for another process."""

from __future__ import annotations

import fcntl
import socket
import time
from collections.abc import Callable
from pathlib import Path


def send_command(path: Path, command: bytes, password: str = "") -> bytes:
    """Return the reply to one inline command over a fresh connection; b"" if there is none within a second."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            if password:
                connection.sendall(f"AUTH {password}\r\n".encode())
                connection.recv(1024)
            connection.sendall(command)
            return connection.recv(16384)
        except OSError:
            return b""


def listens(path: Path) -> bool:
    """Return True if a server listens on the socket, even one that is too busy to reply."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # full backlog or a stopped process: a server exists
        return True


def try_lock(descriptor: int) -> bool:
    """Return True if this process now holds the exclusive lock on the file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Return True once the condition holds, False after ``timeout`` seconds.

    Polls every 10 ms, since another process cannot signal this one.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
