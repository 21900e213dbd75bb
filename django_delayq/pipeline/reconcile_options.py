"""Options and result of the comparison of a table with a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..rows import GRACE_MS, RowCounts
from .bulk_options import BulkOptions
from .errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """Jobs that should exist.

    Args:
        jobs: mapping from rows to jobs; its run id is not used.
        model: model whose rows need a job, like ``shop.Order``.
        filters: field lookups; a row needs a job while all of them are true.
        using: alias of its database; None = chosen by the project's routers.
        written: alias used to check the rows before a job is cancelled as an orphan: that of the primary database,
            because a replica lags behind. None = as ``using``.
        created: the field with the time (or the day) from which on a row needs its job.
        grace_ms: rows younger than this are ignored.
        include_morgue: also schedule jobs that have only a record in the morgue.
        outbox: aliases of the databases that have an outbox of durable jobs.
        scratch: a temporary folder, visible to Spark's workers and this process, for rows that are not valid jobs; None
            = a folder for temporary files, which suffices if all of them run on this machine.
        partitions: number of tasks that read the table; None = the session's default.
    """

    jobs: BulkOptions
    model: str
    created: str
    filters: Sequence[Mapping[str, Any]] = ()
    using: str | None = None
    written: str | None = None
    grace_ms: float = GRACE_MS
    include_morgue: bool = False
    outbox: tuple[str, ...] = ()
    scratch: str | None = None
    partitions: int | None = None

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
