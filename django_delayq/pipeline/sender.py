"""Sender of one Spark task: packs rows by column and writes them to the queues in chunks of a bulk load per queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from ..core import loads
from ..core.broker import Broker
from ..core.errors import InvalidJob
from ..core.inputs import check_queue_name
from ..core.loads import BulkLoad, BulkLoadLimits, BulkLoadWriter
from . import cells
from .cells import Bad
from .columns import Packer
from .errors import PipelineError, RunDiffers
from .quarantine import Quarantine, texts_of
from .write_options import QUARANTINE, WriteOptions

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
        if not cells.is_valid(batch.column("queue")):
            bad: Bad = {}
            cells.values(batch.column("queue"), bad)
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
