"""A bulk write through the core, as one task of the data pipeline does it: the rows are ready, and go in twice."""

from __future__ import annotations

import json
import os
import sys
import time

from django_delayq.core.broker import Broker
from django_delayq.core.connection import RedisConfig, connect
from django_delayq.core.runframes import Entry, Shape
from django_delayq.core.runs import Run, key_of, open_run
from django_delayq.core.runwriter import RunWriter

QUEUE = "sms"
SHARDS = 4
TASK = "sms.send"
FLAGS = 36  # priority 4, version 1
FIRST_DUE = 1_900_000_000_000
PAYLOAD = b"p" * 100


def entries(jobs: int, run: str) -> list[Entry]:
    """Ids of 23 bytes, one due time for each second of a day, 100 bytes of arguments."""
    return [(ident, FIRST_DUE + number % 86_400 * 1000, key_of(run, ident) + PAYLOAD, b"")
            for number in range(jobs) for ident in (b"customer-%014d" % number,)]  # fmt: skip


def write(broker: Broker, run: Run, rows: list[Entry]) -> tuple[float, float]:
    """Wall and CPU seconds of writing them all."""
    shape = Shape.of(TASK, flags=FLAGS)
    started, cpu = time.perf_counter(), time.process_time()
    writer = RunWriter(broker, run)
    for row in rows:
        writer.add(shape, row)
    assert writer.finish().counts == {"created": len(rows)}
    return time.perf_counter() - started, time.process_time() - cpu


def main(jobs: int) -> None:
    """Says when it is ready; each line on standard input lets it write everything once."""
    broker = Broker(connect(RedisConfig.parse(f"unix://{os.environ['BENCH_SOCKET']}")))
    broker.queue(QUEUE, shards=SHARDS)
    run = open_run(broker, "bench", QUEUE)
    rows = entries(jobs, run.id)
    print("ready", flush=True)
    for _ in sys.stdin:
        seconds, cpu = write(broker, run, rows)
        print(json.dumps({"seconds": seconds, "cpu": cpu}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
