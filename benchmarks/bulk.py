"""Benchmark of ``schedule_many`` against a bare script (ZADD + HSET of equal bytes, chunks of 250)."""

from __future__ import annotations

import contextlib

from benchmarks.peers import OURS
from benchmarks.processes import program, project_python, run_program
from benchmarks.report import Bar, Report, median
from benchmarks.server import Server, running_server

ABSOLUTE = 80_000
RATIO = 0.7


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Run both in processes of their own, on an empty database, in interleaved rounds. ``only`` is not used."""
    jobs = jobs or (2_000 if quick else 100_000)
    rounds = rounds or (1 if quick else 5)
    commands = {
        "schedule_many": OURS.program("bulk", str(jobs)),
        "bare script": [project_python(), program("bare"), "bulk", str(jobs)],
    }
    rates: dict[str, list[float]] = {name: [] for name in commands}
    with running_server() as server:
        text = server.description()
        for _ in range(rounds):
            for name, command in commands.items():
                rates[name].append(_rate(command, server))
    ours, bare = median(rates["schedule_many"]), median(rates["bare script"])
    report = Report("bulk", f"{jobs:,} jobs, 5 shards, {text}, medians of {rounds}", ("way in", "jobs/s", "µs/job"))
    report.rows = [(name, median(values), 1e6 / median(values)) for name, values in rates.items()]
    report.figures = {"jobs_per_second": ours, "bare_jobs_per_second": bare, "ratio": ours / bare, "rounds": rates}
    report.notes.append("one of the two bars has to be met")
    report.bars = [Bar("jobs/s", ours, ABSOLUTE), Bar("× bare script", ours / bare, RATIO)]
    if any(bar.met for bar in report.bars):
        report.bars = [bar for bar in report.bars if bar.met]
    return report


def _rate(command: list[str], server: Server) -> float:
    with contextlib.closing(server.client()) as client:
        client.flushdb()
    result = run_program(command, OURS.environment(server))
    return float(result["jobs"] / result["seconds"])
