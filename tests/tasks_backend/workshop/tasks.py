"""Tasks for worker processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.tasks_backend.stage import task


@task
def add(a: int, b: int) -> int:
    return a + b


@task
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@task
def dream(began: str) -> str:
    """Says who it is, and goes on for ever."""
    Path(began).write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)


@task(backend="immediate")
def elsewhere(word: str) -> str:
    """Decorated for another backend."""
    return word.upper()
