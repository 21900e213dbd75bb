#!/usr/bin/env python
"""Demo of the data pipeline on this machine, from end to end: a campaign for a million customers and its history.

    make demo-pipeline                        (or: python example_project/pipeline.py)
    make demo-pipeline CUSTOMERS=20000        with fewer customers
    make demo-pipeline ARGS=--look            afterwards: the admin, with the history of the last run

The demo writes a file of customers; Spark schedules a job for each; two worker processes run them; Spark computes the
history, which is compared with all other counters and drawn. Then two failures are caused and repaired. Each step
prints its command and its duration. All files are in ``.demo-pipeline/``; Ctrl-C ends everything.

Only the standard library is imported until the required packages have been checked, so that missing ones are reported.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from demo_parts import ROOT, CannotStart, Terminal, check_packages, check_python

NEEDED = ("django", "redis", "rest_framework", "drf_spectacular", "django_delayq", "pyspark", "pyarrow", "pandas")
HOW = "`make demo-pipeline` makes an environment with everything in it; by hand: pip install '.[demo,spark-java]'"


def check_java() -> None:
    """Raise CannotStart if Spark would not find a Java."""
    from django_delayq.pipeline import java
    from django_delayq.pipeline.errors import SparkMissing
    from django_delayq.pipeline.session import check

    try:
        check()
        java.find()
    except SparkMissing as error:
        raise CannotStart(f"{error}\n{HOW}") from error


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The data pipeline on Spark, from end to end.")
    parser.add_argument("--customers", type=_customers, default=1_000_000, help="how many (default 1,000,000)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".demo-pipeline", help="for all data (.demo-pipeline)")
    parser.add_argument("--look", action="store_true", help="show the last story's history in the admin")
    parser.add_argument("--port", type=int, default=8000, help="of the admin (default 8000)")
    parser.add_argument("--no-colour", action="store_true", help="plain text (also: NO_COLOR=1, or no terminal)")
    return parser.parse_args(arguments)


def _customers(text: str) -> int:
    digits = text.replace(",", "").replace("_", "")
    if not digits.isdigit() or not 100 <= int(digits) <= 100_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of customers from 100 to 100,000,000")
    return int(digits)


def _end(*_: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    out = Terminal(sys.stdout.isatty() and not options.no_colour and not os.environ.get("NO_COLOR"))
    try:
        check_python()
        check_packages(NEEDED, HOW)
        check_java()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _end)
        from pipeline_stage import Failed, Stage
        from pipeline_story import look, story

        with Stage(options, out) as stage:
            try:
                (look if options.look else story)(stage)
            except Failed as error:
                out.plain(f"\n{error}\n")
                return 1
    except CannotStart as error:
        print(f"\n{error}\n", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        out.plain("\nended by Ctrl-C; everything that was started is stopped")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
