"""Comparison of a table with the queue: jobs that the table requires and the queue lacks are scheduled again.

The rules are those of :mod:`..repair.rows`. The rows come as frames, whose columns the caller has read; Spark's
workers know nothing of models.
"""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

from py4j.protocol import Py4JError
from pyspark.sql import Observation
from pyspark.sql import functions as F

from ..core.actions import cancel_selected
from ..core.bulk import act_in_shard
from ..core.errors import DelayQError
from ..core.inputs import CONTROL
from ..core.times import MAX_DUE_MS, TEN_YEARS_MS, datetime_of
from ..repair.rows import DEAD, FIRST, GRACE_MS, LIVE, RowCounts, names_in, pattern_of
from .bulk import BulkOptions, Watch, bulk, due_column, id_column, kinds_of
from .errors import PipelineError
from .inputs import Files
from .options import open_broker
from .quarantine import reasons, temporary_folder
from .repair import EVERY_STATE, NAMING, Home, Names, Selection, act_on, chosen, fixed, snapshot

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from ..core.queue import Queue

#: reads the rows that need a job: those created before a moment (None = young rows, too); if the second is true, from
#: the database that is written to, because a replica lags behind
Rows: TypeAlias = "Callable[[datetime | None, bool], DataFrame]"
_ID: Final = "__job_id"
_BAD: Final = "__bad"
_BURIED: Final = "__buried"
_MOST_ID: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """Jobs that should exist.

    Args:
        jobs: mapping from rows to jobs; its run id is not used.
        id_pattern: regular expression for the ids that rows can have; None = by the types of the rows' columns.
        grace_ms: rows younger than this are ignored.
        include_morgue: also schedule jobs that have only a record in the morgue.
        scratch: folder for temporary ones with the missing rows. On a cluster, Spark's workers have to see it, too.
    """

    jobs: BulkOptions
    id_pattern: str | None = None
    grace_ms: float = GRACE_MS
    include_morgue: bool = False
    scratch: str = field(default_factory=tempfile.gettempdir)

    def __post_init__(self) -> None:
        if self.jobs.task is None:
            raise PipelineError(
                "which task? Give the name of the task whose jobs are compared; raw jobs cannot be reconciled"
            )
        if self.grace_ms < 0:
            raise PipelineError("the grace is the minimum age of compared rows; give 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonResult(RowCounts):
    """Result of a comparison with Spark, before anything is scheduled."""

    #: the missing rows, as a fixed snapshot
    frame: DataFrame


class Reconciliation:
    """Comparison of a table with a queue. Call :meth:`look` first, then any of the other methods.

    Args:
        spark: a session with the formats registered.
        rows: reads the rows that need a job.
        outbox: reads ``job_id`` and ``state`` of the durable jobs of the queue; None = there are none.
        now_ms: another clock, like the database's, Unix ms; the earlier one of it and Redis's is used.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: ReconcileOptions,
        rows: Rows,
        *,
        outbox: Callable[[], DataFrame] | None = None,
        now_ms: Callable[[], float] | None = None,
    ) -> None:
        self._spark = spark
        self._options = options
        self._read_rows = rows
        self._read_outbox = outbox
        self._other_clock = now_ms
        #: the first rows that :meth:`put_back` found invalid: id and reason
        self.refused: tuple[tuple[str, str], ...] = ()

    @cached_property
    def began_ms(self) -> float:
        """Time before the first read, Unix ms."""
        with open_broker(self._options.jobs.address()) as broker:
            now = broker.now_ms()
        return now if self._other_clock is None else min(now, self._other_clock())

    @cached_property
    def queued(self) -> DataFrame:
        """Id and state of the jobs seen in the queue and in the outbox (``outbox`` or ``morgue``)."""
        _ = self.began_ms
        state = F.when(F.col("state").isin(*DEAD), "morgue").otherwise("outbox").alias("state")
        durable = None
        if self._read_outbox is not None:  # read before the queue
            durable = fixed(self._read_outbox().select(F.col("job_id").alias("id"), state))
        jobs = fixed(self._snapshot(("id", "state"), EVERY_STATE).select("id", "state"))
        return jobs if durable is None else jobs.unionByName(durable)

    def look(self) -> ComparisonResult:
        """Read the queue, then the table, and compare them.

        Raises:
            PipelineError: an option does not fit the table.
            QueueUnavailable: Redis cannot be reached.
        """
        queued = self.queued
        seen = Observation("rows")
        rows = self._rows(self._cutoff()).observe(seen, F.count(F.lit(1)).alias("n"))
        rows = rows.join(queued.where("state != 'morgue'").select(F.col("id").alias(_ID)), _ID, "left_anti")
        buried_jobs = (
            queued.where("state = 'morgue'").select(F.col("id").alias(_ID), F.lit(True).alias(_BURIED)).distinct()
        )
        compared = fixed(rows.join(buried_jobs, _ID, "left"))
        buried, bad = F.col(_BURIED).isNotNull(), F.col(_BAD).isNotNull()
        missing = compared.where(~bad if self._options.include_morgue else ~bad & ~buried).drop(_BAD, _BURIED)
        if self._options.jobs.payload is None:  # rows that share a plain job count once
            missing = fixed(missing.dropDuplicates([_ID]))
        first = missing.select(_ID).distinct().orderBy(_ID).limit(FIRST).toArrow().column(0).to_pylist()
        wrong = compared.where(bad).select(_ID, _BAD).orderBy(_ID).limit(FIRST).toArrow().to_pylist()
        return ComparisonResult(
            rows=self._count(seen),
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
        jobs = replace(self._options.jobs, run_id=run_id)
        try:
            with temporary_folder(self._options.scratch, run_id) as folder:
                rows, refused = f"{folder}/rows", f"{folder}/refused"
                comparison.frame.write.parquet(rows)
                jobs = replace(jobs, quarantine=refused)
                result = bulk(self._spark, Files((rows,)), jobs, total=comparison.missing, watch=watch)
                self.refused = tuple(reasons(refused, run_id, FIRST)) if result.bad else ()
            return {**result.counts, **({"refused": result.bad} if result.bad else {})}
        except DelayQError as error:
            # The next comparison finds what is still missing, so this bulk load is never resumed.
            reason = str(error).partition(f". Bulk load {run_id} ")[0]
            raise PipelineError(
                f"{reason}. Jobs that are scheduled already stay; repeat the call for the others"
            ) from error

    def orphans(self) -> Selection:
        """Return live jobs of the task, with ids that match the template, that no row needs."""
        jobs = self._options.jobs
        seen = self._snapshot((*NAMING, "task", "due"), LIVE)
        pattern = self._options.id_pattern
        if pattern is None:
            pattern = pattern_of(jobs.id, kinds_of(self._rows(None, written=True), names_in(jobs.id)))
        ours = fixed(seen.where(F.col("task") == F.lit(jobs.task)).where(F.col("id").rlike(rf"\A{pattern}\z")))
        return chosen(fixed(self._without_row(ours)))

    def _without_row(self, seen: DataFrame) -> DataFrame:
        # Compared with young rows as well: their jobs are not orphans.
        rows = self._rows(None, written=True)
        return seen.join(rows, seen["id"] == rows[_ID], "left_anti")

    def cancel_orphans(
        self, orphans: Selection, *, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, int]:
        """Cancel orphans, each only if it is unchanged since the snapshot and still has no row.

        Returns:
            The number of jobs by outcome: cancelled, stopping (it is running and will not be retried), ungated,
                running, gone; needed (there is a row for it now).
        """
        still = fixed(self._without_row(orphans.frame))
        needed = orphans.total - still.count()

        def act(queue: Queue, home: Home, names: Names) -> Mapping[str, int]:
            return Counter(act_in_shard(queue, home[1], names, cancel_selected()))

        with open_broker(self._options.jobs.address()) as broker:
            outcomes = act_on(broker, still, act, total=orphans.total, progress=progress)
        return {**outcomes, **({"needed": needed} if needed else {})}

    # -- the queue and the table -------------------------------------------------------------------------------------

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self._options.jobs.queue

    def _snapshot(self, columns: Sequence[str], states: Sequence[str]) -> DataFrame:
        jobs = self._options.jobs
        return snapshot(self._spark, jobs.address(), columns, queues=[jobs.queue], states=states, missing_is_empty=True)

    def _cutoff(self) -> datetime:
        return datetime_of(self.began_ms - self._options.grace_ms)

    def _rows(self, before: datetime | None, *, written: bool = False) -> DataFrame:
        """Return the rows that need a job, with its id and any fault; ``before`` None = young rows, too."""
        jobs, table = self._options.jobs, self._read_rows(before, written)
        due, ident = due_column(table, jobs.due, round(self.began_ms)), id_column(table, jobs.id)
        if due is not None and table.select(due).schema[0].dataType.simpleString() == "timestamp":
            due = F.ceil(F.unix_micros(due) / 1000)
        far = str(jobs.more.get("allowFar", "false")).lower() == "true"
        last = MAX_DUE_MS if far else min(MAX_DUE_MS, round(self.began_ms) + TEN_YEARS_MS)
        return table.withColumn(_BAD, _fault_of(ident, due, last)).withColumn(_ID, ident)

    def _count(self, seen: Observation) -> int:
        try:
            return int(seen.get["n"])
        except Py4JError:  # Spark drops the observation when it finds that there is nothing to compare
            return self._rows(self._cutoff()).count()


def _fault_of(ident: Column, due_ms: Column | None, last_ms: int) -> Column:
    """Return why a bulk load would reject a row, as far as that is cheap to compute; null if it may be valid."""
    size = F.octet_length(ident)
    rules = [
        (ident.isNull(), "id is null, because a part of it is"),
        ((size == 0) | (size > _MOST_ID), f"id must be 1 to {_MOST_ID} bytes of UTF-8"),
        (F.rlike(ident, F.lit(CONTROL)), "id has control characters in it"),
    ]
    if due_ms is not None:
        rules += [
            (due_ms.isNull(), "due is null"),
            (due_ms < 0, "due is before 1970"),
            (due_ms > last_ms, "due is more than ten years ahead, or later than can be stored"),
        ]
    fault = F.lit(None).cast("string")
    for wrong, reason in reversed(rules):
        fault = F.when(wrong, F.lit(reason)).otherwise(fault)
    return fault
