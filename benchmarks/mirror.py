"""Benchmark of the tables of failed jobs on PostgreSQL: what 10,000 failures a minute cost, by length of traceback."""

from __future__ import annotations

from benchmarks.processes import ROOT, environment, program, project_python, run_program
from benchmarks.report import Bar, Report
from benchmarks.server import running_server

RATE = 10_000
TRACEBACKS = (2_000, 30_000)
#: share of one core that the copying of a minute may take
BAR = 0.5


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Let jobs fail for a minute, for each length of traceback. ``rounds`` and ``only`` are not used."""
    from tests.support.postgres_box import PostgresBox

    rate, seconds = jobs or RATE, 6 if quick else 60
    columns = ("traceback", "rows", "statements", "mirror CPU s", "PostgreSQL CPU s", "WAL MB", "table MB", "lag s")
    report = Report("mirror", "", columns)
    worst = 0.0
    with PostgresBox() as box:
        for size in TRACEBACKS:
            with running_server() as server, box.database() as database:
                env = environment(BENCH_DB=database.url, BENCH_REDIS=server.url, PYTHONPATH=str(ROOT))
                command = [project_python(), program("mirror_load"), str(rate), str(seconds), str(size)]
                told = run_program(command, env, timeout=600)
                report.title = f"{rate:,} failures a minute for {seconds} s, {server.description()}"
            cpu = (told["cpu"], told["postgres_cpu"])
            sizes = (told["wal"] / 1e6, told["size"] / 1e6)
            report.rows.append((f"{size:,} B", told["rows"], told["statements"], *cpu, *sizes, told["late"]))
            report.figures[str(size)] = told
            worst = max(worst, cpu[0] / told["seconds"])
        report.title += f", PostgreSQL {box.version // 10_000}"
    report.notes.append(
        "half of the failures are of new jobs, half are second ones of the same; lag: mean until copied"
    )
    report.bars = [Bar("share of a core for the mirror", worst, BAR, at_most=True)]
    return report
