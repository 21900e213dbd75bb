"""Reader of the queue's present state: a snapshot by shard, in Arrow batches.

The snapshot is not atomic. A job that does not move during the read appears exactly once; one that moves may appear
twice, or not at all (:mod:`django_delayq.core.snapshot`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import unknown_queue
from ..core.snapshot import INDEXED, PAGE, Columns, Entries, Part, read_entries, read_jobs
from .column_names import fault_of_case
from .job_schema import JOBS, OF_PART, ArrowRows
from .read_options import ReadOptions
from .redis_options import open_broker
from .schemas import check_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from ..core.broker import Broker
    from ..core.queue import Queue

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
        fault = fault_of_case(self._schema.names)
        if fault:
            raise Misconfigured(fault)
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
        for columns in read_jobs(broker, part, fetch=self.options.fetch):
            held.append(columns)
            size += len(columns["id"]) * BATCH_BYTES // BATCH_ROWS + sum(map(len, filter(None, columns["args"])))
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
