"""Supervisors and workers in processes of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import redis

from .support import eventually

ROOT = Path(__file__).resolve().parent.parent.parent


class Program:
    """A supervisor (or a single worker) in a process of its own, and what its jobs told."""

    def __init__(self, process: subprocess.Popen[Any], client: redis.Redis) -> None:
        self.process = process
        self.client = client

    def trace(self) -> list[tuple[str, str, int, int]]:
        """(word, job id, attempt, pid) in the order told."""
        lines = [entry.decode().split(":") for entry in self.client.lrange("trace", 0, -1)]
        return [(word, ident, int(attempt), int(pid)) for word, ident, attempt, pid in lines]

    def ends(self) -> list[str]:
        """Arguments that the listeners to ends were called with, in order."""
        return [line.decode() for line in self.client.lrange("ends", 0, -1)]

    def await_words(self, word: str, count: int = 1) -> list[tuple[str, str, int, int]]:
        """The first ``count`` entries that say ``word``."""
        return eventually(lambda: len(found := [e for e in self.trace() if e[0] == word]) >= count and found, word)  # type: ignore[no-any-return]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 20) -> int:
        return int(self.process.wait(timeout))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
