"""Benchmark of Spark's bulk load against ``redis-cli --pipe`` of the same keys: Parquet, ``local[2]``, interleaved.

Both are warmed up. ``--only spark`` leaves ``redis-cli`` out: ``--jobs 10000000 --rounds 1 --only spark`` is the large
run.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import Bar, Report, median
from benchmarks.server import Server, redis_cli, running_server
from benchmarks.usage import MemoryWatch, cpu_seconds

PIPE, SPARK, AGAIN = "redis-cli --pipe", "format('delayq')", "the run again"
#: on two cores, which Redis, two senders and Java share: redis-cli leaves one of them to Redis alone
RATIO = 0.43
RESUME = 2.0
SHARDS = 4
_DUE_MS = 1_900_000_000_000


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Load an empty database with both in turn, after a warm-up round of each."""
    jobs = jobs or (300_000 if quick else 1_000_000)
    rounds = rounds or (2 if quick else 4)
    ways = [SPARK] if only == ("spark",) else [SPARK, PIPE]
    rates: dict[str, list[float]] = {name: [] for name in (*ways, AGAIN)}
    used: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="delayq-bench-") as folder, running_server() as server:
        text = server.description()
        rows = Path(folder, "rows.parquet")
        _make_rows(rows, jobs)
        with _sparks(rows, server) as ask, MemoryWatch(os.getpid()) as memory:
            _empty(server)
            ask("write")
            pipe = _Pipe(server, jobs, Path(folder, "pipe")) if PIPE in ways else None
            if pipe is not None:
                pipe.load()
            for n in range(rounds):
                for name in ways[:: -1 if n % 2 else 1]:
                    _empty(server)
                    if name == PIPE:
                        assert pipe is not None
                        rates[PIPE].append(jobs / pipe.load())
                        continue
                    before = cpu_seconds(os.getpid())
                    rates[SPARK].append(jobs / ask("write"))
                    used += cpu_seconds(os.getpid()) - before
                    rates[AGAIN].append(jobs / ask("again"))
                    _check(server, jobs)
            stored = _memory_of(server)
    return _report(
        f"{jobs:,} rows, {SHARDS} shards, {text}, medians of {rounds}",
        rates,
        [
            "CPU of a row in µs: "
            + ", ".join(f"{name} {value * 1e6 / jobs / rounds:.2f}" for name, value in used.items()),
            "most memory in MB: " + ", ".join(f"{name} {value / 1e6:,.0f}" for name, value in memory.peak.items()),
            f"Redis holds {stored / 1e6:,.0f} MB at the end, {stored / jobs:.0f} bytes for a job",
        ],
    )


def _report(title: str, rates: dict[str, list[float]], notes: list[str]) -> Report:
    spark, again = median(rates[SPARK]), median(rates[AGAIN])
    report = Report("spark_bulk", title, ("way in", "rows/s"), notes=notes)
    report.rows = [(name, median(values)) for name, values in rates.items()]
    report.figures = {
        "rows_per_second": spark,
        "again_per_second": again,
        "rounds": rates,
        "again_ratio": again / spark,
    }
    if PIPE in rates:
        floor = median(rates[PIPE])
        report.figures |= {"pipe_per_second": floor, "ratio": spark / floor}
        report.notes.append("redis-cli writes the keys and values that Spark wrote, without reading existing ones")
        report.bars.append(Bar("x redis-cli --pipe", spark / floor, RATIO))
    report.bars.append(Bar("resume x first run", again / spark, RESUME))
    return report


def _memory_of(server: Server) -> int:
    with contextlib.closing(server.client()) as client:
        return int(client.info("memory")["used_memory"])


def _make_rows(path: Path, jobs: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, _schema()) as writer:
        for at in range(0, jobs, 100_000):
            some = range(at, min(at + 100_000, jobs))
            writer.write_table(
                pa.table(
                    {
                        "id": [f"sms:{n:09d}:2030-03-17" for n in some],
                        "due_ms": [_DUE_MS + n % 3_600_000 for n in some],
                        "args": [[f"{n:040d}", "x" * 50] for n in some],
                    },
                    schema=_schema(),
                )
            )


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([("id", pa.string()), ("due_ms", pa.int64()), ("args", pa.list_(pa.string()))])


@contextlib.contextmanager
def _sparks(rows: Path, server: Server) -> Iterator[Any]:
    """Start Spark in a process of its own; ``ask(what)`` returns the seconds that it took."""
    command = [sys.executable, "-m", "benchmarks.spark_bulk", str(rows), server.url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(what: str) -> float:
        print(what, file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("Spark ended; its output is above")
        return float(json.loads(line)["seconds"])

    try:
        yield ask
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


class _Pipe:
    """Commands for ``redis-cli --pipe`` that store the keys that Spark wrote."""

    def __init__(self, server: Server, jobs: int, path: Path) -> None:
        self._server = server
        self._path = path
        self._command = [redis_cli(), "-s", server.socket, "--pipe"]
        with contextlib.closing(server.client()) as redis, path.open("wb") as out:
            found = 0
            for body in sorted(redis.scan_iter("*:body", count=1000)):
                stem = body[: -len(b"body")]
                (due,) = (key for key in redis.scan_iter(stem + b"due*", count=1000))
                waiting = redis.zrange(due, 0, -1, withscores=True)
                for at in range(0, len(waiting), 5_000):
                    some = waiting[at : at + 5_000]
                    for (ident, score), value in zip(some, redis.hmget(body, [one for one, _ in some]), strict=True):
                        out.write(_command(b"HSET", body, ident, value) + _command(b"ZADD", due, b"%d" % score, ident))
                found += len(waiting)
            assert found == jobs, f"{found} of {jobs} jobs were written"

    def load(self) -> float:
        """Load the commands; return the seconds."""
        _empty(self._server)
        began = time.monotonic()
        with self._path.open("rb") as commands:
            subprocess.run(self._command, stdin=commands, stdout=subprocess.DEVNULL, check=True)
        return time.monotonic() - began


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _empty(server: Server) -> None:
    with contextlib.closing(server.client()) as client:
        client.flushall()


def _check(server: Server, jobs: int) -> None:
    with contextlib.closing(server.client()) as client:
        found = sum(client.hlen(key) for key in client.scan_iter("*:body", count=1000))
    assert found == jobs, f"{found} of {jobs} jobs are there"


def _serve(rows: str, url: str) -> None:
    """Serve as the Spark process: read commands, line by line."""
    from django_delayq.pipeline.session import SessionOptions, opened

    with opened(SessionOptions(master="local[2]")) as spark:
        run_id = ""
        for n, line in enumerate(sys.stdin):
            run_id = f"run-{n}" if line.strip() == "write" else run_id
            began = time.monotonic()
            said = {
                "redis": url,
                "queue": "q",
                "task": "shop.send_sms",
                "shards": str(SHARDS),
                "runId": run_id,
                "close": "false",
            }
            spark.read.parquet(rows).write.format("delayq").options(**said).mode("append").save()
            print(json.dumps({"seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:3])
