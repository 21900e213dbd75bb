"""Try the faults: ``python -m tests.faults [--list] [--jobs N] [NAME ...]``.

First the tests have to pass in an unchanged copy of the project; then each fault gets a copy of its own, in which at
least one of its tests has to fail. Exit code 1 if a fault survives or its tests take too long, 2 if the list does not
fit the project or the tests fail without a fault.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .catalogue import CATALOGUE, DRAWN, Fault, load, problems
from .copies import FAILED, PASSED, project_copy, run_tests

#: time limit of the run without a fault
CLEAN_SECONDS = 1800.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = _options(arguments)
    faults = _select([fault for path in options.catalogue for fault in load(path) if fault.tests], options.names)
    if not faults:
        print("No fault has such a name: `python -m tests.faults --list` prints all names.", file=sys.stderr)
        return 2
    if options.list:
        for fault in faults:
            print(f"{fault.file}: {fault.name}")
        return 0
    obstacles = list(problems(faults))
    if obstacles:
        print(*obstacles, "Correct tests/faults/faults.toml first.", sep="\n", file=sys.stderr)
        return 2
    if not options.no_clean_run and not _pass_without_fault(faults):
        return 2
    return _try_all(faults, options.jobs, options.seconds)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only faults whose name or file contains this")
    parser.add_argument("--list", action="store_true", help="print the faults without trying them")
    parser.add_argument("--jobs", type=int, default=1, help="number of faults tried at the same time (default: 1)")
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit of each fault's tests (default: 120)")
    parser.add_argument("--no-clean-run", action="store_true", help="skip the first run, without a fault")
    parser.add_argument(
        "--catalogue",
        type=Path,
        nargs="*",
        default=(CATALOGUE, DRAWN),
        help="files with faults (default: faults.toml and drawn.toml); those that name no test are left out",
    )
    return parser.parse_args(arguments)


def _select(faults: list[Fault], names: Sequence[str]) -> list[Fault]:
    def is_selected(fault: Fault) -> bool:
        return any(name.lower() in f"{fault.file}: {fault.name}".lower() for name in names)

    return [fault for fault in faults if is_selected(fault)] if names else faults


def _pass_without_fault(faults: Sequence[Fault]) -> bool:
    """Return True if the tests pass on an unchanged copy: only then does a failure mean that a fault is caught."""
    tests = sorted({test for fault in faults for test in fault.tests})
    print(f"{len(tests)} tests without a fault ...", flush=True)
    with project_copy() as copy:
        run = run_tests(copy, tests, CLEAN_SECONDS, stop_at_first=False)
    if run.code != PASSED:
        print(
            run.output,
            "These tests must pass before faults can be tried: correct them first.",
            sep="\n",
            file=sys.stderr,
        )
    return run.code == PASSED


def _try_all(faults: Sequence[Fault], jobs: int, seconds: float) -> int:
    with ThreadPoolExecutor(jobs) as pool:
        caught = sum(pool.map(lambda fault: _is_caught(fault, seconds), faults))
    print(f"{caught} of {len(faults)} faults caught")
    return 0 if caught == len(faults) else 1


def _is_caught(fault: Fault, seconds: float) -> bool:
    """Try one fault and print the result. A run that exceeds its time limit does not count as caught."""
    start = time.monotonic()
    with project_copy() as copy:
        fault.insert(copy)
        run = run_tests(copy, fault.tests, seconds)
    result = {PASSED: "SURVIVED", FAILED: "caught", None: "TOO LONG"}.get(run.code, f"BROKEN ({run.code})")
    line = f"{result:8} {time.monotonic() - start:5.1f} s  {fault.file}: {fault.name}"
    print("\n        by ".join([line, *run.failed]), flush=True)
    if run.code not in (PASSED, FAILED):
        print(run.output, file=sys.stderr, flush=True)
    return run.code == FAILED


if __name__ == "__main__":
    sys.exit(main())
