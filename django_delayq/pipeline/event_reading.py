"""Executor side of ``delayq.events``: its options, and a reader of stream intervals that detects missing events."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ..core.broker import Broker
from ..core.errors import DelayQError, Misconfigured
from ..core.events import EventEntry, begin, parts
from . import event_plan as plan
from .column_names import fault_of_case
from .errors import EventsLost
from .event_plan import Interval, Loss, Positions
from .event_rows import to_batch
from .option_fields import SourceOptions, flag, option, queue_names, whole
from .redis_options import open_broker
from .schemas import EVENTS, check_columns

log = logging.getLogger(__name__)

#: minimum number of rows of an Arrow batch
BATCH: Final = 10_000
#: number of events converted to columns at once, small enough for the processor's cache
PIECE: Final = 2_000


@dataclass(frozen=True, slots=True)
class EventsOptions(SourceOptions):
    """Selection of events, and how they are read."""

    #: queues to read; empty = every queue, future ones included
    queues: tuple[str, ...] = option("queue", queue_names, ())
    #: earliest, latest or positions
    start: str | Positions = option("startingOffset", plan.check_start, "earliest")
    max_rows: int = option("maxRowsPerTrigger", whole(1, 10**12), 500_000)
    #: entries requested in one call
    fetch: int = option("fetch", whole(1, 10_000), 100)
    fail_on_loss: bool = option("failOnDataLoss", flag, True)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a subset of ``EVENTS``, exactly as Spark expects it back.

    Raises:
        Misconfigured: a column does not exist in events, or has another type.
    """
    check_columns(schema, EVENTS, "an event")
    return to_arrow_schema(schema, timezone="UTC")


@dataclass
class EventsPartition(InputPartition):
    """Partition read by one task."""

    intervals: list[Interval]


class TaskReader:
    """Reader of the events of a partition; runs on executors."""

    def __init__(self, options: Any, schema: StructType) -> None:
        self.options = options.copy()  # dict() would lose the case-insensitivity
        self.chosen = EventsOptions.parse(self.options)
        self.arrow = arrow_schema(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a partition in batches.

        Raises:
            EventsLost: events that existed when the batch was planned are gone.
        """
        fault = fault_of_case(self.arrow.names)
        if fault:
            raise Misconfigured(fault)
        assigned = partition.intervals if isinstance(partition, EventsPartition) else []
        with open_broker(self.options) as broker, _without_collector():
            small: list[pa.RecordBatch] = []
            for interval in assigned:
                for entries in walk(broker, interval, self.chosen):
                    small.append(to_batch(entries, interval.queue, interval.number, self.arrow))
                    if sum(batch.num_rows for batch in small) >= BATCH:
                        yield from united(small)
                        small = []
            yield from united(small)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable Python's cyclic garbage collector during the block.

    Lists of bytes form no cycles, but creating many of them makes the collector scan them again and again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def united(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Combine the rows into one batch, or none."""
    return batches if len(batches) < 2 else pa.Table.from_batches(batches).combine_chunks().to_batches()


def walk(broker: Broker, interval: Interval, options: EventsOptions) -> Iterator[list[EventEntry]]:
    """Yield the events of an interval, at least :data:`PIECE` at a time.

    The next request is sent while a response is processed.

    Raises:
        EventsLost: events were trimmed, unless the options allow data loss.
    """
    position, gathered = interval.after, list[EventEntry]()

    def send() -> Callable[[], list[EventEntry]]:
        return begin(broker, interval.queue, interval.number, position, interval.until, options.fetch)

    read_reply: Callable[[], list[EventEntry]] | None = send()
    try:
        while read_reply is not None:
            entries, read_reply = read_reply(), None
            fault = _gap(position, entries, interval.until)
            if fault:
                report([Loss(interval.queue, interval.number, position, fault)], options)
            if entries:
                position = entries[-1].position
                gathered += entries
                read_reply = send() if position != interval.until else None
            if sum(entry.size for entry in gathered) >= PIECE:
                yield gathered
                gathered = []
    finally:
        if read_reply is not None:  # not needed, but the connection must be returned without half a reply on it
            with suppress(DelayQError):
                read_reply()
    if gathered:
        yield gathered


def _gap(position: str, entries: Sequence[EventEntry], until: str) -> str:
    """Return which events are missing after a position, or "" if none is."""
    if not entries:
        return f"the stream ends here, but went up to {until} when the batch was planned"
    missing = entries[-1].last - parts(position)[0] - sum(entry.size for entry in entries)
    return plan.text_of_gap(missing)


def report(losses: Sequence[Loss], options: EventsOptions) -> None:
    """Report lost events.

    Raises:
        EventsLost: unless the options allow data loss; then they are logged.
    """
    if losses and options.fail_on_loss:
        raise EventsLost(plan.text_of(losses))
    for loss in losses:
        log.warning("events were lost, and failOnDataLoss is false: %s", loss)
