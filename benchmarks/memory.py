"""Memory of a resident delayed job: ``used_memory`` before and after 1,000,000 plain jobs in one shard.

Ids of 16 bytes, arguments of 10 encoded bytes, task ``shop.cancel_order``, due within 30 days, default events. The cost
of an empty queue (its registration, scripts, counters) is reported apart.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from benchmarks.core import broker_on
from benchmarks.report import Bar, Report
from benchmarks.server import Server, bundled_binary, default_binary, running_server
from django_delayq.core.job import NewJob
from django_delayq.core.queue import Queue

LIMIT = 214.0
TASK = "shop.cancel_order"
ARGUMENTS = b"[12345678]"
HOUR_MS, MONTH_MS = 3_600_000, 30 * 24 * 3_600_000
SLICE = 10_000


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes on one server. ``parts`` are the keys' own sizes per job (MEMORY USAGE, an estimate by samples)."""

    server: str
    empty: int
    per_job: float
    resident: float
    parts: dict[str, float]


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """On the default server and, where that is another one, on the bundled one. Memory does not vary: one round."""
    jobs = jobs or (2_000 if quick else 1_000_000)
    binaries = dict.fromkeys(filter(None, (default_binary(), bundled_binary())))
    found = [_measure(binary, jobs) for binary in binaries]
    report = Report(
        "memory",
        f"{jobs:,} plain jobs in one shard, bytes per job",
        ("server", "per job", "resident set", "empty queue"),
    )
    for one in found:
        report.rows.append((one.server, one.per_job, one.resident, one.empty))
        parts = ", ".join(f"{name} {size:.1f}" for name, size in one.parts.items())
        report.notes.append(f"{one.server}, by key (sampled): {parts}")
    report.figures = {
        "servers": [
            {"server": one.server, "bytes_per_job": one.per_job, "empty_queue_bytes": one.empty, "by_key": one.parts}
            for one in found
        ]
    }
    report.bars = [Bar(f"bytes per job, {found[0].server}", found[0].per_job, LIMIT, at_most=True)]
    return report


def _measure(binary: str, jobs: int) -> Measured:
    with running_server(binary) as server, broker_on(server) as broker, contextlib.closing(server.client()) as client:
        client.ping()
        broker.client.ping()
        nothing = _used(server)[0]
        queue = broker.queue("shop")
        _touch_once(queue)
        before, before_resident = _used(server)
        # Slices bound what this process holds; the queue cuts its own chunks out of each.
        news = _jobs(jobs)
        outcomes = sum(len(queue.schedule_many(part)) for part in _slices(news))
        if outcomes != jobs:
            raise RuntimeError(f"{outcomes} of {jobs} jobs were stored")
        after, after_resident = _used(server)
        parts = {
            key.rsplit(b":", 1)[-1].decode(): size / jobs
            for key in client.scan_iter(count=1000)
            if (size := int(client.memory_usage(key, samples=100) or 0)) >= jobs / 100
        }
        parts = dict(sorted(parts.items(), key=lambda part: -part[1]))
        per_job, resident = (after - before) / jobs, (after_resident - before_resident) / jobs
        return Measured(server.description(), before - nothing, per_job, resident, parts)


def _touch_once(queue: Queue) -> None:
    """One job in and out, so that everything that a queue keeps for itself is there."""
    queue.schedule(NewJob("0" * 16, TASK, ARGUMENTS, delay_ms=MONTH_MS))
    queue.schedule_many([NewJob("1" * 16, TASK, ARGUMENTS, delay_ms=MONTH_MS)])
    queue.cancel("0" * 16)
    queue.cancel("1" * 16)


def _jobs(jobs: int) -> Iterator[NewJob]:
    spread = random.Random(1)
    now = int(time.time() * 1000)
    for number in range(jobs):
        yield NewJob(
            f"order-{number:010}", TASK, ARGUMENTS, due_ms=now + spread.randrange(HOUR_MS, MONTH_MS), delay_ms=None
        )


def _slices(news: Iterator[NewJob]) -> Iterator[list[NewJob]]:
    while part := list(islice(news, SLICE)):
        yield part


def _used(server: Server) -> tuple[int, int]:
    """``(used_memory, used_memory_rss)``, asked on a fresh connection, so that no buffer of the load is counted."""
    with contextlib.closing(server.client()) as client:
        memory = client.info("memory")
    return int(memory["used_memory"]), int(memory["used_memory_rss"])
