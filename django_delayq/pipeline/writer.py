"""Writers of jobs: ``df.write.format("delayq").mode("append")`` and ``df.writeStream.format("delayq")``.

Columns: ``id`` (required), ``due`` or ``due_ms`` (without them all jobs are due at once), ``args``, ``kwargs``, or
``payload`` and ``score``, and, to set them per row, ``priority``, ``context``, ``on_conflict``, ``task``, ``queue``,
``group``, ``max_attempts``, ``expires``, ``timeout``, ``ttr``. Options: :class:`~.write_options.WriteOptions`, in
camelCase.

Each write is a *bulk load* (:mod:`..core.loads`): a chunk that is stored is never written again,
whatever has happened to its jobs. Tasks may therefore be retried, run twice, or be resumed under the same ``runId``
after a crash. This requires the same rows in the same order: files provide that, and so does input sorted by id within
its partitions. Outcomes are counted by Redis, in the script that writes; the messages of tasks are not added up.

Spark refuses to write without ``.mode("append")`` with its own error UNSUPPORTED_DATA_SOURCE_SAVE_MODE.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..core import loads
from ..core.broker import Broker
from ..core.errors import DelayQError, InvalidJob
from ..core.inputs import check_queue_name
from ..core.loads import BulkLoad, BulkLoadLimits, BulkLoadWriter, memory_of
from .columns import Bad, Packer, values_of
from .errors import PipelineError, RunDiffers
from .options import open_broker, without_collector
from .quarantine import Quarantine, texts_of
from .schemas import fault_of_case
from .write_options import QUARANTINE, WriteOptions, check_schema

#: separator between the run id and the queue's name, where rows name their queues
AT: Final = "@"


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """Result of one Spark task that sent jobs, for the driver."""

    #: the bulk loads that it wrote to, one per queue
    run_ids: tuple[str, ...] = ()
    rows: int = 0
    bad: int = 0
    #: reason for which the input cannot be written; raised by the driver, because Spark would retry a failed task in
    #: vain
    refused: str = ""


class Refused(PipelineError):
    """Error for input that cannot be written as it is, so that retrying the task is useless."""


def open_run(broker: Broker, run_id: str, queue: str, options: WriteOptions, source: Mapping[str, str]) -> BulkLoad:
    """Open the bulk load of one queue; the queue is created if necessary with the shards and the kind of the options.

    Raises:
        RunDiffers: the bulk load was started with other input or options.
    """
    broker.queue(queue, shards=options.shards, kind=options.kind or "python")
    try:
        return loads.open_load(broker, run_id, queue, source=source, chunk=options.chunk)
    except loads.BulkLoadDiffers as error:
        raise RunDiffers(str(error)) from None


class Sender:
    """Sender of the rows of one task.

    Args:
        part, attempt: index of the task, and number of the attempt at it.
    """

    def __init__(
        self,
        broker: Broker,
        options: WriteOptions,
        source: Mapping[str, str],
        run_id: str,
        part: int = 0,
        attempt: int = 0,
    ) -> None:
        self._broker = broker
        self._options = options
        self._source = source
        self._run_id = run_id
        self._quarantine: Quarantine | None = None
        if options.on_error == QUARANTINE and options.quarantine:
            self._quarantine = Quarantine(options.quarantine, run_id, part, attempt)
        self._targets: dict[str, tuple[Packer, BulkLoadWriter] | None] = {}
        self._writers: list[BulkLoadWriter] = []
        self._run_ids: list[str] = []
        self._rows = 0
        self._bad = 0

    def send(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        """Send all rows.

        Raises:
            DelayQError: see :meth:`JobsWriter.write`.
        """
        done = False
        try:
            for batch in batches:
                if not self._send_batch(batch):
                    break
            for writer in self._writers:
                writer.finish()
            done = True
        finally:
            if not done:
                for writer in self._writers:
                    writer.abandon()
            if self._quarantine is not None:
                self._quarantine.close(keep=done)
        return Sent(tuple(self._run_ids), self._rows, self._bad)

    def _send_batch(self, batch: pa.RecordBatch) -> bool:
        """Return True if more batches should be sent."""
        if not batch.num_rows:
            return True
        self._rows += batch.num_rows
        if "queue" not in batch.schema.names:
            return self._send_to(self._options.queue or "", self._run_id, batch)
        bad: Bad = {}
        values_of(batch.column("queue"), bad)
        if bad:
            self._refuse(batch, bad)
            batch = batch.filter(pa.array([row not in bad for row in range(batch.num_rows)]))
        texts = batch.column("queue").cast(pa.string())
        if self._options.queue is not None:  # before rows are grouped by queue, so that they keep their order
            texts = pc.fill_null(texts, self._options.queue)
        # One queue after the other; the rows of each keep their order.
        for name in pc.unique(texts).to_pylist():
            rows = batch.filter(pc.is_null(texts) if name is None else pc.equal(texts, name))
            try:
                queue = check_queue_name(name)
            except InvalidJob as error:
                reason = "queue is null, and there is no option queue" if name is None else str(error)
                self._refuse(rows, dict.fromkeys(range(rows.num_rows), reason))
            else:
                self._send_to(queue, f"{self._run_id}{AT}{queue}", rows)
        return True

    def _send_to(self, queue: str, run_id: str, batch: pa.RecordBatch) -> bool:
        """Return True if the bulk load of the queue is still open."""
        target = self._target_of(queue, run_id)
        if target is None:
            return False
        packer, writer = target
        try:
            packed = packer.pack(batch)
        except InvalidJob as error:
            raise Refused(f"queue {queue!r}: {error}") from error
        if packed.bad:
            self._refuse(batch, packed.bad)
        writer.add(packed.entries)
        return True

    def _target_of(self, queue: str, run_id: str) -> tuple[Packer, BulkLoadWriter] | None:
        """Return the packer and the writer of a queue; None = its bulk load is closed, so everything is written."""
        if queue not in self._targets:
            options = self._options
            run = open_run(self._broker, run_id, queue, options, self._source)
            self._run_ids.append(run.id)
            self._targets[queue] = None
            if not run.closed:
                kind = str(self._broker.queue(queue).layout["kind"])
                limits = BulkLoadLimits(options.rate_limit, options.patience, options.max_memory)
                writer = BulkLoadWriter(self._broker, run, limits)
                self._writers.append(writer)
                self._targets[queue] = Packer(options, run, kind), writer
        return self._targets[queue]

    def _refuse(self, batch: pa.RecordBatch, bad: Mapping[int, str]) -> None:
        """Quarantine rows, or abort the task at the first of them."""
        if self._quarantine is None:
            row = min(bad)
            raise Refused(f"the row with id {texts_of(batch, [row])[0]} cannot be written: {bad[row]}")
        self._quarantine.add(batch, dict(bad))
        self._bad += len(bad)


# -- writers of Spark --------------------------------------------------------------------------------------------------

logger: Final = logging.getLogger("django_delayq.pipeline")
_POLICY: Final = "noeviction"


@dataclass(eq=False, repr=False)
class _Writer:
    """Writer of bulk loads."""

    #: options as Spark passes them; as they may hold a password, there is no repr
    options: Mapping[str, str]
    write_options: WriteOptions
    #: description of the input
    source: Mapping[str, str]

    def _write_part(self, run_id: str, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Write the rows of one task."""
        context = TaskContext.get()
        part = context.partitionId() if context else 0
        attempt = context.taskAttemptId() if context else 0
        try:
            with open_broker(self.options) as broker, without_collector():
                sender = Sender(broker, self.write_options, self.source, run_id, part, attempt)
                return sender.send(map(_with_our_names, iterator))
        except Refused as error:
            return Sent(refused=str(error))
        except RunDiffers as error:
            raise PipelineError(str(error)) from error
        except DelayQError as error:
            raise PipelineError(f"{error}. Bulk load {run_id} is open: {how_to_resume(run_id)}") from error

    def _close_all(self, run_ids: Sequence[str], *, close: bool) -> dict[str, int]:
        """Close bulk loads if ``close``; return the number of rows by outcome, as counted by Redis."""
        counts: Counter[str] = Counter()
        if run_ids:
            with open_broker(self.options) as broker:
                for run_id in run_ids:
                    run = loads.read_load(broker, run_id)
                    if run is not None:
                        counts.update(loads.progress(broker, loads.close_load(broker, run) if close else run))
        return dict(counts)


