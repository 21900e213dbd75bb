"""Data source ``delayq.events``: the outcome of every attempt, as a batch or as a stream.

    spark.readStream.format("delayq.events").option("redis", "redis://localhost:6379/0").load()

Spark runs the streaming reader in a process of its own to plan offsets and partitions; the tasks read them. The
positions are in Spark's checkpoint alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ..core.broker import Broker
from ..core.events import BEGINNING, Place, Stream, distance, entries, known_places, streams
from . import event_plan as plan
from .event_plan import Offsets, Positions
from .event_reading import EventsOptions, EventsPartition, TaskReader, report
from .redis_options import config_of, open_broker
from .schemas import EVENTS


class EventsSource(DataSource):
    """``delayq.events``: the events of queues, with the columns of ``schemas.EVENTS`` or some of them."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "delayq.events"

    def schema(self) -> StructType:
        """Return all columns."""
        config_of(self.options)  # checked here, so that load() reports invalid options
        EventsOptions.parse(self.options)
        return EVENTS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for a batch query, which reads the events stored now."""
        return EventsReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a streaming reader."""
        return EventsStreamReader(self.options, schema)


# -- batch ----------------------------------------------------------------------------------------------------------


class EventsReader(TaskReader, DataSourceReader):
    """Reader of the events that exist when the query is planned."""

    def partitions(self) -> list[InputPartition]:
        """Return one partition per large shard; smaller shards share one."""
        with open_broker(self.options) as broker:
            places = known_places(broker, self.chosen.queues)
            start_option = self.chosen.start
            by_place = streams(broker, {*places, *(() if isinstance(start_option, str) else start_option)})
            start = plan.starting(by_place, start_option)
            if not isinstance(start_option, str):
                losses = plan.find_losses(broker, start, by_place)
                report(losses, self.chosen)
                start |= {(loss.queue, loss.number): BEGINNING for loss in losses if loss.other_stream}
            tasks = plan.intervals(start, plan.ends(start, by_place, places, None))
        return [EventsPartition(task) for task in tasks]


# -- streaming ------------------------------------------------------------------------------------------------------


class EventsStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader that continues from the offsets in Spark's checkpoint."""

    def __init__(self, options: Any, schema: StructType) -> None:
        super().__init__(options, schema)
        self._reset()

    def _reset(self) -> None:
        self._door: ExitStack | None = None
        self._opened: Broker | None = None
        self._target: Positions | None = None
        self._newest: Offsets | None = None
        self._reported: set[tuple[Place, str]] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that tasks need, without the connections and the planner's own state."""
        return {"options": self.options, "chosen": self.chosen, "arrow": self.arrow}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def _broker(self) -> Broker:
        if self._opened is None:
            self._door = ExitStack()
            self._opened = self._door.enter_context(open_broker(self.options))
        return self._opened

    def stop(self) -> None:
        """Close the connections of the planner."""
        if self._door is not None:
            self._door.close()
        self._door = self._opened = None

    # -- planning

    def initialOffset(self) -> Offsets:
        """Return the position at which a query without a checkpoint begins."""
        start_option = self.chosen.start
        named = () if isinstance(start_option, str) else start_option
        # Include the queues that are read another time: events removed from now on are a loss there, too.
        by_place = streams(self._broker, {*known_places(self._broker), *named})
        return plan.to_offsets(plan.starting(by_place, start_option))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the configured maximum number of rows per batch."""
        return ReadMaxRows(self.chosen.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Offsets:
        """Return the end of the next batch.

        Raises:
            EventsLost: unread events are gone.
        """
        positions, others = self._split(plan.to_positions(start))
        places, by_place = self._read_streams(positions)
        new = plan.joining(positions, by_place, places)
        joined = {place: at for place, at in new.items() if self._target is None or place in self._target}
        losses = self._check({**positions, **joined}, by_place)
        # A shard whose stream is another one leaves, and joins the next batch, which reads it from its beginning.
        replaced = {(loss.queue, loss.number) for loss in losses if loss.other_stream}
        same = [place for place in places if place not in replaced]
        end = plan.ends(positions, by_place, same, self._target)
        if isinstance(limit, ReadMaxRows):
            end = plan.limit_to(limit.max_rows, positions, end, self._walk)
        self._newest = plan.to_offsets({place: by_place[place].last for place in places})
        return plan.to_offsets({**others, **end})

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at the present positions; later events are left to the next query."""
        places, by_place = self._read_streams({})
        self._target = {place: by_place[place].last for place in places}

    def reportLatestOffset(self) -> Offsets | None:
        """Return the latest positions at the last planning, for the progress report of the query."""
        return self._newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of a batch."""
        tasks = plan.intervals(plan.to_positions(start), plan.to_positions(end))
        return [EventsPartition(task) for task in tasks]

    def _split(self, positions: Positions) -> tuple[Positions, Positions]:
        """Return the positions of the queues that are read, and those of the others, which stay unchanged."""
        queues = self.chosen.queues
        read = {place: at for place, at in positions.items() if not queues or place[0] in queues}
        return read, {place: at for place, at in positions.items() if place not in read}

    def _read_streams(self, positions: Mapping[Place, str]) -> tuple[list[Place], dict[Place, Stream]]:
        places = known_places(self._broker, self.chosen.queues)
        return places, streams(self._broker, dict.fromkeys([*places, *positions]))

    def _check(self, positions: Mapping[Place, str], by_place: Mapping[Place, Stream]) -> list[plan.Loss]:
        losses = plan.find_losses(self._broker, positions, by_place)
        new = [loss for loss in losses if ((loss.queue, loss.number), loss.after) not in self._reported]
        report(new, self.chosen)
        self._reported.update(((loss.queue, loss.number), loss.after) for loss in new)
        return losses

    def _walk(self, place: Place, position: str, number: int) -> str:
        """Return the end of the last entry that is at most ``number`` events further, or of the next entry."""
        begun = position
        while page := entries(self._broker, *place, position, min(number, self.chosen.fetch)):
            for entry in page:
                if position != begun and distance(begun, entry.position) > number:
                    return position
                position = entry.position
        return position
