"""What a task of ``delayq.events`` does: its options, and reading intervals of streams without missing anything."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from ..core import events
from ..core.broker import Broker
from ..core.errors import DelayQError, InvalidJob, Misconfigured
from ..core.inputs import check_queue_name, short
from ..core.streams import BEGINNING, Entry, before, begin
from . import event_plan as plan
from .column_names import fault_of_case
from .errors import EventsLost
from .event_plan import Interval, Loss, Positions
from .event_rows import to_batch
from .redis_door import check_names, config_of, open_broker
from .schemas import EVENTS

log = logging.getLogger(__name__)

OPTIONS: Final = (
    "queue",
    "follow",
    "startingOffset",
    "maxRowsPerTrigger",
    "fetch",
    "trim",
    "consumer",
    "failOnDataLoss",
)
#: rows of one Arrow batch, at least
BATCH: Final = 10_000
#: entries that are made to columns at once; so many stay in the processor's cache
PIECE: Final = 2_000
_ARROW: Final = {
    "string": pa.string(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map": pa.map_(pa.string(), pa.string()),
}


@dataclass(frozen=True, slots=True)
class EventsOptions:
    """The options of the data source beside those of :mod:`.redis_door`, read and checked."""

    #: their names; none = every queue, those to come included
    queues: tuple[str, ...] = ()
    #: those that the consumer reads now or another time, so that nothing of them is taken off; none = every queue
    follows: tuple[str, ...] = ()
    #: earliest, latest or positions
    start: str | Positions = "earliest"
    max_rows: int = 500_000
    #: entries that are asked for in one call
    fetch: int = 500
    #: note in Redis how far was read, and let it take off what all have read
    trim: bool = False
    #: under which name
    consumer: str = "history"
    fail_on_loss: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> EventsOptions:
        """The options as Spark hands them over.

        Raises:
            Misconfigured: one is unknown or unusable; the text says what to write.
        """
        check_names(options, OPTIONS)
        config_of(options)
        try:
            queues = _queues(options, "queue", "*")
            return cls(
                queues=queues,
                follows=_follows_of(options, queues),
                start=plan.parse_start(options.get("startingOffset", "earliest")),
                max_rows=_whole(options, "maxRowsPerTrigger", 500_000, 10**12),
                fetch=_whole(options, "fetch", 500, 10_000),
                trim=_flag(options, "trim", False),
                consumer=events.check_consumer(options.get("consumer", "history")),
                fail_on_loss=_flag(options, "failOnDataLoss", True),
            )
        except InvalidJob as error:
            raise Misconfigured(str(error)) from error


def _queues(options: Mapping[str, str], option: str, default: str) -> tuple[str, ...]:
    names = [name.strip() for name in options.get(option, default).split(",") if name.strip()]
    if not names:
        raise Misconfigured(f"option {option} is a name, several with commas between them, or * for every queue")
    return () if "*" in names else tuple(sorted(check_queue_name(name) for name in set(names)))


def _follows_of(options: Mapping[str, str], queues: tuple[str, ...]) -> tuple[str, ...]:
    found = _queues(options, "follow", ",".join(queues) or "*")
    if found and not (queues and set(queues) <= set(found)):
        raise Misconfigured("what is read is kept for its reader: option follow must name all of them that queue does")
    return found


def _whole(options: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most:
        return int(text)
    raise Misconfigured(f"option {name} is a whole number from 1 to {most}, not {short(text)}")


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise Misconfigured(f"option {name} is true or false, not {short(text)}")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow form of a part of ``EVENTS``, exactly as Spark wants it back.

    Raises:
        Misconfigured: there is a column that events do not have, or of another type.
    """
    types = {field.name: field.dataType for field in EVENTS}
    for field in schema:
        if types.get(field.name.lower()) != field.dataType:
            raise Misconfigured(
                f"delayq.events has no column {field.name} {field.dataType.simpleString()}; its columns are: "
                + ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
            )
    return pa.schema([pa.field(one.name, _ARROW[one.dataType.typeName()], nullable=one.nullable) for one in schema])


@dataclass
class EventsPartition(InputPartition):
    """What one task reads."""

    intervals: list[Interval]


class TaskReader:
    """What runs on executors: the events of a partition."""

    def __init__(self, options: Any, schema: StructType) -> None:
        self.options = options.copy()  # dict() would forget that case does not matter
        self.chosen = EventsOptions.parse(self.options)
        self.arrow = arrow_schema(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of a partition, in batches.

        Raises:
            EventsLost: something is gone that was there when the batch was planned.
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
    """Lists of bytes are no cycles, but while they are made Python's collector looks through them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def united(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows in one batch, or none."""
    return batches if len(batches) < 2 else pa.Table.from_batches(batches).combine_chunks().to_batches()


def walk(broker: Broker, interval: Interval, options: EventsOptions) -> Iterator[list[Entry]]:
    """The entries of an interval, at least :data:`PIECE` at a time.

    Each question repeats the last entry of the answer before: if that is gone, others may be that were never told. The
    next question is on its way while an answer is worked on.

    Raises:
        EventsLost: so it was; unless the options say to go on.
    """
    position, known, gathered = interval.after, False, list[Entry]()

    def ask() -> Callable[[], list[Entry]]:
        return begin(broker, interval.queue, interval.number, position, interval.until, options.fetch + 1)

    def lost(why: str) -> None:
        report([Loss(interval.queue, interval.number, position, why)], options)

    asked: Callable[[], list[Entry]] | None = ask()
    try:
        while asked is not None:
            answer, asked = asked, None
            entries = answer()
            if entries and entries[0][0].decode() == position:
                del entries[0]
            elif known or not _follows(interval.after, entries):
                lost("the entry there was taken off while it was read")
            if entries:
                position, known = entries[-1][0].decode(), True
                gathered += entries
                asked = ask() if position != interval.until else None
            elif position != interval.until:
                lost(f"the stream has no more, but went up to {interval.until} a moment ago")
            if len(gathered) >= PIECE:
                yield gathered
                gathered = []
    finally:
        if asked is not None:  # nobody wants the rest; the line is to be given back without half an answer on it
            with suppress(DelayQError):
                asked()
    if gathered:
        yield gathered


def _follows(after: str, entries: Sequence[Entry]) -> bool:
    """Whether nothing can have been between a position, at which there is no entry, and these."""
    return after == BEGINNING or (bool(entries) and before(entries[0][0].decode()) == after)


def report(losses: Sequence[Loss], options: EventsOptions) -> None:
    """Says that events were lost.

    Raises:
        EventsLost: unless the options say to go on.
    """
    if losses and options.fail_on_loss:
        raise EventsLost(plan.text_of(losses))
    for loss in losses:
        log.warning("events were lost, and failOnDataLoss is false: %s", loss)
