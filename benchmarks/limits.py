"""Benchmark of limits over all workers: groups, turns, a rate over several processes, a blocked group in front.

* drain: jobs of 1,000 groups, each with a rate and a concurrency, against the same number of plain jobs.
* turn: a tenant has one job among tenants with very many; how many other jobs start before it.
* rate: 1,000 starts a second over four processes, by the times of the grants on Redis's clock, and of the starts.
* blocked: many jobs of one group wait for its limit; script time of a reserve of others, with these, one or none. Their
  number is not just behind a power of two, where Redis enlarges its tables: then each use of an element takes a step of
  that, 1 µs (measured with 300,000).
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.core import broker_on, wait_for_worker
from benchmarks.drain import drain
from benchmarks.peers import OURS
from benchmarks.processes import run_program, running_worker
from benchmarks.report import Bar, Report, median, percentile
from benchmarks.server import Server, running_server
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.limits import Block, Grant, LaneNotes
from django_delayq.core.outcomes import ack
from django_delayq.core.queue import Queue

GROUPS = 1000
TENANTS = 5
PER_SECOND, BURST, PROCESSES = 1000, 100, 4
CALLS, EACH = 200, 10
#: bars
OF_PLAIN_SPEED = 0.5
DEVIATION = 0.01
SLOWER = 1.1


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Run the parts, or some of them: ``--only drain,turn,rate,blocked``. ``jobs`` are those of a tenant."""
    rounds = rounds or (1 if quick else 3)
    each = jobs or (2_000 if quick else 100_000)
    with running_server() as server:
        report = Report("limits", f"{server.description()}, medians of {rounds}", ("part", "measured", "value"))
        for name, part in PARTS.items():
            if name in (only or PARTS):
                part(report, server, rounds, each, 3.0 if quick else 30.0)
    return report


def _note(report: Report, part: str, measured: str, value: float, bar: float | None = None, **options: Any) -> None:
    report.rows.append((part, measured, value))
    report.figures.setdefault(part, {})[measured] = value
    if bar is not None:
        report.bars.append(Bar(f"{part}: {measured}", value, bar, **options))


def _drain(report: Report, server: Server, rounds: int, jobs: int, _: float) -> None:
    grouped = replace(OURS, fill="fill_grouped")
    pairs = [
        (drain(OURS, server, jobs).run_seconds, drain(grouped, server, jobs, BENCH_GROUPS=str(GROUPS)).run_seconds)
        for _ in range(rounds)
    ]
    _note(report, "drain", "plain jobs/s", jobs / median(plain for plain, _ in pairs))
    _note(report, "drain", "jobs/s of groups", jobs / median(limited for _, limited in pairs))
    _note(report, "drain", "of plain speed", median(plain / limited for plain, limited in pairs), OF_PLAIN_SPEED)


def _turn(report: Report, server: Server, _: int, jobs: int, __: float) -> None:
    with _one_shard(server) as (_, queue):
        for tenant in range(TENANTS):
            queue.schedule_many(_jobs(f"t{tenant}", jobs, f"t{tenant}"))
        for _ in range(3 * TENANTS):  # every tenant has had its turn
            _take_granted(queue)
        queue.schedule(NewJob("one", "blank", group="one"))
        before = 0
        while _take_granted(queue) != "one":
            before += 1
    _note(report, "turn", "jobs before that of the small tenant", float(before), TENANTS, at_most=True)


def _take_granted(queue: Queue) -> str:
    """Run one job whose group grants it; return its id."""
    offers = queue.reserve(0, 1, worker="w", lanes=LaneNotes(most=1).pack()).offers
    grants = [Grant(offer, offer.jobs) for offer in offers]
    (job,) = queue.reserve(0, 1, worker="w", lanes=LaneNotes(grants=grants).pack()).jobs
    queue.settle([ack(job, 1, 1)])
    return job.id


