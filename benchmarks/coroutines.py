"""Benchmark of ``aschedule()``: concurrent calls on an event loop against the same number in threads and bare ones."""

from __future__ import annotations

from benchmarks.peers import OURS
from benchmarks.processes import program, project_python, run_program
from benchmarks.report import Report, median
from benchmarks.server import running_server


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Run all contenders in one process, in interleaved rounds after a warm-up."""
    jobs = jobs or (200 if quick else 1_000)
    rounds = rounds or (2 if quick else 30)
    with running_server() as server:
        text = server.description()
        command = [project_python(), program("coroutines"), str(jobs), str(rounds)]
        found: dict[str, list[float]] = run_program(command, OURS.environment(server))
    report = Report(
        "coroutines",
        f"{jobs:,} calls at the same time, {text}, medians of {rounds}",
        ("contender", "ms", "µs/job", "ours ×"),
    )
    ours = median(found["ours"])
    for name, values in found.items():
        report.rows.append((name, median(values) * 1e3, median(values) / jobs * 1e6, median(values) / ours))
        report.figures[name] = {"seconds": median(values), "rounds": values}
    return report
