"""How late jobs start: 2,000 jobs due evenly over ten seconds, one idle worker process. None may start early."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from pathlib import Path

from benchmarks.core import wait_for_worker
from benchmarks.peers import OURS
from benchmarks.processes import run_program, running_worker
from benchmarks.report import Bar, Report, median, percentile
from benchmarks.server import Server, running_server

P99_MS = 5.0


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """The handler's clock is Redis's clock: one machine. ``only`` is not used."""
    jobs = jobs or (200 if quick else 2_000)
    spread = 2.0 if quick else 10.0
    rounds = rounds or (1 if quick else 3)
    with running_server() as server:
        text = server.description()
        measured = [_lateness(server, jobs, spread) for _ in range(rounds)]
    report = Report(
        "lateness",
        f"{jobs:,} jobs due over {spread:.0f} s, idle worker, {text}, ms",
        ("round", "earliest", "p50", "p90", "p99", "max"),
    )
    for at, late in enumerate(measured, start=1):
        report.rows.append((at, late[0], *(percentile(late, part) for part in (0.5, 0.9, 0.99)), late[-1]))
    p99, earliest = median(percentile(late, 0.99) for late in measured), min(late[0] for late in measured)
    report.figures = {
        "p50_ms": median(percentile(late, 0.5) for late in measured),
        "p99_ms": p99,
        "max_ms": max(late[-1] for late in measured),
        "earliest_ms": earliest,
    }
    report.bars = [Bar("p99 ms", p99, P99_MS, at_most=True), Bar("earliest start, ms after due", earliest, 0.0)]
    return report


def _lateness(server: Server, jobs: int, spread: float) -> list[float]:
    with contextlib.closing(server.client()) as client, tempfile.TemporaryDirectory(prefix="delayq-bench-") as folder:
        client.flushdb()
        stamp = Path(folder) / "stamp"
        env = OURS.environment(server, BENCH_JOBS=str(jobs), BENCH_STAMP=str(stamp))
        with running_worker(OURS.worker(OURS.python()), env) as worker:
            wait_for_worker(client, worker)
            first = time.time() + 2.5
            run_program([*OURS.program("punctual", str(jobs)), str(first), str(spread)], env)
            deadline = time.monotonic() + spread + 30
            while not stamp.exists():
                worker.require_alive()
                if time.monotonic() > deadline:
                    raise RuntimeError(f"not all jobs ran in time\n{worker.output()}")
                time.sleep(0.1)
        return sorted(started - due for due, started in json.loads(stamp.read_text()))
