"""Benchmark of enqueueing one by one: ``schedule()``, the peers' calls, and bare commands as the upper limit."""

from __future__ import annotations

import contextlib

from benchmarks.peers import BY_NAME, OURS
from benchmarks.processes import program, project_python, run_program
from benchmarks.report import Bar, Report, median
from benchmarks.server import Server, running_server

COMPARED = {"huey": 1.0, "dramatiq": 3.0}
BARE = {"bare EVALSHA": "evalsha", "bare LPUSH": "lpush"}
#: jobs that also have a row, in SQLite in memory
DURABLE = "ours-durable"


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Run each contender in a process of its own, on an empty database, after a warm-up, in interleaved rounds."""
    jobs = jobs or (1_000 if quick else 20_000)
    rounds = rounds or (1 if quick else 5)
    names = only or ("ours", DURABLE, "huey", "dramatiq", "celery", *BARE)
    rates: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    with running_server() as server:
        text = server.description()
        for _ in range(rounds):
            for name in names:
                result = _measure(name, server, jobs)
                rates[name].append(result["jobs"] / result["seconds"])
                cpu[name].append(1e6 * result["cpu_seconds"] / result["jobs"])
    report = Report(
        "enqueue",
        f"{jobs:,} calls one by one, {text}, medians of {rounds}",
        ("contender", "jobs/s", "µs/job", "µs of CPU/job", "ours ×"),
    )
    ours = median(rates["ours"]) if "ours" in rates else 0.0
    for name, values in rates.items():
        row = median(values), 1e6 / median(values), median(cpu[name]), ours / median(values)
        report.rows.append((name, *row))
        report.figures[name] = {"jobs_per_second": median(values), "rounds": values}
    if ours:
        report.bars = [
            Bar(f"× {name}", ours / median(rates[name]), bar) for name, bar in COMPARED.items() if name in rates
        ]
    return report


def _measure(name: str, server: Server, jobs: int) -> dict[str, float]:
    with contextlib.closing(server.client()) as client:
        client.flushdb()
    if name in BARE:
        command = [project_python(), program("bare"), BARE[name], str(jobs)]
        return run_program(command, OURS.environment(server))
    peer = OURS if name == DURABLE else BY_NAME[name]
    verb = "enqueue_durable" if name == DURABLE else "enqueue"
    return run_program(peer.program(verb, str(jobs)), peer.environment(server))
