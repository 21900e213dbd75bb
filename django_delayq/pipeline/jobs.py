"""Format ``delayq``: jobs. Reader of the queue's present state, a snapshot by shard, in Arrow batches.

The snapshot is not atomic. A job that does not move during the read appears exactly once; one that moves may appear
twice, or not at all (:mod:`django_delayq.core.snapshot`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType, TimestampType

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_choice, check_id, short, unknown_queue
from ..core.job_view import FARTHEST
from ..core.snapshot import INDEXED, PAGE, PLACES, Columns, Entries, Part, read_entries, read_jobs
from ..core.times import ms_of, parse_moment
from .options import (
    EVERY,
    SourceOptions,
    choice,
    listed,
    named,
    open_broker,
    option,
    parse_json,
    queue_names,
    whole,
    words,
)
from .schemas import check_columns, columns

if TYPE_CHECKING:
    import pyarrow as pa

    from ..core.broker import Broker
    from ..core.queue import Queue
    from .writer import JobsWriter

#: One row per job and place; a morgue record is a row of its own beside a live job of the same id. Times have ms
#: precision.
JOBS: Final = columns(
    ("queue", StringType(), True),
    ("shard", IntegerType(), True),  # number across all epochs: epoch * 1024 + place
    ("state", StringType(), True),  # waiting (delayed, ready, or failed and to be retried), reserved, gated, morgue
    ("id", StringType(), True),
    ("task", StringType(), False),  # null = the job cannot be read; `error` says why
    ("due", TimestampType(), False),
    ("priority", IntegerType(), False),  # 0 (first) … 7
    ("args", BinaryType(), False),  # as stored; null = merged; for an unreadable job the whole body
    ("context", StringType(), False),  # JSON
    ("key", StringType(), False),  # of the job's generation, in hex
    ("failures", IntegerType(), False),
    ("reserves", IntegerType(), False),
    ("crashes", IntegerType(), False),
    ("lease_until", TimestampType(), False),
    ("worker", StringType(), False),  # the worker that has reserved it
    ("failed_at", TimestampType(), False),  # time of the last failure
    ("buried_at", TimestampType(), False),
    ("reason", StringType(), False),  # why it was moved to the morgue
    ("error_class", StringType(), False),  # of the last error
    ("error", StringType(), False),  # its message
    ("payloads", IntegerType(), False),  # how many, if merged; of a gated job without those of the attempt
)
#: columns that are constant within one place of a shard
OF_PART: Final = frozenset({"queue", "shard", "state"})


class ArrowRows:
    """Converter from jobs of the core to batches of the requested columns."""

    def __init__(self, schema: StructType) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def of_entries(self, entries: Entries) -> pa.RecordBatch:
        """Return a batch from pages of an index."""
        return self._batch([self._entry_column(field, entries) for field in self._schema])

    def of_jobs(self, part: Part, some: Sequence[Columns]) -> pa.RecordBatch:
        """Return a batch from jobs of one part."""
        return self._batch([self._column(field, part, some) for field in self._schema])

    def _batch(self, arrays: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, field: pa.Field, part: Part, some: Sequence[Columns]) -> pa.Array:
        name = field.name.lower()
        if name in OF_PART:
            return _of_part(field, part, sum(len(columns["id"]) for columns in some))
        return _array(field, list(chain.from_iterable(columns[name] for columns in some)))

    def _entry_column(self, field: pa.Field, entries: Entries) -> pa.Array:
        name = field.name.lower()
        if name in OF_PART:
            return _of_part(field, entries.part, len(entries.ids))
        if name == "id":
            return _idents(field, entries)
        return _times(field, entries)


def _of_part(field: pa.Field, part: Part, n: int) -> pa.Array:
    value = {"queue": part.queue, "shard": part.shard, "state": part.place}[field.name.lower()]
    return pa.repeat(pa.scalar(value, field.type), n)


def _array(field: pa.Field, values: list[Any]) -> pa.Array:
    if pa.types.is_timestamp(field.type):
        return pa.array(values, pa.timestamp("ms", tz="UTC")).cast(field.type)
    return pa.array(values, field.type)


def _idents(field: pa.Field, entries: Entries) -> pa.Array:
    try:
        return pa.array(entries.ids, pa.binary()).cast(field.type)
    except pa.ArrowInvalid:  # bytes that are not valid UTF-8
        return _array(field, entries.idents())


def _times(field: pa.Field, entries: Entries) -> pa.Array:
    scores = np.array(entries.scores)
    if np.abs(scores).max(initial=0.0) >= FARTHEST:
        return _array(field, entries.times())
    ms = scores if entries.part.place == "reserved" else np.floor_divide(scores, 1000)
    return pa.array(ms.astype(np.int64) * 1000).cast(field.type)


# -- options -----------------------------------------------------------------------------------------------------------

STATES: Final = ("waiting", "reserved")
_MS: Final = re.compile(r"-?\d{1,15}")
_IDS_EXAMPLE: Final = '["order-5", "order-6"]'


def _shards(name: str, given: str) -> frozenset[int]:
    numbers = words(given)
    if not numbers or not all(re.fullmatch(r"\d{1,9}", number) for number in numbers):
        raise InvalidJob(
            f"{name} must be numbers of shards (column shard) with commas between them, got {short(given)}"
        )
    return frozenset(map(int, numbers))


def _states(name: str, given: str) -> tuple[str, ...]:
    if given == EVERY:
        return PLACES
    states = [check_choice(name, state, PLACES) for state in listed(name, given.lower())]
    return tuple(place for place in PLACES if place in states)


def _ids(name: str, given: str) -> tuple[str, ...]:
    """Return the ids of a JSON list, or of a comma-separated text."""
    ids = parse_json(name, given, _IDS_EXAMPLE) if given.startswith("[") else listed(name, given)
    return tuple(dict.fromkeys(named(check_id)(name, one) for one in ids))


def _ms(name: str, given: str) -> int:
    """Return Unix ms; a fraction is rounded up, because due times are whole."""
    return int(given) if _MS.fullmatch(given) else ms_of(parse_moment(given, what=name))


@dataclass(frozen=True, slots=True)
class ReadOptions(SourceOptions):
    """Selection of jobs, and how they are read. Due times are Unix ms, from ``low`` on and before ``high``."""

    #: empty = all
    queues: tuple[str, ...] = option("queue", queue_names, ())
    #: None = all
    shards: frozenset[int] | None = option("shards", _shards)
    states: tuple[str, ...] = option("states", _states, STATES)
    low: int | None = option("dueFrom", _ms)
    high: int | None = option("dueTo", _ms)
    #: None = all
    ids: tuple[str, ...] | None = option("ids", _ids)
    #: jobs per call to Redis
    fetch: int = option("fetch", whole(1, 1000), 200)
    #: maximum number of Spark tasks
    partitions: int = option("partitions", whole(1, 100_000), 200)
    #: fail; empty: a missing queue has no jobs
    missing_queue: str = option("missingQueue", choice("fail", "empty"), "fail")

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise Misconfigured(
                "dueFrom is not before dueTo, so no job can be due between them; is it the other way round?"
            )


# -- reading -----------------------------------------------------------------------------------------------------------

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """Shard, or some ids in it, that a task reads."""

    queue: str
    shard: int
    idents: tuple[str, ...] | None = None


@dataclass
class Pieces(InputPartition):
    """Partition read by one Spark task."""

    pieces: tuple[Piece, ...]


class JobsReader(DataSourceReader):
    """Reader of the jobs that the options select.

    Args:
        schema: the requested columns; Spark offers no other pruning to such a source.
        options: as Spark passes them.

    Raises:
        Misconfigured: a column or an option is invalid.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        check_columns(schema, JOBS, "a job")
        self._schema = schema
        self._names = frozenset(name.lower() for name in schema.names)
        self._given = options
        self.options = ReadOptions.parse(options)

    def partitions(self) -> list[InputPartition]:
        """Return one partition per shard; several shards share one if the option ``partitions`` allows fewer.

        Raises:
            InvalidJob: a queue does not exist.
        """
        if self.options.ids == ():
            return []
        with open_broker(self._given) as broker:
            pieces = [piece for queue in self._queues(broker) for piece in _pieces(queue, self.options)]
        tasks = min(len(pieces), self.options.partitions)
        return [Pieces(tuple(pieces[first::tasks])) for first in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(partition, Pieces):  # Spark passes its own class when there is nothing to read
            return
        rows = ArrowRows(self._schema)
        with open_broker(self._given) as broker:
            for piece in partition.pieces:
                for state in self.options.states:
                    yield from self._batches(broker, rows, self._part(piece, state))

    def _part(self, piece: Piece, state: str) -> Part:
        low, high = self.options.low, self.options.high
        return Part(piece.queue, piece.shard, state, low, high, piece.idents, "args" in self._names)

    def _batches(self, broker: Broker, rows: ArrowRows, part: Part) -> Iterator[pa.RecordBatch]:
        if self._is_indexed(part):
            pages = read_entries(broker, part)
            while some := list(islice(pages, BATCH_ROWS // PAGE)):
                yield rows.of_entries(Entries.joined(some))
            return
        held: list[Columns] = []
        size = 0
        for page in read_jobs(broker, part, fetch=self.options.fetch):
            held.append(page)
            size += len(page["id"]) * BATCH_BYTES // BATCH_ROWS + sum(map(len, filter(None, page["args"])))
            if size >= BATCH_BYTES:
                yield rows.of_jobs(part, held)
                held, size = [], 0
        if held:
            yield rows.of_jobs(part, held)

    def _is_indexed(self, part: Part) -> bool:
        """Return True if the index of the place contains all requested columns."""
        bounded = part.low is not None or part.high is not None
        if part.idents is not None or (bounded and part.place != "waiting") or not INDEXED[part.place]:
            return False
        return self._names <= INDEXED[part.place] | OF_PART

    def _queues(self, broker: Broker) -> list[Queue]:
        if not self.options.queues:
            return broker.queues()
        queues = {name: broker.known_queue(name) for name in self.options.queues}
        for name, queue in queues.items():
            if queue is None and self.options.missing_queue == "fail":
                raise InvalidJob(
                    f"{unknown_queue(name, broker.queue_names())}. To read a missing queue as empty, give the option "
                    "missingQueue=empty"
                )
        return [queue for queue in queues.values() if queue is not None]


def _pieces(queue: Queue, options: ReadOptions) -> Iterator[Piece]:
    numbers = [number for number in queue.numbers if options.shards is None or number in options.shards]
    if options.ids is None:
        yield from (Piece(queue.name, number) for number in numbers)
        return
    homes: dict[int, list[str]] = {}
    for ident in options.ids:
        for number in queue.shards_of(ident):
            homes.setdefault(number, []).append(ident)
    yield from (Piece(queue.name, number, tuple(homes[number])) for number in numbers if number in homes)


class JobsSource(DataSource):
    """``spark.read.format("delayq")`` and ``df.write.format("delayq").mode("append")``.

    Options for reading: redis or redisEnv, prefix, queue (a name, several separated by commas, or ``*``, the default),
    states (some of waiting, reserved, gated, morgue; default waiting,reserved), shards, ids (a JSON list, or separated
    by commas), dueFrom and dueTo (ISO 8601 with a zone, or Unix ms; inclusive start, exclusive end), fetch (jobs per
    call to Redis, 200), partitions (maximum number of tasks, 200) and missingQueue (fail or empty). Options for
    writing: :mod:`.writer`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "delayq"

    def schema(self) -> StructType:
        """Return the default schema; called before anything runs, so the options are validated here.

        Raises:
            Misconfigured: an option is unknown or invalid.
        """
        ReadOptions.parse(self.options)
        return JOBS

    def _given(self) -> Mapping[str, str]:
        """Return a copy of the options of the same class, because any other dict would lower-case their names."""
        options: Any = self.options
        return options.copy()  # type: ignore[no-any-return]

    def reader(self, schema: StructType) -> JobsReader:
        """Return a :class:`.jobs.JobsReader`."""
        return JobsReader(schema, self._given())

    def writer(self, schema: StructType, overwrite: bool) -> JobsWriter:
        """Return the writer of :func:`.writer.batch_writer`."""
        from .writer import batch_writer

        return batch_writer(self._given(), schema, overwrite)
