"""Benchmark of a crash: one of three processes is killed with SIGKILL, and the throughput before and after is compared.

Jobs fall due at an even rate and take a second each; two processes have capacity for a third more than that. No job
need be late, therefore, unless the jobs that the killed process had started block the other processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

from benchmarks.core import broker_on, wait_for_worker
from benchmarks.peers import OURS
from benchmarks.processes import run_program, running_worker
from benchmarks.report import Bar, Report, median
from benchmarks.server import Server, running_server
from django_delayq.core.broker import Broker

PROCESSES, THREADS = 3, 8
JOB_SECONDS = 1.0
#: jobs per second
RATE = 12.0
WINDOW_SECONDS = 5.0
KEPT = 0.8
_READY_SECONDS = 60.0
_SETTLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs per second before and after the kill, and the longest time that a job was overdue after it."""

    before: float
    after: float
    lag: float

    @property
    def kept(self) -> float:
        return self.after / self.before


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Run the benchmark; ``jobs`` and ``only`` are not used."""
    with running_server() as server:
        text = server.description()
        measured = [_measure(server) for _ in range(rounds or (1 if quick else 3))]
    title = f"{PROCESSES} processes × {THREADS} threads, {RATE:g} jobs/s of {JOB_SECONDS:g} s, one killed, {text}"
    window = f"{WINDOW_SECONDS:g} s"
    report = Report("crash", title, ("round", f"jobs/s, {window} before", f"{window} after", "kept", "longest lag, s"))
    for at, rates in enumerate(measured, start=1):
        report.rows.append((at, rates.before, rates.after, rates.kept, rates.lag))
    kept = median(rates.kept for rates in measured)
    report.figures = {
        "before": median(rates.before for rates in measured),
        "after": median(rates.after for rates in measured),
        "kept": kept,
        "lag_seconds": median(rates.lag for rates in measured),
    }
    report.bars = [Bar("part of the throughput that is kept", kept, KEPT)]
    return report


def _measure(server: Server) -> Rates:
    env = OURS.environment(server)
    size = ["--processes", str(PROCESSES), "--threads", str(THREADS), "--grace", "0"]
    command = [OURS.python(), "-m", "django", "delayq_worker", "--verbosity", "0", *size]
    jobs = int(RATE * (_SETTLE_SECONDS + 2 * WINDOW_SECONDS + 10))
    with contextlib.closing(server.client()) as client, broker_on(server) as broker:
        client.flushdb()
        with running_worker(command, env) as worker:
            wait_for_worker(client, worker)
            victim = _await_processes(broker)
            run_program(OURS.program("doze", str(jobs), str(JOB_SECONDS), str(RATE)), env)
            time.sleep(_SETTLE_SECONDS)  # not for synchronisation: wait until the number of running jobs is steady
            before, _ = _watch(broker)
            os.kill(victim, signal.SIGKILL)
            after, lag = _watch(broker)
            worker.require_alive()
    return Rates(before, after, lag)


def _await_processes(broker: Broker) -> int:
    """Wait until all processes are registered; return the pid of one of them."""
    deadline = time.monotonic() + _READY_SECONDS
    while len(workers := broker.workers()) < PROCESSES:
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {len(workers)} of {PROCESSES} processes announced themselves")
        time.sleep(0.1)
    return int(workers[0]["pid"])


def _watch(broker: Broker) -> tuple[float, float]:
    """Return jobs per second and the longest lag during the next seconds."""
    began, done, lag = time.perf_counter(), _done(broker), 0.0
    while (seconds := time.perf_counter() - began) < WINDOW_SECONDS:
        time.sleep(min(0.1, WINDOW_SECONDS - seconds))
        lag = max(lag, broker.inspector.counts("default").lag_seconds)
    return (_done(broker) - done) / (time.perf_counter() - began), lag


def _done(broker: Broker) -> int:
    return broker.inspector.counts("default").counters.get("acked", 0)
