"""Shared stage of the tests of bulk loads: jobs with given keys, complete bulk loads, and their remains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django_delayq.core import Broker, Job, NewJob, Payload, Queue, ack, loads
from django_delayq.core.loads import (
    DAY_MS,
    FORM as LOAD_FORM,
    KEPT_MS,
    BulkLoad,
    BulkLoadDiffers,
    BulkLoadLimits,
    BulkLoadWriter,
    ChunksLost,
    LoadEntry,
    close_load,
    entry_of,
    keep_load,
    open_load,
    read_load,
)
from django_delayq.core.resharding import EpochChanges
from tests.support.core_stored import shard_key

from .epochs_stage import forget_calls, take_all
from .stage import Stage

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
    return open_load(stage.broker, load_id, "q", **options)


def list_loads(broker: Broker) -> list[BulkLoad]:
    """Return all recorded bulk loads, sorted by their ids."""
    stem = broker.key("load:")
    names = sorted(key.decode().removeprefix(stem) for key in broker.client.scan_iter(f"{stem}*"))
    return [load for name in names if (load := read_load(broker, name))]


def write(
    broker: Broker,
    load: BulkLoad,
    news: Iterable[NewJob],
    limits: BulkLoadLimits | None = AT_ONCE,
    room: dict[str, int] | None = None,
) -> Counter[str]:
    """Write all rows.

    Args:
        room: other values of attributes of the sender.
    """
    return write_all(writer_of(broker, load, limits, room), news)


def write_all(writer: BulkLoadWriter, news: Iterable[NewJob]) -> Counter[str]:
    """Write jobs and finish, as a task of the pipeline does it."""
    try:
        writer.add(map(entry_of, news))
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def writer_of(
    broker: Broker, load: BulkLoad, limits: BulkLoadLimits | None = None, room: dict[str, int] | None = None
) -> BulkLoadWriter:
    return type("Writer", (BulkLoadWriter,), room or {})(broker, load, limits)  # type: ignore[no-any-return]


def collected_bytes(writer: BulkLoadWriter) -> int:
    """Return the size of the bodies that a sender has collected and not sent."""
    return sum(len(body) for waiting in writer._waiting.values() for _, _, body, *_ in waiting.rows.values())


def add_row(writer: BulkLoadWriter, new: NewJob) -> None:
    writer.add([entry_of(new)])


def write_some(broker: Broker, load: BulkLoad, n: int, of: int, **options: Any) -> None:
    """Write the first ``n`` rows, as far as they fill chunks, and abandon the sender."""
    writer = BulkLoadWriter(broker, load)
    for new in rows(of, **options)[:n]:
        add_row(writer, new)
    writer._send_collected()
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
    return loads.progress(broker, load)


def ledgers(broker: Broker) -> list[bytes]:
    return sorted(key for key in broker.client.scan_iter(f"{broker.prefix}:*") if b"}:load:" in key)


def retire_now(broker: Broker, name: str = "q") -> list[int]:
    """Retire old epochs at once, as if no call could be repeated any more."""
    forget_calls(broker.queue(name))
    return EpochChanges(broker.registry).retire(name)
