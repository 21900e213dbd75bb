"""Resource usage of processes: CPU seconds and peak memory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY_SECONDS = 1.0


def descendants(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int(_stat(int(entry.name))[1][1])
                children.setdefault(parent, []).append(int(entry.name))
    pids = [pid]
    for parent in pids:
        pids += children.get(parent, [])
    return pids


def cpu_seconds(pid: int) -> Counter[str]:
    """Return CPU seconds by program name, of a process and its descendants; ended ones count with their parents."""
    used: Counter[str] = Counter()
    for one in descendants(pid):
        with contextlib.suppress(OSError):
            name, values = _stat(one)
            used[name] += sum(map(int, values[11:15])) / _TICKS  # type: ignore[assignment]
    return used


class MemoryWatch:
    """``with MemoryWatch(pid) as watch``: the peak memory, with shared pages counted once."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        #: bytes by program name, at the moment of the highest sum
        self.peak: Counter[str] = Counter()

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(_EVERY_SECONDS):
            now: Counter[str] = Counter()
            for one in descendants(self._pid):
                with contextlib.suppress(OSError, ValueError):
                    rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
                    pss = next(line for line in rollup.splitlines() if line.startswith("Pss:"))
                    now[_stat(one)[0]] += int(pss.split()[1]) * 1024
            if now.total() > self.peak.total():
                self.peak = now


def _stat(pid: int) -> tuple[str, list[str]]:
    """Return a program's name and the fields after it in ``/proc/PID/stat``: state, parent, …"""
    text = Path(f"/proc/{pid}/stat").read_text()
    name, _, rest = text[text.index("(") + 1 :].rpartition(")")
    return name, rest.split()