def _rate(report: Report, server: Server, _: int, __: int, seconds: float) -> None:
    jobs = int(PER_SECOND * (seconds + 5))
    with contextlib.closing(server.client()) as client, tempfile.TemporaryDirectory(prefix="delayq-bench-") as folder:
        client.flushdb()
        rate = f"{PER_SECOND}/s {BURST}"
        env = OURS.environment(server, BENCH_JOBS="0", BENCH_STARTS=folder, BENCH_RATE=rate)
        run_program(OURS.program("fill_paced", str(jobs)), env)
        command = [OURS.python(), "-m", "django", "delayq_worker", "--processes", str(PROCESSES), "--threads", "5"]
        with running_worker(command, env) as worker:
            wait_for_worker(client, worker)
            time.sleep(seconds + 3)
            worker.require_alive()
        files = list(Path(folder).iterdir())
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    grants, starts = (sorted(moments) for moments in zip(*lines, strict=True))
    begin = starts[0] + 1.5  # the burst is over, and all processes run
    inside = [at for at in starts if begin <= at < begin + seconds]
    _note(report, "rate", "processes that took part", float(len(files)))
    _note(report, "rate", "starts/s", len(inside) / seconds)
    deviation = abs(len(inside) / seconds / PER_SECOND - 1)
    _note(report, "rate", "deviation", deviation, DEVIATION, at_most=True)
    _note(report, "rate", "grants beyond the rate in any window", _level(grants), BURST + 0.01, at_most=True)
    _note(report, "rate", "starts beyond the rate in any window", _level(starts))


def _level(moments: Sequence[float]) -> float:
    """Return how many starts were at once, in any window: the level of a bucket that starts fill and time empties."""
    level = highest = before = 0.0
    for at in moments:
        level = max(0.0, level - (at - before) * PER_SECOND) + 1
        highest, before = max(highest, level), at
    return highest


def _blocked(report: Report, server: Server, rounds: int, jobs: int, _: float) -> None:
    kinds: dict[str, Callable[[int], Sequence[NewJob]]] = {
        "plain jobs": lambda number: _jobs(f"plain{number}", EACH, ""),
        "jobs of another group": lambda number: _jobs(f"other{number}", EACH, "other"),
    }
    for kind, new in kinds.items():
        with _one_shard(server) as (broker, _):
            queues = {name: broker.queue(name, shards=1) for name in ("without", "one", "many")}
            for name, count in (("one", 1), ("many", 10 * jobs)):
                for first in range(0, count, jobs):
                    queues[name].schedule_many(_jobs(f"big{first}", min(jobs, count), "big"))
                block = Block(f"group:{name}:big", 1, 3_600_000)
                queues[name].reserve(0, 0, worker="w", lanes=LaneNotes(blocks=[block]).pack())
            times: dict[str, list[float]] = {name: [] for name in queues}
            for number in range(CALLS * rounds):  # in turn, so that all see the same machine
                for name, queue in queues.items():
                    times[name].append(_reserve_us(broker, queue, new(number)))
        without, one, many = (percentile(sorted(some), 0.5) for some in times.values())
        _note(report, "blocked", f"µs of a reserve of {EACH} {kind}", without)
        _note(report, "blocked", f"behind one blocked job ({kind})", one)
        _note(report, "blocked", f"behind {10 * jobs:,} blocked jobs ({kind})", many)
        _note(report, "blocked", f"many ÷ one ({kind})", many / one, SLOWER, at_most=True)
        _note(report, "blocked", f"many ÷ none ({kind})", many / without)


def _reserve_us(broker: Broker, queue: Queue, jobs: Sequence[NewJob]) -> float:
    """Return the script time of a reserve, by the server's slow log."""
    queue.schedule_many(jobs)
    broker.client.slowlog_reset()
    batch = queue.reserve(0, EACH, worker="w", lanes=LaneNotes(most=EACH).pack())
    if batch.offers:
        grants = [Grant(offer, offer.jobs) for offer in batch.offers]
        batch = queue.reserve(0, EACH, worker="w", lanes=LaneNotes(grants=grants).pack())
    entries = [one for one in broker.client.slowlog_get(10) if one["command"].upper().startswith(b"EVALSHA")]
    if len(batch.jobs) != EACH:
        raise RuntimeError(f"{len(batch.jobs)} of {EACH} jobs were reserved")
    queue.settle([ack(job, 1, 1) for job in batch.jobs])
    return float(sum(one["duration"] for one in entries))


def _jobs(prefix: str, count: int, group: str) -> list[NewJob]:
    return [NewJob(f"{prefix}-{number}", "blank", b"[1]", group=group) for number in range(count)]


@contextlib.contextmanager
def _one_shard(server: Server) -> Any:
    with broker_on(server) as broker:
        broker.client.flushdb()
        broker.client.config_set("slowlog-log-slower-than", 0)
        yield broker, broker.queue("shop", shards=1)
        broker.client.config_set("slowlog-log-slower-than", 10_000)


PARTS = {"drain": _drain, "turn": _turn, "rate": _rate, "blocked": _blocked}
