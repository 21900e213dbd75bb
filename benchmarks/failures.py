"""Benchmark of nereus's table: P threads produce 5,000 jobs each while C threads succeed and X threads always raise.

A failed job is retried after d·n² and leaves after its third attempt, so a row without any succeeding thread runs each
job three times. Production uses P threads of one process that call ``schedule()`` one by one. Consumption uses the
original's measure: jobs / (time from the start of production until no job is left, less the longest delay that a job
had to wait, back-offs included). The published figures (from a developer's machine of 2020) are listed beside ours.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from benchmarks.core import broker_on, counts_of, wait_for_worker
from benchmarks.peers import OURS
from benchmarks.processes import run_program, running_worker
from benchmarks.report import Bar, Report, median
from benchmarks.server import Server, running_server
from django_delayq.core import events

PER_PRODUCER = 5_000
PRODUCED, CONSUMED = 3_543, 2_552


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the table, with the rates published for it (jobs/s)."""

    producers: int
    delay: float
    succeeding: int
    failing: int
    published: tuple[int, int]


TABLE = (
    Row(1, 0.1, 1, 0, (847, 831)),
    Row(4, 0.1, 1, 0, (1_619, 993)),
    Row(8, 0.1, 2, 0, (2_730, 2_229)),
    Row(16, 0.1, 4, 0, (2_939, 2_302)),
    Row(1, 0.1, 0, 1, (1_081, 519)),
    Row(8, 0.1, 0, 2, (3_393, 258)),
    Row(12, 0.1, 0, 3, (3_410, 241)),
    Row(16, 0.1, 0, 4, (3_543, 645)),
    Row(16, 0.1, 0, 16, (3_341, 1_156)),
    Row(16, 0.1, 4, 1, (3_250, 1_930)),
    Row(4, 5.0, 1, 1, (2_671, 2_552)),
    Row(16, 5.0, 4, 1, (3_051, 2_146)),
)


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Measure every row of the table; ``jobs`` is the number of jobs of each producer."""
    rows = [row for row in TABLE if not quick or row in (TABLE[0], TABLE[4])]
    each = jobs or (200 if quick else PER_PRODUCER)
    results: dict[Row, list[tuple[float, float]]] = {row: [] for row in rows}
    with running_server() as server:
        text = server.description()
        for _ in range(rounds or 1):
            for row in rows:
                results[row].append(_measure(row, server, each))
    return _report(results, f"{each:,} jobs a producer, {text}, medians of {rounds or 1}")


def _measure(row: Row, server: Server, each: int) -> tuple[float, float]:
    jobs, threads = row.producers * each, row.succeeding + row.failing
    settings = {"BENCH_FAILING": str(row.failing), "BENCH_DELAY": str(row.delay)}
    command = [OURS.python(), "-m", "django", "delayq_worker", "--processes", "1", "--threads", str(threads)]
    with contextlib.closing(server.client()) as client:
        client.flushdb()
        env = OURS.environment(server, **settings)
        with running_worker([*command, "--verbosity", "0"], env) as worker:
            wait_for_worker(client, worker)
            made = run_program(OURS.program("produce", str(jobs), str(row.producers), str(row.delay)), env)
            while counts_of(client):
                time.sleep(0.02)
                worker.require_alive()
            ended = time.time()
            waited = row.delay * (1 + sum(n * n for n in range(1, _most_retries(server) + 1)))
    return jobs / made["seconds"], jobs / (ended - made["began"] - waited)


def _most_retries(server: Server) -> int:
    """Return the highest number of retries of a job, by the events of failed attempts."""
    with broker_on(server) as broker:
        retried = [
            int(event.fields["attempt"])
            for number in broker.queue("default").numbers
            for entry in events.entries(broker, "default", number, limit=20_000)
            for event in events.events_of("default", number, entry)
            if event.outcome == "failed"
        ]
    return max(retried, default=0)


def _report(results: dict[Row, list[tuple[float, float]]], title: str) -> Report:
    columns = (
        "producers / succeeding / failing threads",
        "delay s",
        "produced/s",
        "consumed/s",
        "nereus: produced/s",
        "consumed/s",
    )
    report = Report("failures", title, columns)
    for row, measured in results.items():
        produced, consumed = (median(one[at] for one in measured) for at in (0, 1))
        name = f"{row.producers} / {row.succeeding} / {row.failing}"
        report.rows.append((name, row.delay, produced, consumed, *row.published))
        report.figures[f"{name} / {row.delay}"] = {"produced": produced, "consumed": consumed}
    rates = [(median(one[0] for one in measured), median(one[1] for one in measured)) for measured in results.values()]
    report.bars.append(Bar("produced/s, best row", max(produced for produced, _ in rates), PRODUCED))
    steady = [consumed for row, (_, consumed) in zip(results, rates, strict=True) if row.delay < 1]
    report.bars.append(Bar("consumed/s, best row without a long delay", max(steady), CONSUMED))
    failing = [consumed for row, (_, consumed) in zip(results, rates, strict=True) if not row.succeeding]
    report.bars.append(Bar("consumed/s, worst row in which every run fails", min(failing), 192.0))
    report.notes.append("a row without a succeeding thread runs every job three times")
    report.notes.append("rows with 5 s: most of the work is done during the delay that the measure takes off")
    return report
