"""Benchmark of the time that each verb's script blocks the server: slow log of calls with 250 jobs and with one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.core import broker_on
from benchmarks.report import Report, percentile
from benchmarks.server import running_server
from django_delayq.core.job import Job, NewJob
from django_delayq.core.outcomes import ack, fail, release
from django_delayq.core.queue import Queue
from django_delayq.core.records.frames import CHUNK

TASK = "shop.cancel_order"
WORKER = "bench:1:1"
# With a lower limit the commands inside the scripts would be logged as well, which slows the scripts down.
LOGGED_FROM_US = 15
NOW_MS = 1_700_000_000_000


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Use one shard with a backlog. ``rounds`` is the number of calls of each kind; ``only`` is not used."""
    calls = rounds or (3 if quick else 100)
    backlog = jobs or (2_000 if quick else 100_000)
    with running_server() as server, broker_on(server) as broker, contextlib.closing(server.client()) as client:
        client.config_set("slowlog-log-slower-than", LOGGED_FROM_US)
        client.config_set("slowlog-max-len", 100_000)
        queue = broker.queue("shop")
        report = Report(
            "scripts",
            f"script time in µs over a backlog of {backlog:,}, {server.description()}",
            ("verb", "jobs a call", "calls", "p50", "p99", "max"),
        )
        queue.schedule_many(_new("backlog", number) for number in range(backlog))
        _verbs(client, queue, calls, report)
    return report


def _verbs(client: Any, queue: Queue, calls: int, report: Report) -> None:
    held: list[Job] = []

    def measure(verb: str, each: int, call: Callable[[int], object]) -> None:
        client.slowlog_reset()
        for number in range(calls):
            call(number)
        entries = client.slowlog_get(100_000)
        times = sorted(int(one["duration"]) for one in entries if one["command"].upper().startswith(b"EVALSHA"))
        if not times:
            return
        row = (verb, each, len(times), percentile(times, 0.5), percentile(times, 0.99), times[-1])
        report.rows.append(row)
        report.figures[f"{verb}_{each}"] = {"p50_us": row[3], "p99_us": row[4], "max_us": row[5]}

    def take(each: int) -> Callable[[int], object]:
        def reserve(_: int) -> None:
            held.extend(queue.reserve(0, each, worker=WORKER).jobs)

        return reserve

    def give(each: int, make: Callable[[Job], Any]) -> Callable[[int], object]:
        def settle(_: int) -> None:
            part, held[:] = held[:each], held[each:]
            queue.settle([make(job) for job in part])

        return settle

    for each in (CHUNK, 1):
        measure("schedule", each, lambda number, each=each: queue.schedule_many(_many(f"{each}.{number}", each)))  # type: ignore[misc]
        measure("reserve", each, take(each))
        measure("release", each, give(each, lambda job: release(job, delay_ms=0)))
        measure("reserve again", each, take(each))
        measure(
            "fail", each, give(each, lambda job: fail(job, NOW_MS, 1, delay_ms=0, error_class="ValueError", error=b"x"))
        )
        take_each = take(each)
        for number in range(calls):
            take_each(number)
        measure("touch", each, lambda _, each=each: queue.touch(held[:each]))  # type: ignore[misc]
        measure("ack", each, give(each, lambda job: ack(job, NOW_MS, 1)))
        take_each(0)

        def fused(_: int, each: int = each) -> None:
            answers, batch = queue.settle_reserve(0, [ack(job, NOW_MS, 1) for job in held], each, worker=WORKER)
            if not all(answers):
                raise RuntimeError("a lease was lost; the machine is too slow for this many calls")
            held[:] = batch.jobs

        measure("ack + reserve", each, fused)
        queue.settle([ack(job, NOW_MS, 1) for job in held])
        held.clear()
    measure("tick", 0, lambda _: queue.tick(0))


def _many(prefix: str, count: int) -> Iterable[NewJob]:
    return (_new(prefix, number) for number in range(count))


def _new(prefix: str, number: int) -> NewJob:
    return NewJob(f"{prefix}-{number:08}", TASK, b"[12345678]", delay_ms=0)
