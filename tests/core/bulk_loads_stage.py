"""Shared stage of the tests of bulk loads: jobs with given keys, complete bulk loads, and their remains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django_delayq.core import Broker, Job, NewJob, Payload, Queue, ack
from django_delayq.core.records.bulk_load_frames import NO_CODE, Frame, Rows, Shape, entry_of, key_of, with_keys
from django_delayq.core.resharding import EpochChanges
from django_delayq.core.sending import bulk_loads
from django_delayq.core.sending.bulk_load_limits import BulkLoadLimits, BulkLoadStopped, BulkLoadWait
from django_delayq.core.sending.bulk_load_writer import (
    ROOM,
    BulkLoadClosed,
    BulkLoadWriter,
    WriterRoom,
    Written,
    write_all,
)
from django_delayq.core.sending.bulk_loads import (
    CLOSED_MS,
    BulkLoad,
    BulkLoadDiffers,
    ChunksLost,
    close_load,
    forget_load,
    list_loads,
    open_load,
    read_load,
)
from django_delayq.core.sending.bulk_loads import FORM as LOAD_FORM
from django_delayq.core.sending.bulk_loads import OPEN as OPEN_LOAD
from django_delayq.core.sending.bulk_loads import forget_old as forget_old_loads
from tests.support.core_stored import shard_key

from .epochs_stage import take_all
from .stage import Stage

__all__ = [
    "AT_ONCE",
    "CLOSED_MS",
    "FAR",
    "LOAD_FORM",
    "NO_CODE",
    "OPEN_LOAD",
    "ROOM",
    "BulkLoad",
    "BulkLoadClosed",
    "BulkLoadDiffers",
    "BulkLoadLimits",
    "BulkLoadStopped",
    "BulkLoadWait",
    "BulkLoadWriter",
    "ChunksLost",
    "Frame",
    "Rows",
    "Shape",
    "WriterRoom",
    "add_row",
    "close_load",
    "collected",
    "counted",
    "entry_of",
    "forget_load",
    "forget_old_loads",
    "idents",
    "key_of",
    "ledgers",
    "list_loads",
    "live",
    "merged_row",
    "open_ledgers",
    "open_load",
    "open_on",
    "read_load",
    "retire_now",
    "row",
    "rows",
    "send_collected",
    "with_keys",
    "work_off",
    "write",
    "write_all",
    "write_some",
]


FAR = 4_000_000_000_000  # Unix ms: nothing is due
AT_ONCE = BulkLoadLimits(patience=0)


def row(number: int | str, *, due: int = FAR, **options: Any) -> NewJob:
    """Return row ``number`` of an input, a plain job."""
    options = {"on_conflict": "ignore", "args": b"[%b]" % str(number).encode()} | options
    return NewJob(f"r{number}", "work", due_ms=due, delay_ms=None, **options)


def rows(n: int, *, due: int = FAR, **options: Any) -> list[NewJob]:
    return [row(number, due=due, **options) for number in range(n)]


def merged_row(ident: str, data: bytes, score: str = "1", *, due: int = FAR, **options: Any) -> NewJob:
    options = {"on_conflict": "merge", "due_policy": "keep"} | options
    return NewJob(ident, "sync", due_ms=due, delay_ms=None, payload=Payload(data, score, b""), **options)


def open_on(stage: Stage, load_id: str = "a", **options: Any) -> BulkLoad:
    return bulk_loads.open_load(stage.broker, load_id, "q", **options)


def write(
    broker: Broker,
    load: BulkLoad,
    news: Iterable[NewJob],
    limits: BulkLoadLimits | None = AT_ONCE,
    stop: Callable[[], bool] = lambda: False,
    room: WriterRoom = ROOM,
) -> Written:
    return write_all(BulkLoadWriter(broker, load, limits, stop, room=room), news)


@dataclass(frozen=True)
class Collected:
    """Rows that a sender has collected and not sent."""

    bytes: int
    #: the same as the sender counts it
    counted_bytes: int
    shapes: int


def collected(writer: BulkLoadWriter) -> Collected:
    tables = writer._tables
    size = sum(chunk.size for table in tables.values() for chunk in table.values())
    return Collected(size, writer._waiting_bytes, len(tables))


def send_collected(writer: BulkLoadWriter) -> None:
    """Send what a sender has collected, and read the replies; do not finish."""
    writer._dispatch_all()
    writer._calls.finish()


def add_row(writer: BulkLoadWriter, new: NewJob) -> None:
    """Pass a row to a sender, with the key that it has in this bulk load."""
    writer.add(*entry_of(with_keys(writer.load.id, new)))


def write_some(broker: Broker, load: BulkLoad, n: int, of: int, **options: Any) -> None:
    """Write the first ``n`` rows, as far as they fill chunks, and abandon the sender."""
    writer = BulkLoadWriter(broker, load)
    for new in rows(of, **options)[:n]:
        add_row(writer, new)
    writer._calls._send_collected()
    writer.abandon()


def work_off(queue: Queue) -> int:
    """Run all due jobs and return their number."""
    done = 0
    while jobs := take_all(queue):
        assert all(queue.settle([ack(job, 1, 2) for job in jobs]))
        done += len(jobs)
    return done


def live(broker: Broker, name: str = "q") -> int:
    """Return the number of live jobs, from the bodies of every shard."""
    queue = broker.queue(name)
    return sum(broker.client.hlen(shard_key(queue, "body", number)) for number in queue.numbers)


def counted(broker: Broker, load: BulkLoad) -> Counter[str]:
    return bulk_loads.progress(broker, load)


def ledgers(broker: Broker) -> list[bytes]:
    return sorted(key for key in broker.client.scan_iter(f"{broker.prefix}:*") if b":load:" in key)


def open_ledgers(broker: Broker) -> list[bytes]:
    """Return the permanent ledgers, without those that expire and only refuse late senders."""
    return [key for key in ledgers(broker) if broker.client.pttl(key) < 0]


def retire_now(broker: Broker, name: str = "q") -> list[int]:
    """Retire old epochs at once, as if no call could be repeated any more."""
    queue = broker.queue(name)
    for number in queue.numbers:
        names = queue.shard(number).names
        broker.client.delete(names["window"], names["reply"])
    return EpochChanges(broker.registry).retire(name)


def idents(jobs: Iterable[Job]) -> list[str]:
    return sorted(job.id for job in jobs)
