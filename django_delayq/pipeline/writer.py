"""Writing jobs with Spark: ``df.write.format("delayq").mode("append")`` and ``df.writeStream.format("delayq")``.

Columns: ``id`` (required), ``due`` or ``due_ms`` (without them all jobs are due at once), ``args``, ``kwargs``, or
``payload`` and ``score``, and for each row that says so ``priority``, ``context``, ``on_conflict``, ``task``,
``queue``, ``max_attempts``, ``expires``, ``timeout``. Options: :class:`~.write_options.WriteOptions`, in camelCase.

Each write is a *run* (:mod:`django_delayq.core.runs`): a chunk that is in is never written again, whatever became of
its jobs, so tasks may be tried again, run twice, or be gone on with under the same ``runId`` after a crash. That takes
the same rows in the same order: files give them, and so does what was sorted by id within its partitions. What came to
what is counted by Redis, in the script that writes; the messages of tasks are not added up.

Spark refuses to write without ``.mode("append")``, in words of its own: UNSUPPORTED_DATA_SOURCE_SAVE_MODE.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from django_delayq.core import runs
from django_delayq.core.broker import Broker
from django_delayq.core.errors import DelayQError, InvalidJob
from django_delayq.core.inputs import check_queue_name
from django_delayq.core.runframes import Shape
from django_delayq.core.runlimits import Limits, memory_of
from django_delayq.core.runs import Run
from django_delayq.core.runwriter import RunClosed, RunWriter

from . import cells
from .cells import Bad
from .columns import Packer
from .errors import PipelineError, RunDiffers
from .quarantine import Quarantine, texts_of
from .redis_door import open_broker
from .write_options import QUARANTINE, WriteOptions, check_schema

logger: Final = logging.getLogger("django_delayq.pipeline")
#: between a run's id and the queue, where rows name their queues
AT: Final = "@"
_POLICY: Final = "noeviction"


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """What one task did."""

    #: the runs that it wrote to: of one queue each
    run_ids: tuple[str, ...] = ()
    rows: int = 0
    bad: int = 0


class JobsWriter(DataSourceArrowWriter):
    """One batch write."""

    def __init__(
        self, options: Mapping[str, str], wanted: WriteOptions, source: Mapping[str, str], run_id: str
    ) -> None:
        self._options = options
        self._wanted = wanted
        self._source = source
        self._run_id = run_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """One task.

        Raises:
            PipelineError: a row is no job, or Redis is not there, full or paused; the text says how to go on.
        """
        return write_part(self._options, self._wanted, self._source, self._run_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Everything is in: the run is closed, unless the option ``close`` says that more is to come."""
        counts = close_all(self._options, messages, close=self._wanted.close)
        logger.info("run %s: %s", self._run_id, counts)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task failed for good. What is in stays in, and the run stays open."""
        logger.error("run %s stopped before its end and is open: %s", self._run_id, how_to_go_on(self._run_id))


class JobsStreamWriter(DataSourceStreamArrowWriter):
    """One streaming query: each of its batches is a run, which a replayed batch finds again."""

    def __init__(self, options: Mapping[str, str], wanted: WriteOptions, source: Mapping[str, str]) -> None:
        self._options = options
        self._wanted = wanted
        self._source = source

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """One task of one batch; raises as :meth:`JobsWriter.write`."""
        context: Any = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        batch = context and context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            # All batches would be one run, which is over after the first of them.
            raise PipelineError("this Spark does not tell its tasks the query and batch that they work for, by which "
                                "a stream's batches are known again; write in foreachBatch(), each batch under a runId "
                                "of its own")  # fmt: skip
        return write_part(self._options, self._wanted, self._source, f"{query}:{batch}", iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """The batch is in. Spark may replay it once more; those before are never seen again, and are forgotten."""
        close_all(self._options, messages, close=True)
        queries = {run_id.partition(":")[0] for run_id in _run_ids(messages)}
        if queries:
            with open_broker(self._options) as broker:
                for query in queries:
                    forget_before(query, batchId, broker)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """A task failed for good: the query ends, and replays this batch when it is started again."""
        logger.error("batch %d stopped before its end; start the query again, it goes on there", batchId)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """The writer of a batch, everything checked that can be checked before it runs.

    Raises:
        Misconfigured, PipelineError: options, columns or Redis are not as they have to be.
        RunDiffers: the option ``runId`` names a run that was begun with something else.
    """
    wanted, source = _checked(options, schema, overwrite)
    run_id = wanted.run_id or uuid.uuid4().hex
    with open_broker(options) as broker:
        check_redis(broker, wanted)
        begun = wanted.run_id and wanted.queue and "queue" not in schema.fieldNames() and runs.read_run(broker, run_id)
        if begun and open_run(broker, run_id, wanted.queue or "", wanted, source).closed:
            logger.warning("run %s is over: everything is in, nothing is written", run_id)
    return JobsWriter(options, wanted, source, run_id)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """The writer of a streaming query; raises as :func:`batch_writer`."""
    wanted, source = _checked(options, schema, overwrite)
    if wanted.run_id:
        raise PipelineError("a stream names its runs itself, by query and batch; leave the option runId out")
    with open_broker(options) as broker:
        check_redis(broker, wanted)
    return JobsStreamWriter(options, wanted, source)


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> tuple[WriteOptions, dict[str, str]]:
    if overwrite:
        raise PipelineError('a queue is not overwritten, its jobs are worked off; write with .mode("append"). What is '
                            "no longer wanted is cancelled: manage.py delayq_pipeline jobs cancel")  # fmt: skip
    wanted = WriteOptions.parse(options)
    check_schema(schema, wanted)
    return wanted, {"columns": schema.simpleString(), **wanted.told(), **dict(wanted.source)}


def check_redis(broker: Broker, wanted: WriteOptions) -> None:
    """Refuses a Redis that would throw jobs away, and a queue of the wrong kind."""
    for node in memory_of(broker).values():
        policy = node.get("maxmemory_policy", _POLICY)
        if policy != _POLICY:
            raise PipelineError(f"Redis has the maxmemory-policy {policy!r}, which may throw jobs away when it is "
                                f"full: redis-cli CONFIG SET maxmemory-policy {_POLICY}, and the same in its "
                                "redis.conf")  # fmt: skip
    if wanted.queue:
        _, layout = broker.read_layout(wanted.queue)
        kind = layout.get("kind", "python") if layout and not layout.get("deleted") else wanted.kind or "python"
        if wanted.kind and kind != wanted.kind:
            raise PipelineError(
                f"queue {wanted.queue!r} is of kind {kind}, not {wanted.kind}; leave the option kind out"
            )


def open_run(broker: Broker, run_id: str, queue: str, wanted: WriteOptions, source: Mapping[str, str]) -> Run:
    """The run of one queue, which is made with the shards and the kind that the options want.

    Raises:
        RunDiffers: it was begun with something else.
    """
    broker.queue(queue, shards=wanted.shards, kind=wanted.kind or "python")
    try:
        return runs.open_run(broker, run_id, queue, source=source, chunk=wanted.chunk)
    except runs.RunDiffers as error:
        raise RunDiffers(str(error)) from None


def how_to_go_on(run_id: str) -> str:
    """What to do with a run that is open."""
    return f"write the same again with option('runId', {run_id!r}); what is in is not written twice"


def write_part(options: Mapping[str, str], wanted: WriteOptions, source: Mapping[str, str], run_id: str,
               iterator: Iterator[pa.RecordBatch]) -> Sent:  # fmt: skip
    """Writes the rows of one task.

    Raises:
        PipelineError: see :meth:`JobsWriter.write`.
    """
    context = TaskContext.get()
    part = context.partitionId() if context else 0
    attempt = context.taskAttemptId() if context else 0
    try:
        with open_broker(options) as broker:
            sender = Sender(broker, wanted, source, run_id, part, attempt)
            return sender.send(iterator)
    except (RunDiffers, RunClosed) as error:
        raise PipelineError(str(error)) from error
    except DelayQError as error:
        raise PipelineError(f"{error}. Run {run_id} is open: {how_to_go_on(run_id)}") from error


def _run_ids(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    return sorted({run_id for message in messages if isinstance(message, Sent) for run_id in message.run_ids})


def close_all(
    options: Mapping[str, str], messages: Sequence[WriterCommitMessage | None], *, close: bool
) -> dict[str, int]:
    """Closes the runs that the tasks wrote to, if they are to be; what came to what, as Redis counted it."""
    counts: Counter[str] = Counter()
    ids = _run_ids(messages)
    if ids:
        with open_broker(options) as broker:
            for run_id in ids:
                run = runs.read_run(broker, run_id)
                if run is not None:
                    counts.update(runs.progress(broker, runs.close_run(broker, run) if close else run))
    return dict(counts)


def forget_before(query: str, batch: int, broker: Broker) -> None:
    """Takes the runs of a streaming query away that are of batches before the one before this."""
    name = re.compile(rf"{re.escape(query)}:(\d+)(?:{AT}.*)?")
    for run in runs.runs(broker):
        found = name.fullmatch(run.id)
        if found is not None and int(found[1]) < batch - 1:
            runs.forget_run(broker, run.id)


class Sender:
    """One task's way of its rows into the queues.

    Args:
        broker: where to.
        wanted: how.
        source: what the run's input was.
        run_id: of the run.
        part, attempt: which task this is, and which try of it.
    """

    def __init__(self, broker: Broker, wanted: WriteOptions, source: Mapping[str, str], run_id: str,
                 part: int = 0, attempt: int = 0) -> None:  # fmt: skip
        self._broker = broker
        self._wanted = wanted
        self._source = source
        self._run_id = run_id
        self._quarantine: Quarantine | None = None
        if wanted.on_error == QUARANTINE and wanted.quarantine:
            self._quarantine = Quarantine(wanted.quarantine, run_id, part, attempt)
        self._ways: dict[str, tuple[Packer, RunWriter] | None] = {}
        self._run_ids: dict[str, str] = {}
        self._rows = 0
        self._bad = 0

    def send(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        """All of the rows.

        Raises:
            DelayQError: see :meth:`JobsWriter.write`.
        """
        done = False
        try:
            for batch in batches:
                if not self._send_batch(batch):
                    break
            for way in self._ways.values():
                if way is not None:
                    way[1].finish()
            done = True
        finally:
            if not done:
                for way in self._ways.values():
                    if way is not None:
                        way[1].abandon()
            if self._quarantine is not None:
                self._quarantine.close(keep=done)
        return Sent(tuple(self._run_ids.values()), self._rows, self._bad)

    def _send_batch(self, batch: pa.RecordBatch) -> bool:
        """Whether there is any use in another batch."""
        if not batch.num_rows:
            return True
        self._rows += batch.num_rows
        if "queue" not in batch.schema.names:
            return self._send_to(self._wanted.queue or "", self._run_id, batch)
        if not cells.is_valid(batch.column("queue")):
            bad: Bad = {}
            cells.values(batch.column("queue"), bad)
            self._refuse(batch, bad)
            batch = batch.filter(pa.array([row not in bad for row in range(batch.num_rows)]))
        texts = batch.column("queue").cast(pa.string())
        if self._wanted.queue is not None:  # before they are told apart, or such rows would not keep their place
            texts = pc.fill_null(texts, self._wanted.queue)
        # One queue after the other; the rows of each keep their order.
        for said in pc.unique(texts).to_pylist():
            mine = batch.filter(pc.is_null(texts) if said is None else pc.equal(texts, said))
            try:
                queue = check_queue_name(said)
            except InvalidJob as error:
                reason = "queue is null, and there is no option queue" if said is None else str(error)
                self._refuse(mine, dict.fromkeys(range(mine.num_rows), reason))
            else:
                self._send_to(queue, f"{self._run_id}{AT}{queue}", mine)
        return True

    def _send_to(self, queue: str, run_id: str, batch: pa.RecordBatch) -> bool:
        """Whether the queue's run is still open."""
        way = self._way(queue, run_id)
        if way is None:
            return False
        packer, writer = way
        try:
            packed = packer.pack(batch)
        except InvalidJob as error:
            raise PipelineError(f"queue {queue!r}: {error}") from error
        if packed.bad:
            self._refuse(batch, packed.bad)
        if isinstance(packed.shapes, Shape):
            writer.add_many(packed.shapes, packed.rows)
        else:
            for shape, entry in zip(packed.shapes, packed.rows.entries(), strict=True):
                writer.add(shape, entry)
        return True

    def _way(self, queue: str, run_id: str) -> tuple[Packer, RunWriter] | None:
        """What packs and sends the jobs of a queue; None = its run is over, so everything is in."""
        if queue not in self._ways:
            wanted = self._wanted
            run = open_run(self._broker, run_id, queue, wanted, self._source)
            self._run_ids[queue] = run.id
            if run.closed:
                self._ways[queue] = None
            else:
                kind = str(self._broker.queue(queue).layout["kind"])
                limits = Limits(wanted.rate_limit, wanted.patience, wanted.max_memory)
                self._ways[queue] = Packer(wanted, run, kind), RunWriter(self._broker, run, limits)
        return self._ways[queue]

    def _refuse(self, batch: pa.RecordBatch, bad: Mapping[int, str]) -> None:
        """Puts rows aside, or ends the task because of the first of them."""
        if self._quarantine is None:
            row = min(bad)
            raise PipelineError(f"the row with id {texts_of(batch, [row])[0]} cannot be written: {bad[row]}")
        self._quarantine.add(batch, dict(bad))
        self._bad += len(bad)
