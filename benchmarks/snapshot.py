"""Benchmark of reading the whole queue through Spark against one process that scans it with the same calls to Redis.

Ids and due times: against ZRANGE WITHSCORES, 1,000 at a time. All columns: against the reader of the core, which makes
the same script calls as Spark's tasks do.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.report import Bar, Report, median
from benchmarks.server import Server, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from django_delayq.core.broker import Broker

QUEUE = "snapshot"
SHARDS = 4
PAGE = 1000
IDS_BAR = 0.80
ALL_BAR = 0.80


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Run all contenders in turn, after one warm-up round. ``only`` is not used."""
    jobs = jobs or (300_000 if quick else 1_000_000)
    rounds = rounds or (3 if quick else 5)
    with running_server() as server, _broker(server) as broker, _spark() as spark:
        _fill(broker, jobs)
        readers = _readers(broker, spark, server)
        rates: dict[str, list[float]] = {name: [] for name in readers}
        for turn in range(rounds + 1):
            for name, read in readers.items():
                started = time.perf_counter()
                read(jobs)
                if turn:
                    rates[name].append(jobs / (time.perf_counter() - started))
        title = f"{jobs:,} jobs, {SHARDS} shards, {server.description()}, local[2], medians of {rounds}"
    return _report(title, rates)


def _report(title: str, rates: dict[str, list[float]]) -> Report:
    scan, ids, columns, everything = (median(values) for values in rates.values())
    report = Report("snapshot", title, ("reader", "jobs/s", "µs/job"))
    report.rows = [(name, median(values), 1e6 / median(values)) for name, values in rates.items()]
    hiredis = importlib.util.find_spec("hiredis") is not None
    report.notes.append(f"redis-py {'with' if hiredis else 'without'} hiredis")
    report.figures = {
        "ids_ratio": ids / scan,
        "all_ratio": everything / columns,
        "hiredis": hiredis,
        "rounds": rates,
    }
    report.bars = [
        Bar("ids and due, × one ZRANGE scan", ids / scan, IDS_BAR),
        Bar("all columns, × one scan by the same script", everything / columns, ALL_BAR),
    ]
    return report


def _readers(broker: Broker, spark: SparkSession, server: Server) -> dict[str, Callable[[int], None]]:
    from django_delayq.core.snapshot import Part, read_jobs

    queue = broker.queue(QUEUE)
    parts = [Part(QUEUE, number, "waiting") for number in queue.numbers]

    def zrange(jobs: int) -> None:
        seen = 0
        for number in queue.numbers:
            key, at = queue.shard(number).names["due.4"], 0
            while found := broker.client.zrange(key, at, at + PAGE - 1, withscores=True):
                seen, at = seen + len(found), at + PAGE
        _check(seen, jobs)

    def columns(jobs: int) -> None:
        read = (some for part in parts for some in read_jobs(broker, part))
        _check(sum(len(list(zip(*some.values(), strict=True))) for some in read), jobs)

    def through_spark(schema: str) -> Callable[[int], None]:
        def read(jobs: int) -> None:
            reader: Any = spark.read.format("delayq").options(redis=server.url, queue=QUEUE, states="waiting")
            loaded = (reader.schema(schema) if schema else reader).load()
            loaded.write.format("noop").mode("overwrite").save()

        return read

    return {
        "ZRANGE scan, one process": zrange,
        "Spark, ids and due": through_spark("id string, due timestamp"),
        "core's reader, one process": columns,
        "Spark, all columns": through_spark(""),
    }


def _check(seen: int, jobs: int) -> None:
    if seen != jobs:
        raise RuntimeError(f"{seen} jobs were read of {jobs}")


def _fill(broker: Broker, jobs: int) -> None:
    """Schedule jobs with ids of 22 characters, 100 bytes of arguments and distinct due times."""
    from django_delayq.core.job import NewJob

    queue = broker.queue(QUEUE, shards=SHARDS)
    first = int(time.time() * 1000) + 86_400_000
    queue.count_many(
        NewJob(
            f"customer-{number:013d}", "shop.remind", args=b'["%b"]' % (b"x" * 96), due_ms=first + number, delay_ms=None
        )
        for number in range(jobs)
    )


@contextlib.contextmanager
def _broker(server: Server) -> Iterator[Broker]:
    from django_delayq.core.broker import Broker
    from django_delayq.core.redis.connection import RedisConfig, connect

    connection = connect(RedisConfig.parse(server.url))
    try:
        yield Broker(connection)
    finally:
        connection.close()


@contextlib.contextmanager
def _spark() -> Iterator[SparkSession]:
    from django_delayq.pipeline.jobs import JobsSource
    from django_delayq.pipeline.session import SessionOptions, build

    spark = build(SessionOptions(master="local[2]", app="snapshot"))
    try:
        spark.dataSource.register(JobsSource)
        yield spark
    finally:
        spark.stop()
