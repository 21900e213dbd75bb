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

import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..core import loads
from ..core.broker import Broker
from ..core.errors import DelayQError, InvalidJob
from ..core.inputs import short
from ..core.loads import BulkLoad, BulkLoadLimits, BulkLoadWriter, memory_of
from .columns import Packer
from .errors import PipelineError
from .options import open_broker, without_collector
from .write_options import WriteOptions, check_schema

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

#: rows that are packed at once: few enough that Redis does not wait for the next ones
_PIECE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """Result of one Spark task that sent jobs, for the driver."""

    #: reason for which the input cannot be written; raised by the driver, because Spark would retry a failed task in
    #: vain
    refused: str = ""


class Refused(PipelineError):
    """Error for input that cannot be written as it is, so that retrying the task is useless."""


def open_run(broker: Broker, run_id: str, options: WriteOptions, source: Mapping[str, str]) -> BulkLoad:
    """Open the bulk load; the queue is created if necessary with the shards and the kind of the options.

    Raises:
        BulkLoadDiffers: the bulk load was started with other input or options.
    """
    broker.queue(options.queue, shards=options.shards, kind=options.kind or "python")
    return loads.open_load(broker, run_id, options.queue, source=source, chunk=options.chunk)


def send(
    broker: Broker,
    options: WriteOptions,
    run: BulkLoad,
    batches: Iterable[pa.RecordBatch],
    *,
    part: int = 0,
    attempt: int = 0,
) -> None:
    """Send the rows of one task.

    Args:
        part, attempt: index of the task, and number of the attempt at it.

    Raises:
        Refused: a row is invalid, and there is no quarantine.
        DelayQError: see :meth:`JobsWriter.write`.
    """
    packer = Packer(options, run, str(broker.queue(run.queue).layout["kind"]))
    writer = BulkLoadWriter(broker, run, BulkLoadLimits(options.rate_limit, options.patience, options.max_memory))
    invalid: list[pa.Table] = []
    try:
        for batch in _pieces(batches):
            packed = packer.pack(batch)
            if packed.bad:
                if not options.quarantine:
                    raise Refused(_text_of(batch, packed.bad))
                invalid.append(with_reasons(batch, packed.bad))
            writer.add(packed.entries)
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    if options.quarantine and invalid:
        store(pa.concat_tables(invalid), options.quarantine, f"{stem(run.id)}-{part:05d}", attempt)


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        named = batch.rename_columns([name.lower() for name in batch.schema.names])
        yield from (named.slice(start, _PIECE) for start in range(0, batch.num_rows, _PIECE))


def _text_of(batch: pa.RecordBatch, bad: Mapping[int, str]) -> str:
    row = min(bad)
    ident = batch["id"].cast(pa.binary() if pa.types.is_string(batch["id"].type) else pa.string())[row].as_py()
    text = ident.decode(errors="backslashreplace") if isinstance(ident, bytes) else ident
    return f"the row with id {short(text)} cannot be written: {bad[row]}"


# -- quarantine: rows that are not valid jobs, as Parquet with the reason --------------------------------------------


def file_system(folder: str) -> tuple[Any, str]:
    """Return the file system of a folder, and the folder's path in it.

    It is Arrow's file system, not Spark's: credentials of a store (for S3: AWS_ACCESS_KEY_ID and the like) are read
    from the environment.

    Raises:
        PipelineError: no file system opens it.
    """
    if "://" not in folder and not folder.startswith("file:"):
        return fs.LocalFileSystem(), os.path.abspath(folder)
    try:
        return fs.FileSystem.from_uri(re.sub("^s3a:", "s3:", folder))  # type: ignore[no-any-return]  # Hadoop's scheme
    except (pa.ArrowException, OSError) as error:
        hint = "give a folder that every machine of the cluster can write to"
        raise PipelineError(f"the quarantine {folder[:200]!r} cannot be opened: {error}; {hint}") from error


def stem(run_id: str) -> str:
    """Return the common prefix of the file names of a bulk load."""
    return "delayq-" + hashlib.sha256(run_id.encode()).hexdigest()[:16]


def with_reasons(batch: pa.RecordBatch, bad: Mapping[int, str]) -> pa.Table:
    """Return the invalid rows of a batch, with the reasons as a column."""
    rows = sorted(bad)
    table = pa.Table.from_batches([batch]).take(pa.array(rows, pa.int64()))
    return table.append_column("reason", pa.array([bad[row] for row in rows], pa.string()))


def store(rows: pa.Table, folder: str, name: str, attempt: int) -> None:
    """Write the rows to one file of a folder, which replaces that of another attempt at the task."""
    system, root = file_system(folder)
    system.create_dir(root, recursive=True)
    fresh = f"{root}/.{name}.{attempt}"
    pq.write_table(rows, fresh, filesystem=system)
    system.move(fresh, f"{root}/{name}.parquet")


def quarantined(folder: str, run_id: str) -> Dataset:
    """Return the rows of a bulk load in the quarantine."""
    from pyarrow import dataset as ds  # imports pandas, which Spark's workers do without

    system, root = file_system(folder)
    infos = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    files = sorted(info.path for info in infos if info.base_name.startswith(stem(run_id)))
    return ds.dataset(files, filesystem=system, format="parquet")


@contextmanager
def temporary_folder(parent: str, name: str) -> Iterator[str]:
    """Yield a folder inside ``parent`` for rows of one bulk load, and delete it with its contents at the end."""
    folder = f"{parent.rstrip('/')}/{name}"
    system, path = file_system(folder)
    try:
        yield folder
    finally:
        with suppress(OSError):
            system.delete_dir(path)


# -- writer of Spark ---------------------------------------------------------------------------------------------------


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
                if not run.closed:
                    send(broker, self.write_options, run, iterator, **task)
                return Sent()
        except loads.BulkLoadDiffers:
            raise
        except (Refused, InvalidJob) as error:
            return Sent(refused=str(error))
        except DelayQError as error:
            raise PipelineError(f"{error}. Bulk load {self.run_id} is open: {how_to_resume(self.run_id)}") from error

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
                if run is not None and self.write_options.close:
                    loads.close_load(broker, run)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> JobsWriter:
    """Return the writer after all checks that are possible before it runs.

    Raises:
        Misconfigured, PipelineError: options, columns or Redis do not meet the requirements.
        BulkLoadDiffers: the option ``runId`` names a bulk load that was started with other input or options.
    """
    with short_errors():
        if overwrite:
            raise PipelineError(
                'a queue cannot be overwritten; write with .mode("append"). To remove jobs, cancel them: '
                "manage.py delayq_pipeline jobs cancel"
            )
        write_options = WriteOptions.parse(options)
        source = write_options.described(check_schema(schema, write_options))
        run_id = write_options.run_id or uuid.uuid4().hex
        with open_broker(options) as broker:
            check_redis(broker, write_options)
            if write_options.run_id and loads.read_load(broker, run_id):
                open_run(broker, run_id, write_options, source)
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
        policy = node.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise PipelineError(
                f"Redis has the maxmemory-policy {policy!r}, which evicts jobs when it is full: redis-cli CONFIG SET "
                "maxmemory-policy noeviction, and the same in its redis.conf"
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
