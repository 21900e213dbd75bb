"""Events from the streams into the lake, batch by batch, each exactly once.

A batch has a folder of its own in each day that it has events of, named by the query of Spark and the batch's number. A
batch that is read again, because the run died before Spark had noted it, replaces its own folders.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import Observation
from pyspark.sql import functions as F

from . import quality
from .errors import EventsLost, PipelineError
from .lake import EVENTS_TABLE, Lake
from .transforms import is_attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

#: makes the stream of events; tests bring their own
Source = Callable[["SparkSession"], "DataFrame"]
CHECKPOINTS: Final = "_checkpoints"
_POLL_S: Final = 0.2
_SAID: Final = re.compile(r"(?:[\w.]+\.)?(EventsLost|Misconfigured|QueueUnavailable|PipelineError): (.*)")


@dataclass(slots=True)
class Landed:
    """What a run has read."""

    rows: int = 0
    #: attempts that will go into the quarantine
    bad: int = 0
    batches: int = 0
    #: expectation → rows that broke it
    broken: dict[str, int] = field(default_factory=dict)

    def add(self, counted: Mapping[str, Any], expectations: Sequence[quality.Expectation]) -> None:
        """Counts one batch."""
        if not counted:  # Spark did not run a query over no rows
            return
        self.rows += counted["rows"] or 0
        self.bad += counted["bad"] or 0
        for name, count in quality.by_name(expectations, counted).items():
            self.broken[name] = self.broken.get(name, 0) + count


class Landing:
    """Reads on from the checkpoint of a consumer to where the streams end now.

    Args:
        landed: is kept in step with what is landed.
    """

    def __init__(
        self, lake: Lake, consumer: str, source: Source, expectations: Sequence[quality.Expectation], landed: Landed
    ) -> None:
        self._lake = lake
        self._source = source
        self._expectations = expectations
        self._checkpoint = f"{CHECKPOINTS}/{consumer}"
        self._failure: BaseException | None = None
        self._landed = landed

    def run(self, stop: Callable[[], bool]) -> None:
        """Lands what there is.

        Args:
            stop: asked now and then; a batch that is not done when it says yes is read again by the next run.

        Raises:
            EventsLost: events were taken off before they were read.
            PipelineError: they cannot be read.
        """
        self._failure = None
        query = (
            self._source(self._lake.spark)
            .writeStream.foreachBatch(self._land)
            .option("checkpointLocation", self._lake.files.url(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            self._await(query, stop)
        finally:
            query.stop()

    def _await(self, query: StreamingQuery, stop: Callable[[], bool]) -> None:
        try:
            while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]  # Spark takes parts of a second
                if stop():
                    return
        except StreamingQueryException as error:
            raise self._meant(error) from error

    def _meant(self, error: StreamingQueryException) -> BaseException:
        """What went wrong, in its own words: Spark wraps it into pages of its own."""
        if self._failure is not None:
            return self._failure
        said = _SAID.findall(str(error))
        if not said:
            return PipelineError(f"The events could not be read: {str(error).splitlines()[0]}")
        name, text = said[-1]
        return EventsLost(text) if name == EventsLost.__name__ else PipelineError(f"{name}: {text}")

    def _land(self, batch: DataFrame, number: int) -> None:
        try:
            self._put(batch, number)
        except BaseException as error:
            self._failure = error
            # Whatever it was: Spark waits for ever for the answer to a call that ends with no Exception.
            raise PipelineError("The batch could not be landed") from error

    def _put(self, batch: DataFrame, number: int) -> None:
        seen = Observation()
        counters = [F.count(F.lit(1)).alias("rows"), *quality.counters(self._expectations, is_attempt())]
        # A source has a task for each shard, and a file of each would be small.
        cores = batch.sparkSession.sparkContext.defaultParallelism
        fresh = self._lake.write(EVENTS_TABLE, batch.observe(seen, *counters).coalesce(cores))
        self._lake.step("batch written")
        self._lake.note_pending(fresh.days)
        self._lake.step("days noted")
        self._lake.put(EVENTS_TABLE, fresh, fresh.days, f"batch={self._query()}-{number}")
        self._lake.step("batch landed")
        self._landed.add(seen.get, self._expectations)
        self._landed.batches += 1

    def _query(self) -> str:
        """The beginning of the id of Spark's query: a new checkpoint is a new query, with batches from 0 on again."""
        text = self._lake.files.read(f"{self._checkpoint}/metadata") or "{}"
        return str(json.loads(text)["id"])[:8]


def read_offsets(lake: Lake, consumer: str) -> dict[str, Any]:
    """How far the checkpoint of a consumer says that everything is landed; empty before the first batch."""
    home = f"{CHECKPOINTS}/{consumer}"
    done = [int(name) for name in lake.files.names(f"{home}/commits") if name.isdigit()]
    text = lake.files.read(f"{home}/offsets/{max(done)}") if done else None
    if text is None:
        return {}
    # a version, what Spark wants to know, then a line for each source: we have one
    found = json.loads(text.splitlines()[2])
    return found if isinstance(found, dict) else {"": found}
