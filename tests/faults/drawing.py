"""Draw faults by a mutator, and find the tests that catch them: ``python -m tests.faults.drawing COMMAND``.

    record [ARGUMENT ...]   run the tests (pytest's arguments choose them) and keep which of them execute what
    draw --number N         put N new faults into the list ``drawn.toml``, in proportion to the code of each package
    search [NAME ...]       try each fault that names no test against the tests that execute its lines

A fault that no test catches stays in the list without tests, until somebody writes the missing test and names it, or
writes next to it why the change makes no difference (``equivalent``). One with which the package cannot be imported
shows nothing about the tests, and leaves the list.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from .catalogue import DRAWN, PACKAGE, ROOT, Fault, load
from .copies import FAILED, PASSED, Run, project_copy, run_tests
from .mutations import Mutation, draw
from .recording import Record, record

_HEADER: Final = """\
# Faults drawn by `python -m tests.faults.drawing draw`, in proportion to the code of each package, and the tests that
# caught them. Keys as in faults.toml; also:
#   at_first     false: no test caught it when it was drawn
#   equivalent   why no test can catch it
"""
#: seconds that the tests of a fault take together, in each of its goes
_GOES: Final = (20.0, 60.0, 200.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.drawing", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record", prefix_chars=" ").add_argument("arguments", nargs="*")
    drawing = commands.add_parser("draw")
    drawing.add_argument("--number", type=int, default=160)
    drawing.add_argument("--seed", type=int, default=1)
    searching = commands.add_parser("search")
    searching.add_argument("names", nargs="*")
    searching.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.command == "record":
        return record(options.arguments)
    if options.command == "draw":
        return _draw(options.number, options.seed)
    return _search(options.names, options.jobs)


def _draw(number: int, seed: int) -> int:
    faults = load(DRAWN) if DRAWN.exists() else []
    known = {(fault.file, fault.old) for fault in faults}
    new = [_fault(one) for one in draw(number, seed) if (one.file, one.old) not in known]
    save([*faults, *new])
    print(f"{len(new)} faults drawn")
    return 0


def _fault(mutation: Mutation) -> Fault:
    before, after = (" ".join(text.split()) for text in (mutation.old, mutation.new))
    name = f"{mutation.where or Path(mutation.file).stem}: `{before}` becomes `{after}`"
    return Fault(name, mutation.file, mutation.old, mutation.new, ())


def save(faults: Iterable[Fault], path: Path = DRAWN) -> None:
    """Write the list of drawn faults."""
    path.write_text(_HEADER + "".join(map(_entry, faults)), encoding="utf-8")


def _entry(fault: Fault) -> str:
    lines = ["", "[[fault]]"]
    lines += [
        f"{key} = {json.dumps(getattr(fault, key), ensure_ascii=False)}" for key in ("name", "file", "old", "new")
    ]
    lines += (
        ["tests = [", *(f"    {json.dumps(test)}," for test in fault.tests), "]"] if fault.tests else ["tests = []"]
    )
    if not fault.at_first:
        lines.append("at_first = false")
    if fault.equivalent:
        lines.append(f"equivalent = {json.dumps(fault.equivalent, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _search(names: Sequence[str], jobs: int) -> int:
    record, faults, lock = Record(), load(DRAWN), threading.Lock()
    open_ones = [place for place, fault in enumerate(faults) if not fault.tests and not fault.equivalent]
    if names:
        open_ones = [
            place for place in open_ones if any(n in f"{faults[place].file}: {faults[place].name}" for n in names)
        ]

    dropped: set[int] = set()

    def search(place: int) -> bool:
        fault, start = faults[place], time.monotonic()
        run = _first_failure(fault, record)
        caught = run.failed if run is not None and run.code == FAILED else []
        verdict = (
            "dropped " if run is not None and run.code not in (FAILED, PASSED) else "caught  " if caught else "SURVIVED"
        )
        line = f"{verdict} {time.monotonic() - start:5.1f} s  {fault.file}: {fault.name}"
        with lock:
            print("\n        by ".join([line, *caught]), flush=True)
            faults[place] = replace(fault, tests=tuple(caught), at_first=fault.at_first and bool(caught))
            dropped.update([place] if verdict == "dropped " else [])
            save(fault for number, fault in enumerate(faults) if number not in dropped)
        return bool(caught)

    with ThreadPoolExecutor(jobs) as pool:
        caught = sum(pool.map(search, open_ones))
    print(f"{caught} of {len(open_ones) - len(dropped)} faults caught")
    return 0


def _first_failure(fault: Fault, record: Record) -> Run | None:
    """Return the first run of tests that does not pass with this fault; None = all pass, or none executes it."""
    text = (ROOT / PACKAGE / fault.file).read_text(encoding="utf-8")
    match = fault.pattern().search(text)
    if match is None:
        raise LookupError(f"{fault.file} has changed since the fault was drawn; draw again: {fault.name}")
    first = text.count("\n", 0, match.start()) + 1
    tests = record.tests_of(fault.file, range(first, first + match[0].count("\n") + 1))
    with project_copy() as copy:
        fault.insert(copy)
        for seconds in _GOES:
            now = record.within(tests, seconds)
            tests = tests[len(now) :]
            if not now:
                break
            run = run_tests(copy, now, 60.0 + 4 * seconds)
            if run.code not in (PASSED, None):  # None: too long on a busy machine shows nothing
                return run
    return None


if __name__ == "__main__":
    sys.exit(main())
