"""Writer of jobs: ``df.write.format("delayq").mode("append")``.

Columns: ``id`` (required), ``due`` or ``due_ms`` (without them all jobs are due at once), ``args``, ``kwargs``, or
``payload`` and ``score``, and, to set them per row, ``priority``, ``context``, ``group``, ``max_attempts``,
``expires``, ``timeout``, ``ttr``. Options: :class:`~.write_options.WriteOptions`, in camelCase.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..core import loads
from ..core.broker import Broker
from ..core.errors import DelayQError, InvalidJob
from ..core.loads import BulkLoad, BulkLoadLimits, BulkLoadWriter, memory_of
from .columns import Packer
from .errors import PipelineError, RunDiffers
from .options import open_broker, without_collector
from .quarantine import Quarantine, texts_of
from .write_options import QUARANTINE, WriteOptions, check_schema

#: rows that are packed at once: few enough that Redis does not wait for the next ones
_PIECE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """Result of one Spark task that sent jobs, for the driver."""

    rows: int = 0
    bad: int = 0
    #: reason for which the input cannot be written; raised by the driver, because Spark would retry a failed task in
    #: vain
    refused: str = ""


class Refused(PipelineError):
    """Error for input that cannot be written as it is, so that retrying the task is useless."""


def open_run(broker: Broker, run_id: str, options: WriteOptions, source: Mapping[str, str]) -> BulkLoad:
    """Open the bulk load; the queue is created if necessary with the shards and the kind of the options.

    Raises:
        RunDiffers: the bulk load was started with other input or options.
    """
    broker.queue(options.queue, shards=options.shards, kind=options.kind or "python")
    try:
        return loads.open_load(broker, run_id, options.queue, source=source, chunk=options.chunk)
    except loads.BulkLoadDiffers as error:
        raise RunDiffers(str(error)) from None


class Sender:
    """Sender of the rows of one task.

    Args:
        part, attempt: index of the task, and number of the attempt at it.
    """

    def __init__(
        self, broker: Broker, options: WriteOptions, run: BulkLoad, *, part: int = 0, attempt: int = 0
    ) -> None:
        kind = str(broker.queue(run.queue).layout["kind"])
        limits = BulkLoadLimits(options.rate_limit, options.patience, options.max_memory)
        self._packer = Packer(options, run, kind)
        self._writer = BulkLoadWriter(broker, run, limits)
        self._quarantine: Quarantine | None = None
        if options.on_error == QUARANTINE and options.quarantine:
            self._quarantine = Quarantine(options.quarantine, run.id, part, attempt)
        self._rows = 0
        self._bad = 0

    def send(self, batches: Iterable[pa.RecordBatch]) -> Sent:
        """Send all rows.

        Raises:
            DelayQError: see :meth:`JobsWriter.write`.
        """
        done = False
        try:
            for batch in batches:
                for start in range(0, batch.num_rows, _PIECE):
                    self._send_piece(batch.slice(start, _PIECE))
            self._writer.finish()
            done = True
        finally:
            if not done:
                self._writer.abandon()
            if self._quarantine is not None:
                self._quarantine.close(keep=done)
        return Sent(self._rows, self._bad)

    def _send_piece(self, batch: pa.RecordBatch) -> None:
        batch = batch.rename_columns([name.lower() for name in batch.schema.names])
        packed = self._packer.pack(batch)
        self._rows += batch.num_rows
        if packed.bad:
            self._refuse(batch, packed.bad)
        self._writer.add(packed.entries)

    def _refuse(self, batch: pa.RecordBatch, bad: Mapping[int, str]) -> None:
        """Quarantine rows, or abort the task at the first of them."""
        if self._quarantine is None:
            row = min(bad)
            raise Refused(f"the row with id {texts_of(batch, [row])[0]} cannot be written: {bad[row]}")
        self._quarantine.add(batch, dict(bad))
        self._bad += len(bad)


# -- writer of Spark ---------------------------------------------------------------------------------------------------

logger: Final = logging.getLogger("django_delayq.pipeline")
_POLICY: Final = "noeviction"


@dataclass(eq=False, repr=False)
class JobsWriter(DataSourceArrowWriter):
    """Writer of one bulk load."""

    #: options as Spark passes them; as they may hold a password, there is no repr
    options: Mapping[str, str]
    write_options: WriteOptions
    #: description of the input
    source: Mapping[str, str]
    run_id: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Write the rows of one task up to the first invalid one, which its message then names.

        Raises:
            PipelineError: Redis is unavailable, full or paused; the message says how to resume.
        """
        context = TaskContext.get()
        task = {} if context is None else {"part": context.partitionId(), "attempt": context.taskAttemptId()}
        try:
            with open_broker(self.options) as broker, without_collector():
                run = open_run(broker, self.run_id, self.write_options, self.source)
                return Sent() if run.closed else self._send(broker, run, iterator, **task)
        except RunDiffers as error:
            raise PipelineError(str(error)) from error
        except DelayQError as error:
            raise PipelineError(f"{error}. Bulk load {self.run_id} is open: {how_to_resume(self.run_id)}") from error

    def _send(self, broker: Broker, run: BulkLoad, batches: Iterator[pa.RecordBatch], **task: int) -> Sent:
        try:
            return Sender(broker, self.write_options, run, **task).send(batches)
        except (Refused, InvalidJob) as error:
            return Sent(refused=str(error))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Close the bulk load after all tasks, unless the option ``close`` announces more data.

        Raises:
            PipelineError: a row is invalid; the bulk load stays open.
        """
        with short_errors():
            for message in messages:
                if isinstance(message, Sent) and message.refused:
                    raise PipelineError(
                        f"{message.refused}. Bulk load {self.run_id} is open: {how_to_resume(self.run_id)}"
                    )
            with open_broker(self.options) as broker:
                run = loads.read_load(broker, self.run_id)
                if run is not None:
                    run = loads.close_load(broker, run) if self.write_options.close else run
                    logger.info("bulk load %s: %s", run.id, dict(loads.progress(broker, run)))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the failure of a task. Written chunks stay, and the bulk load stays open."""
        logger.error("bulk load %s stopped before its end and is open: %s", self.run_id, how_to_resume(self.run_id))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> JobsWriter:
    """Return the writer after all checks that are possible before it runs.

    Raises:
        Misconfigured, PipelineError: options, columns or Redis do not meet the requirements.
        RunDiffers: the option ``runId`` names a bulk load that was started with other input or options.
    """
    with short_errors():
        if overwrite:
            raise PipelineError(
                'a queue cannot be overwritten; write with .mode("append"). To remove jobs, cancel them: '
                "manage.py delayq_pipeline jobs cancel"
            )
        write_options = WriteOptions.parse(options)
        columns = check_schema(schema, write_options).simpleString()
        source = {"columns": columns, **write_options.identity(), **dict(write_options.source)}
        run_id = write_options.run_id or uuid.uuid4().hex
        with open_broker(options) as broker:
            check_redis(broker, write_options)
            begun = write_options.run_id and loads.read_load(broker, run_id)
            if begun and open_run(broker, run_id, write_options, source).closed:
                logger.warning("bulk load %s is closed: all rows are stored, nothing is written", run_id)
        return JobsWriter(options, write_options, source, run_id)


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
    _, layout = broker.read_layout(write_options.queue)
    kind = layout.get("kind", "python") if layout and not layout.get("deleted") else write_options.kind or "python"
    if write_options.kind and kind != write_options.kind:
        raise PipelineError(
            f"queue {write_options.queue!r} is of kind {kind}, not {write_options.kind}; leave the option kind out"
        )


def how_to_resume(run_id: str) -> str:
    """Return instructions for resuming an open bulk load."""
    return f"repeat the write with option('runId', {run_id!r}) to resume it; stored chunks are not written twice"
