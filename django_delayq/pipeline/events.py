"""Data source ``delayq.events``: the outcome of every attempt, as a batch or as a stream.

::

    spark.readStream.format("delayq.events").option("redis", "redis://localhost:6379/0").load()

Spark runs the streaming reader in a process of its own to plan offsets and partitions; the tasks read them. The
positions are in Spark's checkpoint alone. A batch reads what is stored now, or from one offset to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ..core.broker import Broker
from ..core.events import COLUMNS, WIDTH, EventEntry, entries, parts, words_of
from . import event_plan as plan
from .event_plan import Interval, Loss, Offsets, Positions
from .options import SourceOptions, config_of, flag, open_broker, option, queue_names, whole, without_collector
from .schemas import EVENTS, check_columns

_INT64: Final = pa.int64()
_TEXT: Final = pa.string()
_TIME: Final = pa.timestamp("us", tz="UTC")
_EXTRA: Final = pa.map_(_TEXT, _TEXT)
#: the last millisecond, at the end of the year 9999, that Spark can read back from a timestamp
_LATEST_MS: Final = 253_402_300_799_999
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
    start: str | Positions = option("startingOffset", plan.check_offsets, "earliest")
    #: of a batch: latest, or positions that exist, as another reader has planned them
    end: str | Positions = option("endingOffset", plan.check_offsets, "latest")
    max_rows: int = option("maxRowsPerTrigger", whole(1, 10**12), 500_000)
    #: entries requested in one call
    fetch: int = option("fetch", whole(1, 10_000), 100)
    fail_on_loss: bool = option("failOnDataLoss", flag, True)


class EventsSource(DataSource):
    """``delayq.events``: the events of queues, with the columns of ``schemas.EVENTS`` or some of them."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "delayq.events"

    def schema(self) -> StructType:
        """Return all columns."""
        config_of(self.options)  # checked here, so that load() reports invalid options
        EventsOptions.parse(self.options)
        return EVENTS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for a batch query, which reads the events stored now."""
        return EventsReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a streaming reader."""
        return EventsStreamReader(self.options, schema)


# -- tasks ------------------------------------------------------------------------------------------------------------


@dataclass
class EventsPartition(InputPartition):
    """Partition read by one task."""

    intervals: list[Interval]


class TaskReader:
    """Reader of the events of a partition; runs on executors."""

    def __init__(self, options: Any, schema: StructType) -> None:
        self.options = options.copy()  # dict() would lose the case-insensitivity
        self.chosen = EventsOptions.parse(self.options)
        check_columns(schema, EVENTS, "an event")
        self.arrow = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a partition in batches.

        Raises:
            EventsLost: events that existed when the batch was planned are gone.
        """
        assigned = partition.intervals if isinstance(partition, EventsPartition) else []
        with open_broker(self.options) as broker, without_collector():
            small: list[pa.RecordBatch] = []
            for interval in assigned:
                for some in walk(broker, interval, self.chosen):
                    small.append(to_batch(some, interval.queue, interval.number, self.arrow))
                    if sum(batch.num_rows for batch in small) >= BATCH:
                        yield from united(small)
                        small = []
            yield from united(small)


def united(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Combine the rows into one batch, or none."""
    return batches if len(batches) < 2 else pa.Table.from_batches(batches).combine_chunks().to_batches()


def walk(broker: Broker, interval: Interval, options: EventsOptions) -> Iterator[list[EventEntry]]:
    """Yield the events of an interval, at least :data:`PIECE` at a time.

    Raises:
        EventsLost: events were trimmed, unless the options allow data loss.
    """
    position, gathered = interval.after, list[EventEntry]()
    while True:
        page = entries(broker, interval.queue, interval.number, position, options.fetch, until=interval.until)
        fault = _gap(position, page, interval.until)
        if fault:
            place = interval.queue, interval.number
            plan.report([Loss(place, position, fault)], fails=options.fail_on_loss)
        if page:
            position = page[-1].position
            gathered += page
        if sum(entry.size for entry in gathered) >= PIECE:
            yield gathered
            gathered = []
        if not page or position == interval.until:
            break
    if gathered:
        yield gathered


