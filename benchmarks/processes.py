"""Child processes of a benchmark: a program that prints one JSON line, or a worker that runs until it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "benchmarks" / "programs"
STOP_SECONDS = 40.0


def environment(**extra: str) -> dict[str, str]:
    """The environment of a child: ours, the project importable, no stray settings."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "DELAYQ_", "CELERY"))}
    return {**clean, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", **extra}


def run_program(command: Sequence[str], env: Mapping[str, str], *, timeout: float = 900) -> dict[str, Any]:
    """Run a program to its end and return the JSON object of its last output line.

    Raises:
        RuntimeError: it failed; the text ends with what it said.
    """
    done = subprocess.run(
        command, env=dict(env), cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} failed with {done.returncode}:\n{(done.stderr or done.stdout)[-3000:]}"
        )
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


class Worker:
    """A worker command under way, with its output kept for the error report."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def output(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-4000:]

    def require_alive(self) -> None:
        """Raise with its output when it has ended by itself."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the worker ended by itself ({self._process.returncode}):\n{self.output()}")


@contextlib.contextmanager
def running_worker(command: Sequence[str], env: Mapping[str, str]) -> Iterator[Worker]:
    """Start a worker in a process group of its own; SIGTERM it in the end, SIGKILL what is left of the group."""
    handle, name = tempfile.mkstemp(prefix="delayq-bench-", suffix=".log")
    log = Path(name)
    with os.fdopen(handle, "wb") as output:
        process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield Worker(process, log)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            log.unlink(missing_ok=True)


def project_python() -> str:
    """The interpreter of the project's own environment: the one that runs the benchmarks."""
    return sys.executable


def program(name: str) -> str:
    """The path of a contender's program."""
    return str(PROGRAMS / f"{name}.py")
