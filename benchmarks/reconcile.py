"""Benchmark of comparing a table with a queue that lacks some jobs, against the two reads alone; checks exactness."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks.processes import ROOT, environment, program, project_python, run_program
from benchmarks.report import Bar, Report, median
from benchmarks.server import running_server

BAR = 2.5


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Alternate both in one process of the example shop on SQLite, after one warm-up round. ``only`` is not used."""
    rows = jobs or (200_000 if quick else 1_000_000)
    missing = min(1000, rows // 10)
    rounds = rounds or (2 if quick else 4)
    with running_server() as server, tempfile.TemporaryDirectory(prefix="delayq-bench-") as folder:
        env = environment(
            DJANGO_SETTINGS_MODULE="shop_site.settings",
            PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "example_project")]),
            SHOP_DB=str(Path(folder) / "shop.sqlite3"),
            SHOP_REDIS_URL=server.url,
        )
        command = [project_python(), program("reconcile_shop"), str(rows), str(missing), str(rounds)]
        told = run_program(command, env, timeout=1800)
        title = f"{rows:,} rows against as many jobs, {missing:,} missing, {server.description()}, SQLite, local[2]"
    if not told["exact"]:
        raise RuntimeError("what was found missing is not what is missing")
    ratios = [compared / sum(reads) for compared, reads in zip(told["compared"], told["reads"], strict=True)]
    queue, table = (median(reads[place] for reads in told["reads"]) for place in (0, 1))
    report = Report("reconcile", f"{title}, medians of {rounds}", ("what", "s", "rows/s"))
    report.rows = [
        ("read the queue", queue, rows / queue),
        ("read the table", table, rows / table),
        ("compare", median(told["compared"]), rows / median(told["compared"])),
    ]
    report.notes.append(f"exact; missing jobs restored and compared again in {told['put_back']:.1f} s")
    report.figures = {"ratio": median(ratios), "rounds": told}
    report.bars = [Bar("× the two reads alone", median(ratios), BAR, at_most=True)]
    return report
