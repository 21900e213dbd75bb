"""Landing of events from the streams in the table of events, batch by batch, each exactly once.

A batch is one version of the table, under the id of Spark's query and the batch's number. A pipeline run that dies
between this version and Spark's own note of the batch leaves it to the next run, which sees that the batch is in and
does not read it again. A new checkpoint has a new id and reads all events that are left; duplicates count once.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import Observation
from pyspark.sql import functions as F

from . import quality
from .errors import EventsLost, PipelineError
from .history_options import HistoryOptions, source_options
from .store import CHECKPOINTS, PendingDays
from .tables import Step, Table, days_of
from .transforms import is_attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

#: creates the stream of events; tests pass their own
Source = Callable[["SparkSession"], "DataFrame"]
_POLL_S: Final = 0.2
_ERROR: Final = re.compile(r"(?:[\w.]+\.)?(EventsLost|Misconfigured|QueueUnavailable|PipelineError): (.*)")


@dataclass(slots=True)
class Landed:
    """Events that a pipeline run has landed."""

    rows: int = 0
    #: number of attempts that will be quarantined
    bad: int = 0
    batches: int = 0
    #: expectation → number of rows that broke it
    broken: dict[str, int] = field(default_factory=dict)
    #: day → hours with landed events
    hours: dict[date, set[int]] = field(default_factory=dict)

    def add(
        self,
        counted: Mapping[str, Any],
        expectations: Sequence[quality.Expectation],
        days: Mapping[date, set[int]] | None = None,
    ) -> None:
        """Add the counts of one batch, and its days and hours."""
        self.batches += 1
        for day, hours in (days or {}).items():
            self.hours.setdefault(day, set()).update(hours)
        if not counted:  # Spark did not run a query over no rows
            return
        self.rows += counted["rows"] or 0
        self.bad += counted["bad"] or 0
        for name, count in quality.by_name(expectations, counted).items():
            self.broken[name] = self.broken.get(name, 0) + count


class Landing:
    """Reading of the streams from a checkpoint to their current end.

    Args:
        pending: gets the days of each batch before it is landed.
        step: called with the name of each completed step.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: Table,
        options: HistoryOptions,
        source: Source,
        pending: PendingDays,
        step: Step,
    ) -> None:
        self._spark = spark
        self._table = table
        self._source = source
        self._expectations = options.expectations
        self._pending = pending
        self._step = step
        self._checkpoint = f"{CHECKPOINTS}/{options.consumer}"
        self._failure: BaseException | None = None
        self.landed = Landed()

    def run(self, stop: Callable[[], bool]) -> None:
        """Land all available events.

        Args:
            stop: called repeatedly; after it returns True, the next pipeline run reads an unfinished batch again.

        Raises:
            EventsLost: events were removed from the streams before they were read.
            PipelineError: the events cannot be read.
        """
        self._failure = None
        query = (
            self._source(self._spark)
            .writeStream.foreachBatch(self._land)
            .option("checkpointLocation", self._table.store.url(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]  # Spark accepts fractions
                if stop():
                    return
        except StreamingQueryException as error:
            raise self._original_error(error) from error
        finally:
            query.stop()

    def _original_error(self, error: StreamingQueryException) -> BaseException:
        """Return the original error, which Spark wraps into a long text."""
        if self._failure is not None and not isinstance(self._failure, (PySparkException, Py4JError)):
            return self._failure
        # An error of a Spark task fails the job that writes the batch, so it arrives as a failure of the landing.
        errors = _ERROR.findall(str(self._failure or error))
        if not errors:
            return self._failure or PipelineError(f"The events could not be read: {str(error).splitlines()[0]}")
        name, text = errors[-1]
        return EventsLost(text) if name == EventsLost.__name__ else PipelineError(f"{name}: {text}")

    def _land(self, batch: DataFrame, number: int) -> None:
        try:
            self._land_once(batch, number)
        except BaseException as error:
            self._failure = error
            # Raised for BaseException, too: Spark waits forever for a call that does not end with an Exception.
            raise PipelineError("The batch could not be landed") from error

    def _land_once(self, batch: DataFrame, number: int) -> None:
        query = self._query()
        if self._table.has(query, number):
            log.info("batch %s of %s was landed by an interrupted run; its days are computed completely", number, query)
            return
        seen = Observation()
        counters = [F.count(F.lit(1)).alias("rows"), *quality.counters(self._expectations, is_attempt())]
        # A source has a task for each shard; one file of each task would be too small.
        cores = self._spark.sparkContext.defaultParallelism
        files = self._table.write(batch.observe(seen, *counters).coalesce(cores))
        self._step("batch written")
        days = days_of(files)
        self._pending.note(days)
        self._step("days noted")
        self._table.append(files, query, number)
        self._step("batch landed")
        self.landed.add(seen.get, self._expectations, days)

    def _query(self) -> str:
        """Return the id of Spark's query. A new checkpoint has a new id and counts its batches from 0."""
        return str(json.loads(self._table.store.read(f"{self._checkpoint}/metadata") or "{}")["id"])


def events_source(options: HistoryOptions) -> Source:
    """Return a source that streams the events of the queues of a history."""
    return lambda spark: spark.readStream.format("delayq.events").options(**source_options(options)).load()