def _gap(position: str, page: Sequence[EventEntry], until: str) -> str:
    """Return which events are missing after a position, or "" if none is."""
    if not page:
        return f"the stream ends here, but went up to {until} when the batch was planned"
    missing = page[-1].last - parts(position)[0] - sum(entry.size for entry in page)
    return plan.text_of_gap(missing)


# -- rows -------------------------------------------------------------------------------------------------------------


def to_batch(entries: Sequence[EventEntry], queue: str, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the events of one shard as rows, in their order.

    Invalid UTF-8 is read with replacement characters; a malformed number becomes null.

    Args:
        schema: the requested columns; names and types are those of ``schemas.EVENTS``.
    """
    rows = _Rows(queue, number, entries)
    columns = [_MAKERS[field.name.lower()](rows).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Rows:
    """Events of one shard by column.

    The words of all events lie in one list, at equal distances for each column: a slice is a column, and no row is
    handled individually in Python.
    """

    def __init__(self, queue: str, number: int, entries: Sequence[EventEntry]) -> None:
        self.queue = queue
        self.shard = number
        self.entries = entries
        self._sizes = [entry.size for entry in entries]
        self._words = words_of(entries)

    def constant(self, value: Any, kind: pa.DataType) -> Any:
        return pa.repeat(pa.scalar(value, kind), sum(self._sizes))

    def by_event(self, values: Sequence[Any]) -> list[Any]:
        return [value for value, size in zip(values, self._sizes, strict=True) for _ in range(size)]

    def words(self, column: str) -> list[bytes]:
        return self._words[COLUMNS.index(column) :: WIDTH]

    def text(self, column: str) -> Any:
        return _optional(self.words(column))

    def number(self, column: str, least: int = 0, most: int = 2**63 - 1) -> Any:
        return _within(_numbers(self.words(column)), least, most)

    @cached_property
    def ms(self) -> Any:
        return pa.array(self.by_event([entry.ms for entry in self.entries]), _INT64)

    @cached_property
    def due_ms(self) -> Any:
        return self.number("due", most=_LATEST_MS)

    @cached_property
    def started_ms(self) -> Any:
        return self.number("started", 1, _LATEST_MS)

    def stream_id(self) -> Any:
        sizes = zip(self.entries, self._sizes, strict=True)
        numbers = [number for entry, size in sizes for number in range(entry.last - size + 1, entry.last + 1)]
        return pc.binary_join_element_wise(pa.array(numbers, pa.uint64()).cast(_TEXT), self.ms.cast(_TEXT), "-")

    def extra(self) -> Any:
        texts = [word.decode(errors="replace") for word in self.words("extra")]
        if not any(texts):
            return pa.nulls(len(texts), _EXTRA)
        return pa.array([[tuple(text.split(":", 1))] if ":" in text else None for text in texts], _EXTRA)


_MAKERS: Final[dict[str, Callable[[_Rows], Any]]] = {
    "queue": lambda rows: rows.constant(rows.queue, _TEXT),
    "shard": lambda rows: rows.constant(rows.shard, pa.int32()),
    "stream_id": _Rows.stream_id,
    "ts": lambda rows: _times(pc.fill_null(_within(rows.ms, 0, _LATEST_MS), _LATEST_MS)),
    "outcome": lambda rows: _texts(rows.words("outcome")),
    "id": lambda rows: rows.text("id"),
    "task": lambda rows: rows.text("task"),
    "key": lambda rows: rows.text("key"),
    "worker": lambda rows: _optional(rows.by_event([entry.worker for entry in rows.entries])),
    "error_class": lambda rows: rows.text("error"),
    "due": lambda rows: _times(rows.due_ms),
    "started": lambda rows: _times(rows.started_ms),
    "lateness_ms": lambda rows: pc.max_element_wise(pc.subtract(rows.started_ms, rows.due_ms), 0, skip_nulls=False),
    "duration_ms": lambda rows: pc.if_else(pc.is_valid(rows.started_ms), rows.number("ms"), pa.scalar(None, _INT64)),
    "attempt": lambda rows: rows.number("attempt", most=2**31 - 1),
    "jobs": lambda rows: rows.number("jobs"),
    "created": lambda rows: rows.number("created"),
    "extra": _Rows.extra,
}


def _texts(values: Sequence[bytes | None]) -> Any:
    try:
        return pa.array(values, _TEXT)
    except pa.ArrowInvalid:
        return pa.array([value and value.decode(errors="replace") for value in values], _TEXT)


def _optional(values: list[bytes]) -> Any:
    """Return texts with null for those that are empty."""
    if not any(values):
        return pa.nulls(len(values), _TEXT)
    return _texts([value or None for value in values] if b"" in values else values)


def _numbers(values: list[bytes]) -> Any:
    try:
        return _optional(values).cast(_INT64)
    except pa.ArrowInvalid:
        return pa.array([_number(value) for value in values], _INT64)


def _number(value: bytes) -> int | None:
    # Longer ones do not fit, and int() would waste time on them.
    return int(value) if value.isdigit() and len(value) <= 18 else None


def _within(numbers: Any, least: int, most: int) -> Any:
    """Return the numbers with null for those outside of the limits."""
    ends = pc.min_max(numbers)
    if ends["min"].as_py() is None or (ends["min"].as_py() >= least and ends["max"].as_py() <= most):
        return numbers
    fits = pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, most))
    return pc.if_else(fits, numbers, pa.scalar(None, _INT64))


def _times(ms: Any) -> Any:
    return pc.multiply(ms, 1000).cast(_TIME)


# -- batch ------------------------------------------------------------------------------------------------------------


class EventsReader(TaskReader, DataSourceReader):
    """Reader of the events that exist when the query is planned, or between two offsets."""

    def partitions(self) -> list[InputPartition]:
        """Return one partition per large shard; smaller shards share one."""
        start, end = self.chosen.start, self.chosen.end
        if isinstance(start, str) or isinstance(end, str):
            with open_broker(self.options) as broker:
                planner = plan.Planner(broker, self.chosen.queues, fails=self.chosen.fail_on_loss)
                start, last = planner.batch(planner.first(start))
                end = last if isinstance(end, str) else end
        return [EventsPartition(task) for task in plan.intervals(start, end)]


# -- streaming --------------------------------------------------------------------------------------------------------


class EventsStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader that continues from the offsets in Spark's checkpoint."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that tasks need, without the planner and its connections."""
        return {"options": self.options, "chosen": self.chosen, "arrow": self.arrow}

    @cached_property
    def _open(self) -> tuple[ExitStack, plan.Planner]:
        stack = ExitStack()
        broker = stack.enter_context(open_broker(self.options))
        return stack, plan.Planner(broker, self.chosen.queues, fails=self.chosen.fail_on_loss)

    @property
    def _planner(self) -> plan.Planner:
        return self._open[1]

    def stop(self) -> None:
        """Close the connections of the planner."""
        if "_open" in self.__dict__:
            self._open[0].close()
            del self._open

    def initialOffset(self) -> Offsets:
        """Return the position at which a query without a checkpoint begins."""
        return plan.to_offsets(self._planner.first(self.chosen.start))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the configured maximum number of rows per batch."""
        return ReadMaxRows(self.chosen.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Offsets:
        """Return the end of the next batch.

        Raises:
            EventsLost: unread events are gone.
        """
        positions = plan.to_positions(start)
        begin, end = self._planner.batch(positions, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        others = {place: at for place, at in positions.items() if place not in begin}
        # A shard whose stream is another one leaves, and joins the next batch, which reads it from its beginning.
        same = {place: at for place, at in end.items() if positions.get(place, begin.get(place)) == begin.get(place)}
        return plan.to_offsets({**others, **same})

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at the present positions; later events are left to the next query."""
        self._planner.fix_target()

    def reportLatestOffset(self) -> Offsets:
        """Return the latest positions at the last planning, for the progress report of the query."""
        return plan.to_offsets(self._planner.newest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of a batch."""
        tasks = plan.intervals(plan.to_positions(start), plan.to_positions(end))
        return [EventsPartition(task) for task in tasks]
