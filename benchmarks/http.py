"""Benchmark of the HTTP API against an empty view on the same server: one process, four keep-alive clients.

The throughput is that of a machine that does nothing else. The CPU time of the server for each request hardly depends
on other programs: compare two versions by it where the machine is shared.

Measured under gunicorn (WSGI, four threads, a database connection for each) and under uvicorn (ASGI, which can wait for
jobs; Django creates a thread and a database connection for each request there).
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import environment, program, project_python, run_program, running_worker
from benchmarks.report import Bar, Report, median
from benchmarks.server import Server, running_server
from benchmarks.usage import cpu_seconds

CLIENTS = 4
#: jobs per request in the batched workloads
BATCH = 100
BATCHED_BAR = 15_000.0
#: (name, workload of programs/http_load.py, jobs per request, requests per round)
WORKLOADS = (
    ("empty view", "empty", 1, 1),
    ("produce", "produce", 1, 1),
    (f"produce by {BATCH}", "produce", BATCH, 1),
    ("reserve + ack", "consume", 1, 2),
    (f"reserve + ack by {BATCH}", "consume", BATCH, 2),
)
#: name of a server -> its command for a port
SERVERS: dict[str, Callable[[int], list[str]]] = {
    "gunicorn": lambda port: [
        "gunicorn",
        "benchmarks.site.wsgi:application",
        "--bind",
        f"127.0.0.1:{port}",
        "--worker-class",
        "gthread",
        "--threads",
        str(CLIENTS),
        "--keep-alive",
        "60",
        "--log-level",
        "warning",
    ],
    "uvicorn": lambda port: [
        "uvicorn",
        "benchmarks.site.asgi:application",
        "--port",
        str(port),
        "--loop",
        "asyncio",
        "--http",
        "h11",
        "--lifespan",
        "off",
        "--log-level",
        "warning",
    ],
}


@dataclass(frozen=True, slots=True)
class Site:
    """Running server of the benchmark's site."""

    port: int
    token: str
    env: Mapping[str, str]
    pid: int

    def load(self, workload: str, size: int, seconds: float) -> tuple[float, float, float]:
        """Run a workload; return rounds and jobs per second, and the server's CPU seconds for each round."""
        command = [
            sys.executable,
            program("http_load"),
            str(self.port),
            self.token,
            workload,
            str(size),
            str(CLIENTS),
            str(seconds),
        ]
        before = sum(cpu_seconds(self.pid).values())
        result = run_program(command, self.env)
        used = sum(cpu_seconds(self.pid).values()) - before
        seconds = result["seconds"]
        return result["rounds"] / seconds, result["jobs"] / seconds, used / max(1, result["all_rounds"])


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Run all workloads one after another in each round. ``jobs``: number of jobs in the queue for the consumers."""
    seconds = 0.3 if quick else 4.0
    rounds = rounds or (1 if quick else 3)
    jobs = jobs or (20_000 if quick else 250_000)
    report = Report(
        "http",
        "",
        ("server", "workload", "requests/s", "jobs/s", "CPU ms/request", "requests × empty", "jobs × empty"),
    )
    for kind in SERVERS:
        if only and kind not in only:
            continue
        with running_server() as server, running_site(server, kind) as site:
            report.title = f"{jobs:,} jobs, {CLIENTS} clients, one process, {server.description()}, medians of {rounds}"
            _measure(report, kind, server, site, rounds, seconds, jobs)
    return report


def _measure(report: Report, kind: str, server: Server, site: Site, rounds: int, seconds: float, jobs: int) -> None:
    requests: dict[str, list[float]] = {name: [] for name, *_ in WORKLOADS}
    handled: dict[str, list[float]] = {name: [] for name, *_ in WORKLOADS}
    costs: dict[str, list[float]] = {name: [] for name, *_ in WORKLOADS}
    for _ in range(rounds):
        for name, workload, size, each in WORKLOADS:
            _fill(server, site, jobs if workload == "consume" else 0)
            per_second, jobs_per_second, cpu = site.load(workload, size, seconds)
            requests[name].append(per_second * each)
            handled[name].append(jobs_per_second)
            costs[name].append(cpu * 1000 / each)
    empty = median(requests["empty view"])
    for name, *_ in WORKLOADS:
        rate, jobs_rate, cpu_ms = median(requests[name]), median(handled[name]), median(costs[name])
        report.rows.append((kind, name, rate, jobs_rate, cpu_ms, rate / empty, jobs_rate / empty))
        report.figures[f"{kind} {name}"] = {
            "requests_per_second": rate,
            "jobs_per_second": jobs_rate,
            "cpu_ms_per_request": cpu_ms,
            "of_empty": rate / empty,
        }
    report.bars.append(Bar(f"{kind}: produce by {BATCH}, jobs/s", median(handled[f"produce by {BATCH}"]), BATCHED_BAR))


@contextlib.contextmanager
def running_site(server: Server, kind: str) -> Iterator[Site]:
    """Run the site of the benchmark on that Redis, with a database of its own."""
    with tempfile.TemporaryDirectory(prefix="delayq-bench-") as folder:
        env = environment(
            DJANGO_SETTINGS_MODULE="benchmarks.site.web_settings",
            BENCH_SOCKET=server.socket,
            BENCH_DATABASE=str(Path(folder) / "db.sqlite3"),
            BENCH_KEEPS_CONNECTIONS=str(kind == "gunicorn"),
        )
        token = run_program([project_python(), program("http_site")], env)["token"]
        port = _free_port()
        command = [project_python(), "-m", *SERVERS[kind](port)]
        with running_worker(command, env) as worker:
            while not _answers(port):
                worker.require_alive()
            yield Site(port, token, env, worker.pid)


def _fill(server: Server, site: Site, jobs: int) -> None:
    """Put ``jobs`` jobs into the queue, and delete everything else in Redis."""
    with contextlib.closing(server.client()) as client:
        for name in ("delayq*", "{delayq*"):
            stale = [key for key in client.scan_iter(name, count=5000) if not key.endswith(b":queues")]
            for start in range(0, len(stale), 1000):
                client.unlink(*stale[start : start + 1000])
    if jobs:
        run_program([project_python(), program("http_fill"), str(jobs)], site.env)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as line:
        return int(line.getsockname()[1])


def _answers(port: int) -> bool:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        line.request("GET", "/delayq/healthz")
        return line.getresponse().status < 500
    except OSError:
        return False
    finally:
        line.close()
