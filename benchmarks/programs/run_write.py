"""Bulk load through the core, as one task of the data pipeline does it: the rows are prepared, and written twice."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.loads import BulkLoad, BulkLoadWriter, LoadEntry, entry_of, open_load
from django_delayq.core.redis.connection import RedisConfig, connect

QUEUE = "sms"
SHARDS = 4
TASK = "sms.send"
FIRST_DUE = 1_900_000_000_000
PAYLOAD = b"p" * 100
BATCH = 10_000


def batches(jobs: int) -> Iterator[list[LoadEntry]]:
    """Yield batches as Spark does: ids of 23 bytes, one due time for each second of a day, 100 bytes of arguments."""
    kind = entry_of(NewJob("x", TASK, due_ms=0, delay_ms=None, on_conflict="ignore"))[3]
    for start in range(0, jobs, BATCH):
        numbers = range(start, min(start + BATCH, jobs))
        yield [(b"customer-%014d" % n, FIRST_DUE + n % 86_400 * 1000, PAYLOAD, kind, ()) for n in numbers]


def write(broker: Broker, run: BulkLoad, rows: list[list[LoadEntry]]) -> tuple[float, float]:
    """Write all rows; return wall and CPU seconds."""
    started, cpu = time.perf_counter(), time.process_time()
    writer = BulkLoadWriter(broker, run)
    for some in rows:
        writer.add(some)
    assert writer.finish() == {"created": sum(map(len, rows))}
    return time.perf_counter() - started, time.process_time() - cpu


def main(jobs: int) -> None:
    """Print when it is ready; then write everything once for each line on standard input."""
    broker = Broker(connect(RedisConfig.parse(f"unix://{os.environ['BENCH_SOCKET']}")))
    broker.queue(QUEUE, shards=SHARDS)
    run = open_load(broker, "bench", QUEUE)
    rows = list(batches(jobs))
    print("ready", flush=True)
    for _ in sys.stdin:
        seconds, cpu = write(broker, run, rows)
        print(json.dumps({"seconds": seconds, "cpu": cpu}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
