"""Writers of jobs: ``df.write.format("delayq").mode("append")`` and ``df.writeStream.format("delayq")``.

Columns: ``id`` (required), ``due`` or ``due_ms`` (without them all jobs are due at once), ``args``, ``kwargs``, or
``payload`` and ``score``, and, to set them per row, ``priority``, ``context``, ``on_conflict``, ``task``, ``queue``,
``max_attempts``, ``expires``, ``timeout``, ``ttr``. Options: :class:`~.write_options.WriteOptions`, in camelCase.

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
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..core import loads
from ..core.broker import Broker
from ..core.errors import DelayQError
from ..core.loads import memory_of
from .column_names import fault_of_case
from .errors import PipelineError, RunDiffers
from .redis_options import open_broker
from .sender import AT, Refused, Sender, Sent, open_run
from .write_options import WriteOptions
from .write_schema import check_schema

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
            with open_broker(self.options) as broker:
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
        with plain_errors():
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
        with plain_errors():
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
    with plain_errors():
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
    with plain_errors():
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
def plain_errors() -> Iterator[None]:
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
