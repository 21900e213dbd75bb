"""Benchmark of ``spark.read.format("delayq.events")`` with two tasks against a bare ``XRANGE`` in one process.

The bare reader requests 100 entries at a time, splits them into words and discards these. Replies are parsed by hiredis
where that is installed (in Spark's tasks, too), else by redis-py, which is many times slower.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import redis

from benchmarks.core import broker_on
from benchmarks.report import Bar, Report, median
from benchmarks.server import Server, running_server
from django_delayq.core.events import FIELD, WIDTH, entry_of, words_of
from django_delayq.core.job import Job
from django_delayq.core.outcomes import ack, fail
from django_delayq.core.records.frames import pack_attempt

RATIO = 0.15
SHARDS = 4
FETCH = 100
#: events that workers settle in one call
TOGETHER = 20
#: warm-up rounds until Java has compiled the hot code
WARM = 3
T0 = 1_763_700_000_000


def run(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, only: tuple[str, ...] = ()
) -> Report:
    """Run interleaved rounds after uncounted warm-up rounds. ``jobs`` is the number of events; ``only`` is not used."""
    events = (jobs or (10_000 if quick else 300_000)) // SHARDS * SHARDS
    rounds = rounds or (1 if quick else 5)
    parser = "hiredis" if importlib.util.find_spec("hiredis") else "redis-py"
    with running_server() as server, _spark() as spark:
        text = server.description()
        keys = _fill(server, events)
        frame = spark.read.format("delayq.events").option("redis", server.url).load()
        ways: dict[str, Callable[[], int]] = {
            "bare XRANGE, one process": lambda: _bare(server, keys),
            "delayq.events, two tasks": lambda: _read(frame, events),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        assert frame.count() == events
        for turn in range(WARM + rounds):
            for name, way in ways.items():
                began_at = time.perf_counter()
                assert way() == events
                if turn >= WARM:
                    rates[name].append(events / (time.perf_counter() - began_at))
    bare, ours = (median(values) for values in rates.values())
    title = f"{events:,} events, {SHARDS} shards, {text}, replies parsed by {parser}, medians of {rounds}"
    report = Report("events", title, ("reader", "events/s", "µs/event"))
    report.rows = [(name, median(values), 1e6 / median(values)) for name, values in rates.items()]
    report.figures = {
        "events_per_second": ours,
        "bare_per_second": bare,
        "ratio": ours / bare,
        "parser": parser,
        "rounds": rates,
    }
    report.bars = [Bar("× bare XRANGE", ours / bare, RATIO)]
    return report


@contextlib.contextmanager
def _spark() -> Any:
    from django_delayq.pipeline.events import EventsSource
    from django_delayq.pipeline.session import SessionOptions, build

    spark = build(SessionOptions(master="local[2]", app="benchmark"))
    try:
        spark.dataSource.register(EventsSource)
        yield spark
    finally:
        spark.stop()


def _fill(server: Server, events: int) -> list[bytes]:
    """Store events of finished attempts as workers write them, equally many in each shard."""
    with broker_on(server) as broker:
        queue = broker.queue("orders", shards=SHARDS)
        keys = [queue.shard(number).names["event"] for number in queue.numbers]
        per_shard = events // SHARDS
        for place, key in enumerate(keys):
            for start in range(0, per_shard, 5_000):
                with broker.client.pipeline(transaction=False) as pipe:
                    for first in range(start, min(start + 5_000, per_shard), TOGETHER):
                        numbers = range(first, min(first + TOGETHER, per_shard))
                        packed = b"".join([_event(place, number) for number in numbers])
                        position = f"{numbers[-1] + 1}-{T0 + numbers[-1]}"
                        pipe.xadd(key, {"worker": f"host-1:{place}", FIELD: packed}, id=position)
                    pipe.hset(queue.shard(queue.numbers[place]).names["meta"], "last_event", position)
                    pipe.execute()
    return keys


def _event(place: int, number: int) -> bytes:
    due = T0 + number - 40
    job = Job("orders", place, f"order-{place}-{number}", "shop.cancel_order", number.to_bytes(16), b"", b"", 4, due)
    if number % 50:
        return pack_attempt(ack(job, due + 10, 30))
    return pack_attempt(fail(job, due + 10, 30, delay_ms=0, error_class="ValueError"))


def _bare(server: Server, keys: list[bytes]) -> int:
    seen = 0
    with contextlib.closing(redis.Redis(unix_socket_path=server.socket)) as client:
        pool: Any = client.connection_pool
        line = pool.get_connection()
        for key in keys:
            position = b"-"
            while True:
                line.send_command("XRANGE", key, position, "+", "COUNT", FETCH)
                entries = line.read_response()
                if not entries:
                    break
                read = [entry_of(ident, dict(zip(words[::2], words[1::2], strict=True))) for ident, words in entries]
                seen += len(words_of(read)) // WIDTH
                position = b"(" + entries[-1][0]
        pool.release(line)
    return seen


def _read(frame: Any, events: int) -> int:
    frame.write.format("noop").mode("append").save()
    return events
