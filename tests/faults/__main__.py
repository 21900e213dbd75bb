"""Try the faults: ``python -m tests.faults [--list] [--changed [REV]] [--jobs N] [NAME ...]``.

First the tests that caught the faults before have to pass in an unchanged copy of the project. Then each fault gets a
copy of its own, in which at least one of its tests has to fail. If none does, the other tests that execute its lines
follow, as far as they are recorded (``python -m tests.faults.recording``), and the one that catches it joins the list.
Exit code 1 if a fault survives or its tests take too long, 2 if the list does not fit the project or the tests fail
without a fault.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .catalogue import CATALOGUE, DRAWN, PACKAGE, ROOT, Fault, figures, load, problems, remember
from .copies import FAILED, PASSED, Run, project_copy, run_tests
from .recording import FOLDER, Record

#: time limit of the run without a fault
CLEAN_SECONDS = 1800.0
#: time limit of a search among all recorded tests that execute the lines of a fault, the quickest of each file first
SEARCH_SECONDS = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = _options(arguments)
    entries = [(path, fault) for path in options.catalogue for fault in load(path) if not fault.equivalent]
    changed = None if options.changed is None else _changed_since(options.changed or _start())
    entries = [(path, fault) for path, fault in entries if _is_selected(fault, options.names, changed)]
    if not entries:
        print("No fault is selected: `python -m tests.faults --list` prints all names.", file=sys.stderr)
        return 2
    if options.list:
        for _, fault in entries:
            print(f"{fault.file}: {fault.name}")
        return 0
    obstacles = list(problems([fault for _, fault in entries]))
    if obstacles:
        print(*obstacles, "Correct the lists in tests/faults first.", sep="\n", file=sys.stderr)
        return 2
    if not options.no_clean_run and not _pass_without_fault([fault for _, fault in entries]):
        return 2
    return _try_all(entries, Record.read(options.record), options.jobs, options.seconds)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only faults whose name or file contains this")
    parser.add_argument("--list", action="store_true", help="print the faults without trying them")
    parser.add_argument(
        "--changed",
        nargs="?",
        const="",
        metavar="REV",
        help="only those whose file or tests differ from this commit (default: where the branch left main)",
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of faults tried at the same time (default: 1)")
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit of each fault's tests (default: 120)")
    parser.add_argument("--no-clean-run", action="store_true", help="skip the first run, without a fault")
    parser.add_argument("--record", type=Path, default=FOLDER, help="folder with the record (default: .faults)")
    parser.add_argument(
        "--catalogue",
        type=Path,
        nargs="*",
        default=(CATALOGUE, DRAWN),
        help="files with faults (default: faults.toml and drawn.toml)",
    )
    return parser.parse_args(arguments)


# --- which ones


def _is_selected(fault: Fault, names: Sequence[str], changed: set[str] | None) -> bool:
    named = not names or any(name.lower() in f"{fault.file}: {fault.name}".lower() for name in names)
    files = {f"{PACKAGE}/{fault.file}", *(test.partition("::")[0] for test in fault.tests)}
    return named and (changed is None or bool(files & changed))


def _start() -> str:
    """Return the commit at which this branch left main; on main, the one before the last."""
    start = _git("merge-base", "HEAD", "main").strip()
    return "HEAD~1" if start == _git("rev-parse", "HEAD").strip() else start


def _changed_since(commit: str) -> set[str]:
    """Return the files that differ from a commit, new ones included."""
    found = _git("diff", "--name-only", commit) + _git("ls-files", "--others", "--exclude-standard")
    return set(found.splitlines())


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


# --- the trial


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


def _try_all(entries: Sequence[tuple[Path, Fault]], record: Record | None, jobs: int, seconds: float) -> int:
    with ThreadPoolExecutor(jobs) as pool:
        verdicts = Counter(pool.map(lambda entry: _verdict(entry[0], entry[1], record, seconds), entries))
    print(f"{verdicts['caught']} of {len(entries)} faults caught")
    print(figures(load(DRAWN)))
    return 0 if verdicts["caught"] == len(entries) else 1


def _verdict(path: Path, fault: Fault, record: Record | None, seconds: float) -> str:
    """Try one fault, print the result, and keep in its list which test caught it."""
    start = time.monotonic()
    run = _first_failure(fault, record, seconds)
    caught = run is not None and run.code == FAILED
    verdict = "SURVIVED" if run is None else {FAILED: "caught", None: "TOO LONG"}.get(run.code, f"BROKEN ({run.code})")
    line = f"{verdict:8} {time.monotonic() - start:5.1f} s  {fault.file}: {fault.name}"
    print("\n        by ".join([line, *(run.failed if run and caught else ())]), flush=True)
    if run is None or caught:
        remember(path, fault, run.failed if run else ())
    else:
        print(run.output, file=sys.stderr, flush=True)
    return verdict


def _first_failure(fault: Fault, record: Record | None, seconds: float) -> Run | None:
    """Return the first run of tests that does not pass with this fault, or None."""
    with project_copy() as copy:
        fault.insert(copy)
        run = run_tests(copy, fault.tests, seconds) if fault.tests else None
        if record is not None and (run is None or run.code == PASSED):
            others = record.tests_of(fault.file, fault.lines())
            run = run_tests(copy, others, SEARCH_SECONDS) if others else run
    return None if run is None or run.code == PASSED else run


if __name__ == "__main__":
    sys.exit(main())