@dataclass(eq=False, repr=False)
class JobsWriter(_Writer, DataSourceArrowWriter):
    """Writer of one batch."""

    run_id: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Write the rows of one task up to the first invalid one, which its message then names.

        Raises:
            PipelineError: Redis is unavailable, full or paused; the message says how to resume.
        """
        return self._write_part(self.run_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Close the bulk load after all tasks, unless the option ``close`` announces more data.

        Raises:
            PipelineError: a row is invalid; the bulk load stays open.
        """
        with short_errors():
            fail_if_refused(messages, f"Bulk load {self.run_id} is open: {how_to_resume(self.run_id)}")
            counts = self._close_all(_run_ids(messages), close=self.write_options.close)
        logger.info("bulk load %s: %s", self.run_id, counts)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the failure of a task. Written chunks stay, and the bulk load stays open."""
        logger.error("bulk load %s stopped before its end and is open: %s", self.run_id, how_to_resume(self.run_id))


class JobsStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writer of one streaming query: each of its batches is a bulk load, which a replayed batch finds again."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Write one task of one batch; raises as :meth:`JobsWriter.write`."""
        context: Any = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        batch = context and context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            # Otherwise all batches would be one bulk load, which is closed after the first of them.
            raise PipelineError(
                "this Spark does not pass query and batch to its tasks, which identify a batch of a stream; write in "
                "foreachBatch(), each batch under a runId of its own"
            )
        return self._write_part(f"{query}:{batch}", iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Close the bulk load of a batch, and keep the one before the last for a day only: Spark will not replay it.

        Raises:
            PipelineError: a row is invalid; the query ends.
        """
        with short_errors():
            fail_if_refused(
                messages,
                "The query replays this batch when it is started again; onError=quarantine skips and stores such rows",
            )
            run_ids = _run_ids(messages)
            self._close_all(run_ids, close=True)
        if run_ids:
            with open_broker(self.options) as broker:
                for run_id in run_ids:
                    load = loads.read_load(broker, _run_id_of(run_id, batchId - 2))
                    if load is not None:
                        loads.keep_load(broker, load, loads.DAY_MS)  # for tasks that were left behind

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the failure of a task: the query ends, and replays this batch when it is started again."""
        logger.error("batch %d stopped before its end; start the query again to resume there", batchId)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """Return the writer of a batch after all checks that are possible before it runs.

    Raises:
        Misconfigured, PipelineError: options, columns or Redis do not meet the requirements.
        RunDiffers: the option ``runId`` names a bulk load that was started with other input or options.
    """
    with short_errors():
        write_options, source = _check(options, schema, overwrite)
        run_id = write_options.run_id or uuid.uuid4().hex
        with open_broker(options) as broker:
            check_redis(broker, write_options)
            one_queue = write_options.queue and "queue" not in map(str.lower, schema.fieldNames())
            begun = write_options.run_id and one_queue and loads.read_load(broker, run_id)
            if begun and open_run(broker, run_id, write_options.queue or "", write_options, source).closed:
                logger.warning("bulk load %s is closed: all rows are stored, nothing is written", run_id)
        return JobsWriter(options, write_options, source, run_id)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """Return the writer of a streaming query; raises as :func:`batch_writer`."""
    with short_errors():
        write_options, source = _check(options, schema, overwrite)
        if write_options.run_id:
            raise PipelineError("a stream derives its run ids from query and batch; leave the option runId out")
        with open_broker(options) as broker:
            check_redis(broker, write_options)
        return JobsStreamWriter(options, write_options, source)


def _check(options: Mapping[str, str], schema: StructType, overwrite: bool) -> tuple[WriteOptions, dict[str, str]]:
    if overwrite:
        raise PipelineError(
            'a queue cannot be overwritten; write with .mode("append"). To remove jobs, cancel them: '
            "manage.py delayq_pipeline jobs cancel"
        )
    write_options = WriteOptions.parse(options)
    columns = check_schema(schema, write_options).simpleString()
    return write_options, {"columns": columns, **write_options.identity(), **dict(write_options.source)}


@contextmanager
def short_errors() -> Iterator[None]:
    """Make the text of an error the first line of Spark's own error, without the stack of its Python worker.

    Only for the workers in which Spark plans and commits a write: such a worker ends after an exception, and its
    environment with it.
    """
    try:
        yield
    except DelayQError:
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def check_redis(broker: Broker, write_options: WriteOptions) -> None:
    """Reject a Redis that may evict jobs, and a queue of the wrong kind."""
    for node in memory_of(broker).values():
        policy = node.get("maxmemory_policy", _POLICY)
        if policy != _POLICY:
            raise PipelineError(
                f"Redis has the maxmemory-policy {policy!r}, which evicts jobs when it is "
                f"full: redis-cli CONFIG SET maxmemory-policy {_POLICY}, and the same in its "
                "redis.conf"
            )
    if write_options.queue:
        _, layout = broker.read_layout(write_options.queue)
        kind = layout.get("kind", "python") if layout and not layout.get("deleted") else write_options.kind or "python"
        if write_options.kind and kind != write_options.kind:
            raise PipelineError(
                f"queue {write_options.queue!r} is of kind {kind}, not {write_options.kind}; leave the option kind out"
            )


def how_to_resume(run_id: str) -> str:
    """Return instructions for resuming an open bulk load."""
    return f"repeat the write with option('runId', {run_id!r}) to resume it; stored chunks are not written twice"


def fail_if_refused(messages: Sequence[WriterCommitMessage | None], how: str) -> None:
    """Raise the reason for which a task has refused its input, with instructions.

    Raises:
        PipelineError: a task has refused its input.
    """
    for message in messages:
        if isinstance(message, Sent) and message.refused:
            raise PipelineError(f"{message.refused}. {how}")


def _with_our_names(batch: pa.RecordBatch) -> pa.RecordBatch:
    fault = fault_of_case(batch.schema.names)
    if fault:
        raise Refused(fault)
    return batch.rename_columns([name.lower() for name in batch.schema.names])


def _run_ids(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    return sorted({run_id for message in messages if isinstance(message, Sent) for run_id in message.run_ids})


def _run_id_of(run_id: str, batch: int) -> str:
    """Return the id of the bulk load of another batch of the same query, to the same queue."""
    query, _, rest = run_id.partition(":")
    _, at, queue = rest.partition(AT)
    return f"{query}:{batch}{at}{queue}"
