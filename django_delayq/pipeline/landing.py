"""Events from the streams into the lake, batch by batch, each exactly once.

A batch has a folder of its own in each day that it has events of, named by the query of Spark, the batch's number and
the hours of its events. A batch that is read again, because the run died before Spark had noted it, replaces its own
folders. Where losses are allowed it may have less in it than the first time, and so may the first batch of all, of
which Spark does not keep where it began: then its folders lie beside those of before, and what is there twice counts
once.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import Observation
from pyspark.sql import functions as F

from . import quality
from .errors import EventsLost, PipelineError
from .lake import EVENTS_TABLE, NO_DAY, Lake, batch_name
from .options import HistoryOptions, source_options
from .transforms import is_attempt
from .wanted import by_day, hour_number

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
    #: day → its hours that events were landed of
    hours: dict[date, set[int]] = field(default_factory=dict)

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
        lossy: a batch may have less in it than when it was read before.
    """

    def __init__(
        self,
        lake: Lake,
        consumer: str,
        source: Source,
        expectations: Sequence[quality.Expectation],
        landed: Landed,
        *,
        lossy: bool = False,
    ) -> None:
        self._lake = lake
        self._source = source
        self._expectations = expectations
        self._checkpoint = f"{CHECKPOINTS}/{consumer}"
        self._failure: BaseException | None = None
        self._landed = landed
        self._lossy = lossy
        self._own = f"r{uuid.uuid4().hex[:6]}"

    @property
    def is_new(self) -> bool:
        """Whether the consumer has no checkpoint here yet."""
        return not self._lake.files.names(f"{self._checkpoint}/offsets")

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
        if self._failure is not None and not isinstance(self._failure, (PySparkException, Py4JError)):
            return self._failure
        # What a task says comes through the job that writes the batch, which is a failure of landing it.
        said = _SAID.findall(str(self._failure or error))
        if not said:
            return self._failure or PipelineError(f"The events could not be read: {str(error).splitlines()[0]}")
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
        touched = F.collect_set(hour_number(F.col("ts"))).alias("hours")
        counters = [F.count(F.lit(1)).alias("rows"), touched, *quality.counters(self._expectations, is_attempt())]
        # A source has a task for each shard, and a file of each would be small.
        cores = batch.sparkSession.sparkContext.defaultParallelism
        fresh = self._lake.write(EVENTS_TABLE, batch.observe(seen, *counters).coalesce(cores))
        self._lake.step("batch written")
        self._lake.note_pending(fresh.days)
        self._lake.step("days noted")
        counted = seen.get
        hours = by_day(counted.get("hours") or ())
        beside = self._own if self._lossy or number == 0 else ""
        name = f"{self._query()}{beside}-{number}"
        # What has no time lies in a day of which no hour is known.
        self._lake.put(
            EVENTS_TABLE,
            fresh,
            fresh.days,
            lambda day: batch_name(name, None if day == NO_DAY else hours.get(day)),
        )
        self._lake.step("batch landed")
        self._landed.add(counted, self._expectations)
        for day, some in hours.items():
            self._landed.hours.setdefault(day, set()).update(some)
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


def events_source(options: HistoryOptions) -> Source:
    """The events of the queues that a history reads, as a stream."""
    return lambda spark: spark.readStream.format("delayq.events").options(**source_options(options)).load()


def warn_of_lost_root(options: HistoryOptions) -> None:
    """A checkpoint begins: says so, if there was another one that has read part of the events, which are gone."""
    from ..core.errors import DelayQError
    from ..core.streams import parts
    from .events import read_before

    try:
        position = read_before(source_options(options))
    except DelayQError as error:
        raise PipelineError(f"{type(error).__name__}: {error}") from error
    if position is not None:
        when = datetime.fromtimestamp(parts(position)[0] / 1000, UTC)
        log.warning(
            "consumer %s was read up to %s (%s) by a checkpoint that is gone; figures of today are computed from what "
            "is still there, so they may be less than they were; see to it that the root is a volume that survives",
            options.consumer,
            position,
            when.isoformat(timespec="seconds"),
        )
