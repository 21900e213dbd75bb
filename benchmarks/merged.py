"""Lowkiq's own workload: 100,000 ids with one payload each, 5 shards, 5 threads, an empty handler, 1 to 100 ids a call.

The jobs are put in by 10 calls of 10,000, which is not timed. The clock starts before the worker does and stops when
nothing waits and nothing is in flight. Lowkiq and Sidekiq need Ruby; what they published for this program stands in the
table for comparison (other machines!), and dramatiq's plain jobs run beside ours in the same round.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.drain import Drained, drain
from benchmarks.peers import BY_NAME, OURS, Peer
from benchmarks.report import Bar, Report, median
from benchmarks.server import running_server

BATCHES = {1: 6_700, 10: 20_000, 100: 20_000}
PUBLISHED = (("Lowkiq 1.0.5 (published)", 65.0, 1_538), ("Sidekiq 6.0.1 (published)", 15.0, 6_667))


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Rounds are interleaved, so that a slow minute of the machine hits everyone."""
    jobs = jobs or (2_000 if quick else 100_000)
    rounds = rounds or (1 if quick else 3)
    contenders: dict[str, tuple[Peer, dict[str, str]]] = {
        f"batch {size}": (replace(OURS, fill="fill_merged"), {"BENCH_BATCH": str(size)}) for size in BATCHES
    }
    contenders["plain"] = OURS, {}
    if not quick:
        contenders["dramatiq, plain"] = BY_NAME["dramatiq"], {}
    names = [name for name in contenders if not only or name in only]
    results: dict[str, list[Drained]] = {name: [] for name in names}
    with running_server() as server:
        text = server.description()
        for _ in range(rounds):
            for name in names:
                peer, extra = contenders[name]
                results[name].append(drain(peer, server, jobs, **extra))
    return _report(results, f"{jobs:,} ids, 1 process × 5 threads, 5 shards, {text}, medians of {rounds}")


def _report(results: dict[str, list[Drained]], title: str) -> Report:
    columns = ("contender", "seconds", "jobs/s", "run jobs/s", "worker CPU s", "Redis CPU s", "Redis commands/job")
    report = Report("merged", title, columns)
    for name, rounds in results.items():
        seconds, running = median(one.seconds for one in rounds), median(one.run_seconds for one in rounds)
        count = rounds[0].jobs
        commands = median(one.commands for one in rounds)
        report.rows.append(
            (
                name,
                seconds,
                count / seconds,
                count / running,
                median(one.worker_cpu for one in rounds),
                median(one.redis_cpu for one in rounds),
                commands,
            )
        )
        report.figures[name] = {
            "jobs_per_second": count / seconds,
            "run_jobs_per_second": count / running,
            "commands_per_job": commands,
            "seconds": [one.seconds for one in rounds],
        }
    report.rows.extend((name, seconds, rate, "", "", "", "") for name, seconds, rate in PUBLISHED)
    for size, bar in BATCHES.items():
        if f"batch {size}" in report.figures:
            report.bars.append(Bar(f"batch {size}, jobs/s", report.figures[f"batch {size}"]["jobs_per_second"], bar))
    report.notes.append("seconds: worker started -> all done, start-up included; run: from the first job on")
    return report
