"""Child processes of a test run: started and tracked here, and killed at the latest when the run ends.

Every process started through :func:`spawn` carries the run's mark in its environment. A watchdog process holds a pipe
from the test run: when the run ends in whatever way (``kill -9`` included), the pipe closes and the watchdog kills the
remaining processes. :func:`leaked` returns the marked processes that are still alive, for the check at the end of the
session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

MARK = "DELAYQ_TEST_RUN"
_XDIST_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
# A worker of pytest-xdist has a mark of its own, so that each checks only the processes that it started itself.
RUN = os.environ.get(MARK, "")
if not RUN.startswith(f"{_XDIST_WORKER}-"):
    RUN = os.environ[MARK] = f"{_XDIST_WORKER}-{os.getpid()}-{uuid.uuid4().hex[:8]}"

# Without bytecode each process that a test starts compiles the package again, which takes a third of its CPU time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_WATCHDOG = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
alive = set()
for line in sys.stdin:
    sign, pid = line[0], int(line[1:])
    alive.add(pid) if sign == "+" else alive.discard(pid)
for pid in alive:
    for number in (signal.SIGKILL, signal.SIGCONT):
        try:
            os.kill(pid, number)
        except OSError:
            pass
"""
_T = TypeVar("_T")
_watchdog: subprocess.Popen[str] | None = None
_watchdog_guard = threading.Lock()  # several servers may be started at once


def _tell_watchdog(line: str) -> None:
    with _watchdog_guard:
        _write_to_watchdog(line)


def _write_to_watchdog(line: str) -> None:
    global _watchdog
    if _watchdog is None or _watchdog.poll() is not None:
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        _watchdog = subprocess.Popen(
            [sys.executable, "-I", "-c", _WATCHDOG],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
    assert _watchdog.stdin is not None
    _watchdog.stdin.write(line + "\n")
    _watchdog.stdin.flush()


def watch(pid: int) -> None:
    """Have ``pid`` killed if this test run dies without ending it."""
    _tell_watchdog(f"+{pid}")


def unwatch(pid: int) -> None:
    """Stop watching ``pid``, which has ended; its number may be reused."""
    _tell_watchdog(f"-{pid}")


def spawn(
    command: Sequence[str | Path],
    *,
    env: dict[str, str] | None = None,
    cwd: str | Path | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    text: bool = True,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start ``command`` in a session of its own, so that Ctrl-C at the terminal does not reach it, and watch it."""
    process = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, **(env or {}), MARK: RUN},
        cwd=cwd,
        stdin=options.pop("stdin", subprocess.DEVNULL),
        stdout=stdout,
        stderr=stderr,
        text=text,
        start_new_session=True,
        **options,
    )
    watch(process.pid)
    return process


def end(process: subprocess.Popen[Any], *, sig: int = signal.SIGTERM, timeout: float = 10.0) -> int:
    """End a spawned process: send ``sig``, and SIGKILL after ``timeout`` seconds; return its exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)  # a stopped process would never handle the signal
        process.send_signal(sig)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    unwatch(process.pid)
    return int(process.returncode)


def parent(pid: int) -> int | None:
    """Return the parent of a process that runs or sleeps; None if there is no such process."""
    try:
        state, number, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else int(number)


def children(pid: int) -> list[int]:
    """Return the children of a process that run or sleep."""
    return sorted(number for path in Path("/proc").glob("[0-9]*") if parent(number := int(path.name)) == pid)


def alive(pid: int) -> bool:
    """Return True if ``pid`` runs or sleeps (a zombie is dead)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return not Path("/proc/self").exists()
    return stat.rpartition(")")[2].split()[0] != "Z"


def another_run() -> dict[str, str]:
    """Return the environment for another run of tests inside this one, which kills only what it started itself."""
    return {name: value for name, value in os.environ.items() if name not in (MARK, "PYTEST_XDIST_WORKER")}


def leaked() -> dict[int, str]:
    """Return the marked processes that are alive: pid -> command line. Empty where there is no /proc."""
    needle = f"{MARK}={RUN}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid == os.getpid():
            continue
        try:
            if needle in (folder / "environ").read_bytes().split(b"\0") and alive(pid):
                found[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
    return found


def leaked_for_good(seconds: float = 10.0) -> dict[int, str]:
    """Return what is still alive after these seconds: children of a killed program end on their own, once started."""
    deadline = time.monotonic() + seconds
    while (found := leaked()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def close_watchdog() -> None:
    """Close the pipe: the watchdog kills the processes that it still watches, and ends."""
    global _watchdog
    if _watchdog is not None:
        assert _watchdog.stdin is not None
        _watchdog.stdin.close()
        _watchdog.wait(10)
        _watchdog = None


def wait_until(
    condition: Callable[[], _T], timeout: float = 10.0, what: str = "the condition", *, pause: float = 0.005
) -> _T:
    """Poll ``condition`` until it is truthy and return its value; raise AssertionError after ``timeout`` s.

    For conditions outside this process only; inside it, wait on an event.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout:g} s (last value: {value!r})")
        time.sleep(pause)
