"""Benchmark of confirmed writes: ``schedule`` one by one and in chunks of 250, without a wait, with the wait for a
replica, and with that for the disk (``appendfsync always``; servers from 7.2 on). There is no network between them.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

from benchmarks.report import Report, median
from benchmarks.server import Server, running_server
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.queue import Queue
from django_delayq.core.redis.connection import RedisConfig, connect

CHUNK = 250
#: seconds for the replica's first copy
COPIED_WITHIN = 30.0


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Measure each kind of confirmation in interleaved rounds."""
    jobs, rounds = jobs or (500 if quick else 10_000), rounds or (1 if quick else 3)
    alone: dict[str, list[float]] = {}
    many: dict[str, list[float]] = {}
    port = _free_port()
    with (
        running_server(options=("--port", str(port), "--repl-diskless-sync-delay", "0")) as master,
        running_server(options=("--replicaof", f"127.0.0.1 {port}")) as replica,
        running_server(options=("--appendonly", "yes", "--appendfsync", "always")) as disk,
    ):
        _wait_for_copy(replica)
        kinds: dict[str, tuple[Server, dict[str, Any]]] = {
            "none": (master, {}),
            "1 replica": (master, {"WAIT_REPLICAS": 1}),
        }
        if _version(disk) >= (7, 2):
            kinds |= {"none, with AOF": (disk, {}), "the disk": (disk, {"WAIT_AOF": True})}
        for _ in range(rounds):
            for kind, (server, wait) in kinds.items():
                one, chunk = _measure(server, wait, jobs)
                alone.setdefault(kind, []).append(one)
                many.setdefault(kind, []).append(chunk)
        text = master.description()
    report = Report(
        "confirm",
        f"{jobs:,} jobs, {text}, medians of {rounds}",
        ("confirmed by", "µs/call", f"µs/chunk of {CHUNK}"),
    )
    for kind in alone:
        report.rows.append((kind, median(alone[kind]), median(many[kind])))
        report.figures[kind] = {"microseconds": median(alone[kind]), "microseconds_of_chunk": median(many[kind])}
    return report


def _measure(server: Server, wait: dict[str, Any], jobs: int) -> tuple[float, float]:
    """Return µs for a call, and for a chunk."""
    connection = connect(RedisConfig.parse({"URL": server.url, **wait}))
    try:
        queue = Broker(connection).queue("orders")
        queue.count_many(_jobs(CHUNK))
        return _timed(queue, jobs // 10, 1), _timed(queue, jobs, CHUNK)
    finally:
        connection.close()
        with contextlib.closing(server.client()) as client:
            client.flushdb()


def _timed(queue: Queue, jobs: int, size: int) -> float:
    news = _jobs(jobs)
    began = time.perf_counter()
    if size == 1:
        for new in news:
            queue.schedule(new)
    else:
        queue.count_many(news)
    return (time.perf_counter() - began) / (jobs / size) * 1e6


def _jobs(number: int) -> list[NewJob]:
    return [NewJob(f"order-{place}", "shop.cancel_order", b"[17]", delay_ms=3_600_000) for place in range(number)]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for_copy(replica: Server) -> None:
    deadline = time.monotonic() + COPIED_WITHIN
    with contextlib.closing(replica.client()) as client:
        while client.info("replication").get("master_link_status") != "up":
            if time.monotonic() > deadline:
                raise RuntimeError(f"the replica was not in step after {COPIED_WITHIN:g} s")
            time.sleep(0.05)


def _version(server: Server) -> tuple[int, ...]:
    with contextlib.closing(server.client()) as client:
        return tuple(int(part) for part in str(client.info("server")["redis_version"]).split(".")[:2])
