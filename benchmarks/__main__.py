"""Command line of the benchmarks: ``python -m benchmarks drain --quick``."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

NAMES = (
    "drain",
    "merged",
    "failures",
    "enqueue",
    "coroutines",
    "bulk",
    "runs",
    "lateness",
    "limits",
    "idle",
    "crash",
    "memory",
    "scripts",
    "http",
    "events",
    "snapshot",
    "spark_bulk",
    "reconcile",
    "mirror",
    "confirm",
    "admin",
)


def main(arguments: list[str] | None = None) -> int:
    """Run the requested benchmarks; return 1 if one failed, or if a bar was missed under ``--strict``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="+", choices=(*NAMES, "all"), metavar=f"{{{','.join((*NAMES, 'all'))}}}")
    parser.add_argument("--quick", action="store_true", help="small run that only tests that the benchmark works")
    parser.add_argument("--rounds", type=int, help="number of rounds; the result is their median")
    parser.add_argument("--jobs", type=int, help="number of jobs (default: that of the published figures)")
    parser.add_argument("--only", default="", help="only these contenders of drain and enqueue, e.g. ours,dramatiq")
    parser.add_argument("--output", type=Path, help="also append the JSON lines to this file")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a bar is missed")
    options = parser.parse_args(arguments)
    names = NAMES if "all" in options.names else tuple(dict.fromkeys(options.names))
    failed = False
    for name in names:
        failed |= not _run(name, options)
    return 1 if failed and (options.strict or len(names) == 1) else 0


def _run(name: str, options: argparse.Namespace) -> bool:
    only = tuple(part for part in options.only.split(",") if part)
    bench = importlib.import_module(f"benchmarks.{name}")
    try:
        report = bench.run(quick=options.quick, rounds=options.rounds, jobs=options.jobs, only=only)
    except Exception as error:
        if options.strict:
            raise
        print(f"== {name}: failed: {type(error).__name__}: {error}", file=sys.stderr)
        print(json.dumps({"bench": name, "error": f"{type(error).__name__}: {error}"}), flush=True)
        return False
    line = report.line({"quick": options.quick})
    print(report.text(), line, sep="\n", flush=True)
    if options.output:
        with options.output.open("a") as file:
            file.write(line + "\n")
    return all(bar.met for bar in report.bars) or not options.strict


if __name__ == "__main__":
    sys.exit(main())
