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

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType, TimestampType

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_choice, check_id, unknown_queue
from ..core.snapshot import INDEXED, PAGE, PLACES, Columns, Part, read_entries, read_jobs
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


def to_batch(part: Part, some: Sequence[Columns], schema: pa.Schema) -> pa.RecordBatch:
    """Return jobs of one part as rows.

    Args:
        schema: the requested columns; names and types are those of :data:`JOBS`.
    """
    of_part = {"queue": part.queue, "shard": part.shard, "state": part.place}
    rows = sum(len(columns["id"]) for columns in some)
    arrays = []
    for field in schema:
        name = field.name.lower()
        if name in of_part:
            arrays.append(pa.repeat(pa.scalar(of_part[name], field.type), rows))
        else:
            arrays.append(_array(field, list(chain.from_iterable(columns[name] for columns in some))))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(field: pa.Field, values: list[Any]) -> pa.Array:
    if pa.types.is_timestamp(field.type):
        return pa.array(values, pa.timestamp("ms", tz="UTC")).cast(field.type)
    return pa.array(values, field.type)


# -- options -----------------------------------------------------------------------------------------------------------

STATES: Final = ("waiting", "reserved")
_MS: Final = re.compile(r"-?\d{1,15}")
_IDS_EXAMPLE: Final = '["order-5", "order-6"]'


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
    states: tuple[str, ...] = option("states", _states, STATES)
    low: int | None = option("dueFrom", _ms)
    high: int | None = option("dueTo", _ms)
    #: None = all
    ids: tuple[str, ...] | None = option("ids", _ids)
    #: jobs per call to Redis
    fetch: int = option("fetch", whole(1, 1000), 200)
    #: fail; empty: a missing queue has no jobs
    missing_queue: str = option("missingQueue", choice("fail", "empty"), "fail")

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise Misconfigured(
                "dueFrom is not before dueTo, so no job can be due between them; is it the other way round?"
            )


# -- reading -----------------------------------------------------------------------------------------------------------

#: Spark's tasks of one read
MOST_TASKS: Final = 200
BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 8 * 1024 * 1024


@dataclass
class Parts(InputPartition):
    """Partition read by one Spark task."""

    parts: tuple[Part, ...]


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
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        self._names = frozenset(name.lower() for name in schema.names)
        self._given = options
        self.options = ReadOptions.parse(options)

    def partitions(self) -> list[InputPartition]:
        """Return one partition per shard; of very many shards several share one.

        Raises:
            InvalidJob: a queue does not exist.
        """
        if self.options.ids == ():
            return []
        with open_broker(self._given) as broker:
            shards = [parts for queue in self._queues(broker) for parts in self._shards(queue)]
        tasks = min(len(shards), MOST_TASKS)
        return [Parts(tuple(chain.from_iterable(shards[first::tasks]))) for first in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(partition, Parts):  # Spark passes its own class when there is nothing to read
            return
        with open_broker(self._given) as broker:
            for part in partition.parts:
                yield from self._batches(broker, part)

    def _shards(self, queue: Queue) -> Iterator[list[Part]]:
        """Yield what is to be read of each shard of a queue."""
        idents: dict[int, Any] = dict.fromkeys(queue.numbers)
        if self.options.ids is not None:
            idents = {}
            for ident in self.options.ids:
                for number in queue.shards_of(ident):
                    idents[number] = (*idents.get(number, ()), ident)
        low, high, args = self.options.low, self.options.high, "args" in self._names
        for number, chosen in idents.items():
            states = self.options.states
            yield [Part(queue.name, number, state, low, high, chosen, args) for state in states]

    def _batches(self, broker: Broker, part: Part) -> Iterator[pa.RecordBatch]:
        if self._is_indexed(part):
            pages = read_entries(broker, part)
            while some := list(islice(pages, BATCH_ROWS // PAGE)):
                yield to_batch(part, some, self._arrow)
            return
        held: list[Columns] = []
        size = 0
        for page in read_jobs(broker, part, fetch=self.options.fetch):
            held.append(page)
            size += len(page["id"]) * BATCH_BYTES // BATCH_ROWS + sum(map(len, filter(None, page["args"])))
            if size >= BATCH_BYTES:
                yield to_batch(part, held, self._arrow)
                held, size = [], 0
        if held:
            yield to_batch(part, held, self._arrow)

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


class JobsSource(DataSource):
    """``spark.read.format("delayq")`` and ``df.write.format("delayq").mode("append")``.

    Options for reading: redis or redisEnv, prefix, queue (a name, several separated by commas, or ``*``, the default),
    states (some of waiting, reserved, gated, morgue; default waiting,reserved), ids (a JSON list, or separated by
    commas), dueFrom and dueTo (ISO 8601 with a zone, or Unix ms; inclusive start, exclusive end), fetch (jobs per call
    to Redis, 200) and missingQueue (fail or empty). Options for writing: :mod:`.writer`.
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
