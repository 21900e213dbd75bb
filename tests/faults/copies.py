"""Copies of the project, and test runs inside them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.processes import another_run

from .catalogue import ROOT

#: everything that the tests read; the virtual environment is not copied
PARTS: Final = (
    "django_delayq",
    "tests",
    "example_project",
    "benchmarks",
    "docs",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
)
#: files made by running the project; compiled modules of the original must not replace a changed source
_GENERATED: Final = shutil.ignore_patterns("__pycache__", "*.pyc", "*.sqlite3*", ".delayq", "results")
_NOT_PASSED: Final = re.compile(r"^(FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
#: exit codes of pytest
PASSED, FAILED = 0, 1


@dataclass(frozen=True)
class Run:
    """Result of a test run."""

    code: int | None  #: pytest's exit code; None if the time limit was exceeded
    output: str

    @property
    def failed(self) -> list[str]:
        """Names of the tests that did not pass."""
        return [match[2] for match in _NOT_PASSED.finditer(self.output)]


@contextlib.contextmanager
def project_copy(root: Path = ROOT) -> Iterator[Path]:
    """Yield a copy of the project, which is deleted at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="dq-fault-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder).resolve()
        for part in PARTS:
            source = root / part
            if source.is_dir():
                shutil.copytree(source, copy / part, ignore=_GENERATED)
            else:
                shutil.copy2(source, copy / part)
        yield copy


def environment(copy: Path) -> dict[str, str]:
    """Return the environment in which a process and its children import the package from the copy.

    ``PYTHONPATH`` comes before the installed (editable) package, also in processes that start in another folder.
    """
    return {**another_run(), "PYTHONPATH": str(copy)}


def run_tests(copy: Path, tests: Sequence[str], seconds: float, *, stop_at_first: bool = True) -> Run:
    """Run these tests in the copy, on the package of the copy."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *tests]
    if stop_at_first:
        command.append("-x")
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment(copy),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return Run(process.returncode, output)
    except subprocess.TimeoutExpired:
        return Run(None, _kill(process))
    except BaseException:
        _kill(process)
        raise


def _kill(process: subprocess.Popen[str]) -> str:
    """Kill the run and return its output. The watchdog of its tests kills the servers and workers they started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]
