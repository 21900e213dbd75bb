"""Data source ``delayq.events``: the outcome of every attempt, as a batch or as a stream.

::

    spark.readStream.format("delayq.events").option("redis", "redis://localhost:6379/0").load()

Spark runs the streaming reader in a process of its own to plan offsets and partitions; the tasks read them. The
positions are in Spark's checkpoint alone. A batch reads what is stored now, or from one offset to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ..core.events import (
    BEGINNING,
    COLUMNS,
    WIDTH,
    EventEntry,
    Place,
    Stream,
    entries,
    known_places,
    parts,
    streams,
    words_of,
)
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
            plan.report([Loss(interval.queue, interval.number, position, fault)], fails=options.fail_on_loss)
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
        self._queue = queue
        self._number = number
        self._entries = entries
        self._sizes = [entry.size for entry in entries]
        self._words = words_of(entries)

    def constant(self, value: Any, kind: pa.DataType) -> Any:
        return pa.repeat(pa.scalar(value, kind), sum(self._sizes))

    def queue(self) -> Any:
        return self.constant(self._queue, _TEXT)

    def shard(self) -> Any:
        return self.constant(self._number, pa.int32())

    @cached_property
    def _ms(self) -> Any:
        return pa.array(self._by_event([entry.ms for entry in self._entries]), _INT64)

    def stream_id(self) -> Any:
        sizes = zip(self._entries, self._sizes, strict=True)
        numbers = [number for entry, size in sizes for number in range(entry.last - size + 1, entry.last + 1)]
        return pc.binary_join_element_wise(pa.array(numbers, pa.uint64()).cast(_TEXT), self._ms.cast(_TEXT), "-")

    def ts(self) -> Any:
        return _times(pc.fill_null(_within(self._ms, 0, _LATEST_MS), _LATEST_MS))

    def worker(self) -> Any:
        return _optional(self._by_event([entry.worker for entry in self._entries]))

    def _by_event(self, values: Sequence[Any]) -> list[Any]:
        return [value for value, size in zip(values, self._sizes, strict=True) for _ in range(size)]

    def words(self, column: str) -> list[bytes]:
        return self._words[COLUMNS.index(column) :: WIDTH]

    def outcome(self) -> Any:
        return _texts(self.words("outcome"))

    def text(self, column: str) -> Any:
        return _optional(self.words(column))

    def number(self, column: str, most: int = 2**63 - 1) -> Any:
        return _within(_numbers(self.words(column)), 0, most)

    @cached_property
    def _due_ms(self) -> Any:
        return self.number("due", _LATEST_MS)

    @cached_property
    def _started_ms(self) -> Any:
        return _within(self.number("started", _LATEST_MS), 1, _LATEST_MS)

    def due(self) -> Any:
        return _times(self._due_ms)

    def started(self) -> Any:
        return _times(self._started_ms)

    def lateness(self) -> Any:
        return pc.max_element_wise(pc.subtract(self._started_ms, self._due_ms), 0, skip_nulls=False)

    def duration(self) -> Any:
        return pc.if_else(pc.is_valid(self._started_ms), self.number("ms"), pa.scalar(None, _INT64))

    def extra(self) -> Any:
        texts = [word.decode(errors="replace") for word in self.words("extra")]
        if not any(texts):
            return pa.nulls(len(texts), _EXTRA)
        return pa.array([[tuple(text.split(":", 1))] if ":" in text else None for text in texts], _EXTRA)


def _text_of(column: str) -> Callable[[_Rows], Any]:
    return lambda rows: rows.text(column)


_MAKERS: Final[dict[str, Callable[[_Rows], Any]]] = {
    "queue": _Rows.queue,
    "shard": _Rows.shard,
    "stream_id": _Rows.stream_id,
    "ts": _Rows.ts,
    "outcome": _Rows.outcome,
    **{name: _text_of(name) for name in ("id", "task", "key")},
    "worker": _Rows.worker,
    "error_class": _text_of("error"),
    "due": _Rows.due,
    "started": _Rows.started,
    "lateness_ms": _Rows.lateness,
    "duration_ms": _Rows.duration,
    "attempt": lambda rows: rows.number("attempt", 2**31 - 1),
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
                start, end = self._planned(broker, start, end)
        return [EventsPartition(task) for task in plan.intervals(start, end)]

    def _planned(self, broker: Broker, start: str | Positions, end: str | Positions) -> tuple[Positions, Positions]:
        places = known_places(broker, self.chosen.queues)
        by_place = streams(broker, {*places, *(() if isinstance(start, str) else start)})
        positions = plan.starting(by_place, start)
        if not isinstance(start, str):
            losses = plan.find_losses(broker, positions, by_place)
            plan.report(losses, fails=self.chosen.fail_on_loss)
            positions |= {(loss.queue, loss.number): BEGINNING for loss in losses if loss.other_stream}
        return positions, plan.ends(positions, by_place, places, None) if isinstance(end, str) else end


# -- streaming --------------------------------------------------------------------------------------------------------


class EventsStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader that continues from the offsets in Spark's checkpoint."""

    def __init__(self, options: Any, schema: StructType) -> None:
        super().__init__(options, schema)
        self._reset()

    def _reset(self) -> None:
        self._door: ExitStack | None = None
        self._opened: Broker | None = None
        self._target: Positions | None = None
        self._newest: Offsets | None = None
        self._reported: set[tuple[Place, str]] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that tasks need, without the connections and the planner's own state."""
        return {"options": self.options, "chosen": self.chosen, "arrow": self.arrow}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def _broker(self) -> Broker:
        if self._opened is None:
            self._door = ExitStack()
            self._opened = self._door.enter_context(open_broker(self.options))
        return self._opened

    def stop(self) -> None:
        """Close the connections of the planner."""
        if self._door is not None:
            self._door.close()
        self._door = self._opened = None

    # -- planning

    def initialOffset(self) -> Offsets:
        """Return the position at which a query without a checkpoint begins."""
        start_option = self.chosen.start
        named = () if isinstance(start_option, str) else start_option
        # Include the queues that are read another time: events removed from now on are a loss there, too.
        by_place = streams(self._broker, {*known_places(self._broker), *named})
        return plan.to_offsets(plan.starting(by_place, start_option))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the configured maximum number of rows per batch."""
        return ReadMaxRows(self.chosen.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Offsets:
        """Return the end of the next batch.

        Raises:
            EventsLost: unread events are gone.
        """
        positions, others = self._split(plan.to_positions(start))
        places, by_place = self._read_streams(positions)
        new = plan.joining(positions, by_place, places)
        joined = {place: at for place, at in new.items() if self._target is None or place in self._target}
        losses = self._check({**positions, **joined}, by_place)
        # A shard whose stream is another one leaves, and joins the next batch, which reads it from its beginning.
        replaced = {(loss.queue, loss.number) for loss in losses if loss.other_stream}
        same = [place for place in places if place not in replaced]
        end = plan.ends(positions, by_place, same, self._target)
        if isinstance(limit, ReadMaxRows):
            end = plan.limited(self._broker, limit.max_rows, positions, end)
        self._newest = plan.to_offsets({place: by_place[place].last for place in places})
        return plan.to_offsets({**others, **end})

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at the present positions; later events are left to the next query."""
        places, by_place = self._read_streams({})
        self._target = {place: by_place[place].last for place in places}

    def reportLatestOffset(self) -> Offsets | None:
        """Return the latest positions at the last planning, for the progress report of the query."""
        return self._newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of a batch."""
        tasks = plan.intervals(plan.to_positions(start), plan.to_positions(end))
        return [EventsPartition(task) for task in tasks]

    def _split(self, positions: Positions) -> tuple[Positions, Positions]:
        """Return the positions of the queues that are read, and those of the others, which stay unchanged."""
        queues = self.chosen.queues
        read = {place: at for place, at in positions.items() if not queues or place[0] in queues}
        return read, {place: at for place, at in positions.items() if place not in read}

    def _read_streams(self, positions: Mapping[Place, str]) -> tuple[list[Place], dict[Place, Stream]]:
        places = known_places(self._broker, self.chosen.queues)
        return places, streams(self._broker, dict.fromkeys([*places, *positions]))

    def _check(self, positions: Mapping[Place, str], by_place: Mapping[Place, Stream]) -> list[plan.Loss]:
        losses = plan.find_losses(self._broker, positions, by_place)
        new = [loss for loss in losses if ((loss.queue, loss.number), loss.after) not in self._reported]
        plan.report(new, fails=self.chosen.fail_on_loss)
        self._reported.update(((loss.queue, loss.number), loss.after) for loss in new)
        return losses
