"""Comparison of a frame with the queue: jobs that its rows require and the queue lacks are scheduled again.

The rules are those of :mod:`..repair.rows`.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from py4j.protocol import Py4JError
from pyspark.sql import Observation, functions as F

from ..core.errors import DelayQError
from ..core.times import datetime_of
from ..repair.rows import FIRST, GRACE_MS, RowCounts
from .bulk import BulkOptions, Watch, bulk, due_column, fault_of, id_column
from .errors import PipelineError
from .inputs import Files
from .options import open_broker
from .repair import fixed, snapshot
from .write_options import WriteOptions
from .writer import quarantined, temporary_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: reads the rows that need a job, those created before a moment
Rows: TypeAlias = "Callable[[datetime], DataFrame]"
_ID: Final = "__job_id"
_BAD: Final = "__bad"
_BURIED: Final = "__buried"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """Jobs that should exist.

    Args:
        jobs: mapping from rows to jobs; its run id is not used.
        grace_ms: rows younger than this are ignored.
        include_morgue: also schedule jobs that have only a record in the morgue.
        scratch: folder for temporary ones with the missing rows. On a cluster, Spark's workers have to see it, too.
    """

    jobs: BulkOptions
    grace_ms: float = GRACE_MS
    include_morgue: bool = False
    scratch: str = field(default_factory=tempfile.gettempdir)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonResult(RowCounts):
    """Result of a comparison with Spark, before anything is scheduled."""

    #: the missing rows, as a fixed snapshot
    frame: DataFrame


class Reconciliation:
    """Comparison of rows with a queue. Call :meth:`look`, then :meth:`put_back` with its result.

    Args:
        spark: a session with the formats registered.
        rows: reads the rows that need a job.
    """

    def __init__(self, spark: SparkSession, options: ReconcileOptions, rows: Rows) -> None:
        self._spark = spark
        self._options = options
        self._read_rows = rows
        #: the first rows that :meth:`put_back` found invalid: id and reason
        self.refused: tuple[tuple[str, str], ...] = ()

    def look(self) -> ComparisonResult:
        """Read the queue, then the rows, and compare them.

        Raises:
            PipelineError: an option does not fit the rows.
            QueueUnavailable: Redis cannot be reached.
        """
        jobs = self._options.jobs
        with open_broker(jobs.address()) as broker:
            began_ms = round(broker.now_ms())
        queued = fixed(self.read_queue())
        seen, rows = Observation("rows"), self._rows(began_ms)
        counted = rows.observe(seen, F.count(F.lit(1)).alias("n"))
        live = queued.where("state != 'morgue'").select(F.col("id").alias(_ID))
        dead = queued.where("state = 'morgue'").select(F.col("id").alias(_ID), F.lit(True).alias(_BURIED)).distinct()
        compared = fixed(counted.join(live, _ID, "left_anti").join(dead, _ID, "left"))
        buried, bad = F.col(_BURIED).isNotNull(), F.col(_BAD).isNotNull()
        missing = compared.where(~bad if self._options.include_morgue else ~bad & ~buried).drop(_BAD, _BURIED)
        if jobs.payload is None:  # rows that share a plain job count once
            missing = fixed(missing.dropDuplicates([_ID]))
        first = missing.select(_ID).distinct().orderBy(_ID).limit(FIRST).toArrow().column(0).to_pylist()
        wrong = compared.where(bad).select(_ID, _BAD).orderBy(_ID).limit(FIRST).toArrow().to_pylist()
        try:
            number = int(seen.get["n"])
        except Py4JError:  # Spark drops the observation when it finds that there is nothing to compare
            number = rows.count()
        return ComparisonResult(
            rows=number,
            known=queued.count(),
            missing=missing.count(),
            buried=compared.where(~bad & buried).count(),
            bad=compared.where(bad).count(),
            first=tuple(first),
            frame=missing.drop(_ID),
            first_bad=tuple((row[_ID], row[_BAD]) for row in wrong),
        )

    def put_back(
        self, comparison: ComparisonResult, *, run_id: str | None = None, watch: Watch | None = None
    ) -> dict[str, int]:
        """Schedule the missing jobs. Invalid rows are skipped, so that one cannot block the others; see ``refused``.

        Args:
            run_id: id of the bulk load; None = a new one. It must not be in use.
            watch: see :func:`~.bulk.bulk`.

        Returns:
            The number of rows by outcome: created; merged (another row's payload joined it); ignored (the job existed
                after all); refused (invalid).

        Raises:
            PipelineError: Redis is unavailable, full or paused. Jobs already scheduled stay.
        """
        if not comparison.missing:
            return {}
        run_id = run_id or f"reconcile-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        try:
            with temporary_folder(self._options.scratch, run_id) as folder:
                rows, refused = f"{folder}/rows", f"{folder}/refused"
                comparison.frame.write.parquet(rows)
                jobs = replace(self._options.jobs, run_id=run_id, quarantine=refused)
                result = bulk(self._spark, Files((rows,)), jobs, total=comparison.missing, watch=watch)
                if result.bad:
                    bad = quarantined(refused, run_id).head(FIRST, columns=["id", "reason"]).to_pylist()
                    self.refused = tuple((str(row["id"]), row["reason"]) for row in bad)
            return {**result.counts, **({"refused": result.bad} if result.bad else {})}
        except DelayQError as error:
            # The next comparison finds what is still missing, so this bulk load is never resumed.
            reason = str(error).partition(f". Bulk load {run_id} ")[0]
            raise PipelineError(
                f"{reason}. Jobs that are scheduled already stay; repeat the call for the others"
            ) from error

    def read_queue(self) -> DataFrame:
        """Return id and state of all jobs of the queue, read when the frame is computed."""
        jobs = self._options.jobs
        return snapshot(self._spark, jobs.address(), ("id", "state"), queues=[jobs.queue], missing_is_empty=True)

    def _rows(self, began_ms: int) -> DataFrame:
        """Return the rows that need a job, with its id and any fault."""
        jobs = self._options.jobs
        table = self._read_rows(datetime_of(began_ms - self._options.grace_ms))
        ident = id_column(table, jobs.id)
        last = WriteOptions.parse(jobs.format_options("look", {})).last_ms(began_ms)
        fault = fault_of(ident, due_column(table, jobs.due, began_ms), last)
        return table.withColumn(_BAD, fault).withColumn(_ID, ident)
