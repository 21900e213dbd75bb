"""Benchmark: drain 100,000 blank jobs that wait in one Redis, with one worker process of five threads.

``seconds`` is the time from the start of the worker until no job waits or runs (start-up included); ``run seconds``
starts with the first job instead. Enqueueing is not timed. The rules are the same for all contenders.
"""

from __future__ import annotations

import contextlib
import json
import resource
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import BY_NAME, Peer
from benchmarks.processes import run_program, running_worker
from benchmarks.report import Bar, Report, median
from benchmarks.server import Server, running_server

COMPARED = {"dramatiq": 12.0, "celery": 30.0}
ABSOLUTE = 20_000
SNAPSHOT_DB = 1


@dataclass(frozen=True, slots=True)
class Drained:
    """Result of a drain: seconds with and without start-up, CPU seconds of both sides, Redis calls per job.

    Calls made by scripts are included.
    """

    jobs: int
    seconds: float
    run_seconds: float
    worker_cpu: float
    redis_cpu: float
    commands: float


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Interleave the rounds, so that a slow minute of the machine affects all contenders."""
    jobs = jobs or (2_000 if quick else 100_000)
    rounds = rounds or (1 if quick else 3)
    names = only or ("ours", "dramatiq", "celery", "huey")
    results: dict[str, list[Drained]] = {name: [] for name in names}
    with running_server() as server:
        server_text = server.description()
        for _ in range(rounds):
            for name in names:
                results[name].append(drain(BY_NAME[name], server, jobs))
    return _report(results, jobs, rounds, server_text)


def drain(peer: Peer, server: Server, jobs: int, **extra: str) -> Drained:
    """Fill the queue, then let one worker empty it; ``extra`` is added to the environment of both."""
    _fill(peer, server, jobs, extra)
    with contextlib.closing(server.client()) as client, tempfile.TemporaryDirectory(prefix="delayq-bench-") as folder:
        waiting = peer.remaining(client)
        if waiting != jobs:
            raise RuntimeError(f"{peer.name}: {waiting} jobs wait instead of {jobs}")
        stamp = Path(folder) / "stamp"
        env = peer.environment(server, BENCH_JOBS=str(jobs), BENCH_STAMP=str(stamp), **extra)
        before, worker_before = _usage(client), _children_cpu()
        started = time.time()
        with running_worker(peer.worker(peer.python()), env) as worker:
            deadline = time.monotonic() + 60 + jobs / 100
            # No request is sent to Redis before the last job ran, so that polling does not slow a contender down.
            while not (stamp.exists() and peer.remaining(client) == 0):
                time.sleep(0.005)
                worker.require_alive()
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{peer.name}: {peer.remaining(client)} jobs left\n{worker.output()}")
            ended = time.time()
            after = _usage(client)
        first = json.loads(stamp.read_text())["first"]
    worker_cpu = _children_cpu() - worker_before
    redis_cpu, commands = after[0] - before[0], (after[1] - before[1]) / jobs
    return Drained(jobs, ended - started, ended - first, worker_cpu, redis_cpu, commands)


def _children_cpu() -> float:
    """Return the CPU seconds of ended child processes: for a worker, its start and stop included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _usage(client: Any) -> tuple[float, int]:
    cpu = client.info("cpu")
    return cpu["used_cpu_user"] + cpu["used_cpu_sys"], client.info("stats")["total_commands_processed"]


def _fill(peer: Peer, server: Server, jobs: int, extra: Mapping[str, str]) -> None:
    """Store the jobs. Peers enqueue one by one, which is slow, so their data is kept for the next round."""
    prefix = f"{peer.name}|"
    with contextlib.closing(server.client()) as client, contextlib.closing(server.client(SNAPSHOT_DB)) as store:
        client.flushdb()
        stored = [key.decode() for key in store.scan_iter(match=f"{prefix}*", count=1000)]
        for key in stored:
            store.copy(key, key[len(prefix) :], destination_db=0)
        if stored:
            return
        run_program(peer.program(peer.fill, str(jobs)), peer.environment(server, BENCH_JOBS="0", **extra))
        if peer.requirements:
            for key in client.scan_iter(count=1000):
                client.copy(key.decode(), prefix + key.decode(), destination_db=SNAPSHOT_DB)


def _report(results: dict[str, list[Drained]], jobs: int, rounds: int, server: str) -> Report:
    title = f"{jobs:,} blank jobs, 1 process × 5 threads, {server}, medians of {rounds}"
    columns = (
        "contender",
        "seconds",
        "jobs/s",
        "run seconds",
        "run jobs/s",
        "worker CPU s",
        "Redis CPU s",
        "Redis calls/job",
    )
    report = Report("drain", title, columns)
    for name, rounds_of in results.items():
        seconds, running = median(one.seconds for one in rounds_of), median(one.run_seconds for one in rounds_of)
        cpu, commands = median(one.redis_cpu for one in rounds_of), median(one.commands for one in rounds_of)
        worker = median(one.worker_cpu for one in rounds_of)
        report.rows.append((name, seconds, jobs / seconds, running, jobs / running, worker, cpu, commands))
        report.figures[name] = {
            "jobs_per_second": jobs / seconds,
            "run_jobs_per_second": jobs / running,
            "seconds": [one.seconds for one in rounds_of],
            "run_seconds": [one.run_seconds for one in rounds_of],
        }
    report.notes.append(
        "seconds: worker started -> all done, start-up included (the bars use this); run: first job -> all done"
    )
    if "ours" in results:
        ours = report.figures["ours"]
        report.bars.append(Bar("jobs/s", ours["jobs_per_second"], ABSOLUTE))
        for name, ratio in COMPARED.items():
            if name in results:
                peer = report.figures[name]
                report.bars.append(Bar(f"× {name}", ours["jobs_per_second"] / peer["jobs_per_second"], ratio))
                report.figures[f"run_ratio_{name}"] = ours["run_jobs_per_second"] / peer["run_jobs_per_second"]
    return report
