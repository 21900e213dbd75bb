"""Benchmark of a bulk load against ``redis-cli --pipe``, which stores the same bytes under the same keys.

Both write into a server of their own that has held as many jobs before, because the first million of a server takes
twice as long as the next one. Meanwhile another client stores one member every two milliseconds, and its latency is
measured. Then the open bulk load is sent again; its ledgers must detect that.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from benchmarks.processes import environment, program, project_python
from benchmarks.programs.run_write import QUEUE, SHARDS, batches
from benchmarks.report import Bar, Report, median, percentile
from benchmarks.server import Server, redis_cli, running_server

RATIO = 0.7
P99_RATIO = 1.5
RESUME = 2.0
PAUSE_SECONDS = 0.002


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Run pairs of both, one after the other; the figures are medians over the pairs. ``only`` is not used."""
    jobs = jobs or (300_000 if quick else 1_000_000)
    rounds = rounds or (2 if quick else 5)
    with tempfile.TemporaryDirectory(prefix="delayq-bench-") as folder, _commands(Path(folder), jobs) as file:
        pairs = [(_measure_pipe(file, jobs), _measure_bulk(file, jobs)) for _ in range(rounds)]
        with running_server() as server:
            text = server.description()
    pipes, ours = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ratio = median(pipe["seconds"] / our["seconds"] for pipe, our in pairs)
    slower = median(our["p99"] / pipe["p99"] for pipe, our in pairs)
    resume = median(our["seconds"] / our["resume"] for our in ours)
    columns = ("way in", "jobs/s", "client µs/job", "server µs/job", "others' p50 ms", "others' p99 ms")
    report = Report("runs", f"{jobs:,} jobs, {SHARDS} shards, {text}, medians of {rounds} pairs", columns)
    for name, results in (("redis-cli --pipe", pipes), ("bulk write", ours)):
        middle = {
            what: median(result[what] for result in results) for what in ("seconds", "client", "server", "p50", "p99")
        }
        per_job = [middle[what] * 1e6 / jobs for what in ("client", "server")]
        report.rows.append((name, jobs / middle["seconds"], *per_job, middle["p50"] * 1e3, middle["p99"] * 1e3))
    report.rows.append(("sent again", jobs / median(one["resume"] for one in ours), "", "", "", ""))
    report.figures = {"ratio": ratio, "p99_ratio": slower, "resume": resume, "pipe": pipes, "runs": ours}
    report.bars = [
        Bar("× redis-cli --pipe", ratio, RATIO),
        Bar("others' p99 × that under --pipe", slower, P99_RATIO, at_most=True),
        Bar("× faster when sent again", resume, RESUME),
    ]
    return report


# -- the contenders -------------------------------------------------------------------------------------------------


def _measure_pipe(file: Path, jobs: int) -> dict[str, float]:
    with _warm_server(file, jobs) as server, _Watch(server) as watch:
        watch.start()
        cpu, started = server_cpu(server), time.perf_counter()
        client = _pipe(server, file)
        seconds = time.perf_counter() - started
        watch.stop()
        return {"seconds": seconds, "client": client, "server": server_cpu(server) - cpu, **watch.figures()}


def _measure_bulk(file: Path, jobs: int) -> dict[str, float]:
    with _warm_server(file, jobs) as server, _writer(server, jobs) as write, _Watch(server) as watch:
        watch.start()
        cpu = server_cpu(server)
        first = write()
        cpu = server_cpu(server) - cpu
        watch.stop()
        again = write()
        return {
            "seconds": first["seconds"],
            "client": first["cpu"],
            "server": cpu,
            "resume": again["seconds"],
            **watch.figures(),
        }


@contextlib.contextmanager
def _writer(server: Server, jobs: int) -> Iterator[Callable[[], dict[str, float]]]:
    command = [project_python(), program("run_write"), str(jobs)]
    with subprocess.Popen(
        command, env=environment(BENCH_SOCKET=server.socket), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, replies = process.stdin, process.stdout
        if replies.readline() != "ready\n":
            raise RuntimeError("the writer did not start")

        def write() -> dict[str, float]:
            requests.write("\n")
            requests.flush()
            return dict(json.loads(replies.readline()))

        try:
            yield write
        finally:
            requests.close()
            process.wait(30)


@contextlib.contextmanager
def _commands(folder: Path, jobs: int) -> Iterator[Path]:
    """Write the same rows as commands of the wire protocol."""
    file = folder / "commands"
    keys = [
        {name: f"delayq:{{{QUEUE}:0.{shard}}}:{name}".encode() for name in ("body", "due.4")} for shard in range(SHARDS)
    ]
    with file.open("wb") as out:
        for rows in batches(jobs):
            for number, (ident, due, body, _, _) in enumerate(rows):
                key = keys[crc32(ident) % SHARDS]
                out.write(
                    _command(
                        b"HSET", key["body"], ident, b"$\1\0" + hashlib.blake2b(ident, digest_size=16).digest() + body
                    )
                )
                out.write(_command(b"ZADD", key["due.4"], b"%d%03d" % (due, number % 1000), ident))
    yield file


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _pipe(server: Server, file: Path) -> float:
    """Return the CPU seconds of redis-cli."""
    with file.open("rb") as commands:
        command = ["bash", "-c", 'TIMEFORMAT="%U %S"; time "$0" -s "$1" --pipe', redis_cli(), server.socket]
        done = subprocess.run(command, stdin=commands, capture_output=True, text=True, check=True, timeout=600)
    if "errors: 0" not in done.stdout:
        raise RuntimeError(f"redis-cli --pipe failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    return sum(map(float, done.stderr.split()[-2:]))


# -- the server ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _warm_server(file: Path, jobs: int) -> Iterator[Server]:
    with running_server() as server, contextlib.closing(server.client()) as client:
        _pipe(server, file)
        stored = sum(client.zcard(f"delayq:{{{QUEUE}:0.{shard}}}:due.4") for shard in range(SHARDS))
        if stored != jobs:
            raise RuntimeError(f"redis-cli stored {stored} of {jobs} jobs")
        client.flushdb()
        yield server


def server_cpu(server: Server) -> float:
    """Return the CPU seconds that the server has used so far."""
    with contextlib.closing(server.client()) as client:
        cpu: dict[str, Any] = client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


class _Watch:
    """Another client of the server, which stores one member every two milliseconds."""

    def __init__(self, server: Server) -> None:
        self._client = server.client()
        self._stop = threading.Event()
        self._seconds: list[float] = []
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> _Watch:
        self._client.zadd("another", {"0": 0})
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._client.close()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        number = 0
        while not self._stop.wait(PAUSE_SECONDS):
            number += 1
            started = time.perf_counter()
            self._client.zadd("another", {str(number % 1000): number})
            self._seconds.append(time.perf_counter() - started)

    def figures(self) -> dict[str, float]:
        """Return percentiles of the latency in seconds."""
        seconds = sorted(self._seconds)
        return {"p50": percentile(seconds, 0.5), "p99": percentile(seconds, 0.99), "probes": len(seconds)}
