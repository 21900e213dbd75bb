"""Record of which tests execute which lines and which scripts, made by one run of the tests.

``python -m tests.faults.recording [--append] [ARGUMENT ...]`` runs pytest under coverage, with the test as the context
of every line; child processes inherit the name of the test by pytest's own environment variable. With ``--append`` the
record keeps what it has of other tests. This module is also the plugin of that run: it switches the contexts and writes
each test's duration and scripts to a file.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest
from coverage import Coverage, CoverageData

from tests.support.processes import another_run

from .catalogue import PACKAGE, ROOT

FOLDER: Final = ROOT / ".faults"
_DATA: Final = "coverage"
_TESTS: Final = "tests.jsonl"
_CONFIG: Final = """
[run]
source = {package}
relative_files = true
data_file = {data}
parallel = true
context = ${{PYTEST_CURRENT_TEST-}}
sigterm = true
"""
_FILE_VARIABLE: Final = "DELAYQ_FAULTS_RECORD"


# --- the run


def record(arguments: Sequence[str], folder: Path = FOLDER) -> int:
    """Run the tests that pytest's arguments name, and keep what they execute; return pytest's exit code."""
    folder.mkdir(exist_ok=True)
    appended = ["--append"] if "--append" in arguments else []
    arguments = [argument for argument in arguments if argument not in appended]
    if not appended:
        for old in folder.glob("coverage*"):
            old.unlink()
        (folder / _TESTS).unlink(missing_ok=True)
    config = folder / "coveragerc"
    config.write_text(_CONFIG.format(package=PACKAGE, data=folder / _DATA), encoding="utf-8")
    environment = {**another_run(), "COVERAGE_PROCESS_START": str(config), _FILE_VARIABLE: str(folder / _TESTS)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", f"{__package__}.recording", *arguments]
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    combine = [sys.executable, "-m", "coverage", "combine", "-q", *appended, f"--rcfile={config}"]
    subprocess.run(combine, cwd=ROOT, check=True)
    return code


class _Recorder:
    """Plugin that names the running test to coverage, and writes what became of it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._scripts: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        current = Coverage.current()
        self._scripts.clear()
        if current is not None:
            current.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            if current is not None:
                current.switch_context("")

    def pytest_configure(self) -> None:
        from django_delayq.core.redis.scripts import Scripts

        original = Scripts.loaded

        def loaded(scripts: Scripts, name: str) -> Any:
            self._scripts.add(name)
            return original(scripts, name)

        Scripts.loaded = loaded  # type: ignore[method-assign]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" or hasattr(report, "node"):  # the controller of xdist repeats its workers' reports
            return
        entry = {"test": report.nodeid, "seconds": round(report.duration, 3), "scripts": sorted(self._scripts)}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder where a recorded run asks for it."""
    if file := os.environ.get(_FILE_VARIABLE):
        recorder = _Recorder(Path(file))
        recorder.pytest_configure()
        config.pluginmanager.register(recorder, "delayq-fault-recorder")


# --- what was recorded


class Record:
    """Which tests execute a line of the package. Lua is recorded by script, since servers do not count its lines."""

    @classmethod
    def read(cls, folder: Path = FOLDER) -> Record | None:
        """Return the record of a folder; None = there is none."""
        return cls(folder) if (folder / _DATA).exists() and (folder / _TESTS).exists() else None

    def __init__(self, folder: Path) -> None:
        self._data = CoverageData(str(folder / _DATA))
        self._data.read()
        self._made_at = (folder / _TESTS).stat().st_mtime
        self._seconds: dict[str, float] = {}
        self._by_script: dict[str, set[str]] = defaultdict(set)
        for line in (folder / _TESTS).read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            self._seconds[entry["test"]] = entry["seconds"]
            for script in entry["scripts"]:
                self._by_script[script].add(entry["test"])

    def tests_of(self, file: str, lines: Iterable[int]) -> list[str]:
        """Return the tests to try on a fault in these lines, in an order that is likely to end soon.

        Tests of different files take turns, the quickest of each first. A line that runs at import belongs to no test:
        those of the whole file are returned then.
        """
        if file.endswith(".lua"):
            found = self._tests_of_script(Path(file))
        else:
            # The lines of a file that has changed since are others now, and one that runs at import is executed by
            # whichever test came first.
            path = ROOT / PACKAGE / file
            runs_later = path.stat().st_mtime < self._made_at and set(lines) <= _lines_of_functions(path)
            found = (runs_later and self._executed(file, set(lines))) or self._executed(file, None)
        return self._in_turns(found)

    def _tests_of_script(self, file: Path) -> set[str]:
        scripts = {file.stem} if file.parent.name != "lib" else self._including(file.stem)
        return set().union(*(self._by_script[script] for script in scripts))

    @staticmethod
    def _including(piece: str) -> set[str]:
        from django_delayq.core.redis.scripts import script_names

        folder = ROOT / PACKAGE / "core" / "lua"
        return {
            name
            for name in script_names()
            if any(
                line.strip().startswith("-- include ") and piece in line.split()
                for line in (folder / f"{name}.lua").read_text(encoding="utf-8").splitlines()
            )
        }

    def _executed(self, file: str, lines: set[int] | None) -> set[str]:
        by_line = self._data.contexts_by_lineno(f"{PACKAGE}/{file}")
        contexts = {one for line, found in by_line.items() if lines is None or line in lines for one in found}
        return {test for context in contexts if (test := self._test_of(context))}

    def _test_of(self, context: str) -> str | None:
        """Return the test that a context names: of the test's own process, or of a child (``static (phase)``)."""
        name = context.rpartition("|")[2] or context
        return name if name in self._seconds else self._by_phase.get(name)

    @cached_property
    def _by_phase(self) -> dict[str, str]:
        return {f"{test} ({phase})": test for test in self._seconds for phase in ("setup", "call", "teardown")}

    def _in_turns(self, tests: set[str]) -> list[str]:
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=lambda test: (self._seconds[test], test)):
            by_file[test.split("::")[0]].append(test)
        turns = [(turn, self._seconds[test], test) for own in by_file.values() for turn, test in enumerate(own)]
        return [test for _, _, test in sorted(turns)]


def _lines_of_functions(path: Path) -> set[int]:
    """Return the lines inside the bodies of functions."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    found: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, functions):
            body = node.body if isinstance(node.body, list) else [node.body]
            found.update(range(body[0].lineno, (node.end_lineno or 0) + 1))
    return found


if __name__ == "__main__":
    sys.exit(record(sys.argv[1:]))
