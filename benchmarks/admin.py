"""Benchmark of the admin: CPU time of a response of the dashboard, and the lists of failed and buried jobs.

The CPU time hardly depends on other programs. Its ratio to a fixed loop of Python makes machines comparable: where the
loop takes 20 ms, the bar is 15 ms.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.processes import ROOT, environment, program, project_python, run_program
from benchmarks.report import Bar, Report
from benchmarks.server import running_server

ROWS = 100_000
QUEUES = 100
#: CPU time of a response of the dashboard, the snapshot of which is shared, as a part of that of the fixed loop
RESPONSE_BAR = 0.75
#: duration of the slowest list in ms
LIST_BAR = 300.0


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Measure the pages over each database. ``jobs``: rows of each table; ``rounds``: requests of a page;
    ``only``: sqlite, postgres.
    """
    from tests.support.postgres_box import PostgresBox

    rows, requests = jobs or (2_000 if quick else ROWS), rounds or (5 if quick else 30)
    report = Report("admin", "", ("database", "page", "ms", "CPU ms", "CPU of a fixed loop"))
    with tempfile.TemporaryDirectory(prefix="delayq-bench-") as folder, running_server() as server:
        report.title = f"{QUEUES} queues; {rows:,} failed and {rows:,} buried jobs; {server.description()}"
        if not only or "sqlite" in only:
            _measure(report, "sqlite", f"sqlite:{Path(folder) / 'db'}", server.url, rows, requests)
        if not only or "postgres" in only:
            with PostgresBox() as box, box.database() as database:
                _measure(report, "postgres", database.url, server.url, rows, requests)
    return report


def _measure(report: Report, name: str, database: str, redis: str, rows: int, requests: int) -> None:
    env = environment(BENCH_DB=database, BENCH_REDIS=redis, PYTHONPATH=str(ROOT))
    command = [project_python(), program("admin_pages"), str(QUEUES), str(rows), str(requests)]
    told = run_program(command, env, timeout=900)
    for page, (ms, cpu_ms) in told["pages"].items():
        report.rows.append((name, page, ms, cpu_ms, cpu_ms / told["loop_ms"]))
    report.figures[name] = told
    parts = told["pages"]["dashboard, parts of a shared snapshot"][1] / told["loop_ms"]
    report.bars.append(Bar(f"{name}: CPU of a response of the dashboard", parts, RESPONSE_BAR, at_most=True))
    lists = {page: ms for page, (ms, _) in told["pages"].items() if not page.startswith("dashboard")}
    slowest = max(lists, key=lambda page: lists[page])
    report.bars.append(Bar(f"{name}: slowest list in ms ({slowest})", lists[slowest], LIST_BAR, at_most=True))
