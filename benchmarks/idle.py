"""Benchmark of an idle worker process: client requests per second, counted by MONITOR without those made by scripts."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter

from benchmarks.core import wait_for_worker
from benchmarks.peers import OURS
from benchmarks.processes import running_worker
from benchmarks.report import Bar, Report
from benchmarks.server import Server, running_server

LIMIT = 1.0
SETTLE_SECONDS = 5.0


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Use one queue of five shards and one process, with heartbeat and dispatcher. Only ``quick`` is used."""
    seconds = 6.0 if quick else 60.0
    with running_server() as server, contextlib.closing(server.client()) as client:
        text = server.description()
        with running_worker(OURS.worker(OURS.python()), OURS.environment(server, BENCH_JOBS="0")) as worker:
            wait_for_worker(client, worker)
            time.sleep(SETTLE_SECONDS)  # not for synchronisation: requests of the start are not idle cost
            commands = _watch(server, seconds)
            worker.require_alive()
    rate = sum(commands.values()) / seconds
    report = Report("idle", f"{seconds:.0f} s of an idle process, {text}", ("request", "count", "per s"))
    report.rows = [(name, count, count / seconds) for name, count in commands.most_common()]
    report.rows.append(("all", sum(commands.values()), rate))
    report.figures = {"requests_per_second": rate, "commands": dict(commands)}
    report.bars = [Bar("requests/s", rate, LIMIT, at_most=True)]
    return report


def _watch(server: Server, seconds: float) -> Counter[str]:
    """Return the number of requests by name; scripts by the first characters of their digest."""
    scripts = _script_names()
    counted: Counter[str] = Counter()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server.socket)
        connection.sendall(b"MONITOR\r\n")
        deadline = time.monotonic() + seconds
        pending = b""
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            try:
                pending += connection.recv(1 << 16)
            except TimeoutError:
                break
            *lines, pending = pending.split(b"\r\n")
            for line in lines:
                if b"]" in line and not line.split(b"]", 1)[0].endswith(b"lua"):
                    words = line.split(b"]", 1)[1].decode(errors="replace").split('"')[1::2]
                    name = words[0].lower()
                    counted[f"{name} {scripts.get(words[1], words[1][:8])}" if name == "evalsha" else name] += 1
    return counted


def _script_names() -> dict[str, str]:
    from benchmarks.core import script_names

    return script_names()
