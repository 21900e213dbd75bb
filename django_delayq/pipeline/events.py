"""Data source ``delayq.events``: the outcome of every attempt, as a batch or as a stream.

    spark.readStream.format("delayq.events").option("redis", "redis://localhost:6379/0").load()

Spark runs the streaming reader in a process of its own to plan offsets and partitions; the tasks read them. Positions
are advanced in Redis when Spark commits a batch (option ``trim``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ..core import events
from ..core.broker import Broker
from ..core.errors import QueueUnavailable
from ..core.records.events import BEGINNING, latest
from ..core.streams import Place, Stream, entries, streams
from . import event_plan as plan
from .event_plan import Offsets, Positions
from .event_reading import EventsOptions, EventsPartition, TaskReader, report
from .redis_options import config_of, open_broker
from .schemas import EVENTS

log = logging.getLogger(__name__)

#: seconds after which an idle consumer renews its registration
REGISTRATION_SECONDS: Final = 60.0


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
            places = plan.known_places(broker, self.chosen.queues)
            start_option = self.chosen.start
            by_place = streams(broker, {*places, *(() if isinstance(start_option, str) else start_option)})
            start = plan.starting(by_place, start_option)
            if not isinstance(start_option, str):
                report(plan.find_losses(broker, start, by_place), self.chosen)
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
        self._committed: Positions = {}
        self._reported: set[tuple[Place, str]] = set()
        self._registered_at = float("-inf")

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
        self._renew_registration()  # register first, so that nothing is trimmed from now on
        start_option = self.chosen.start
        named = () if isinstance(start_option, str) else start_option
        # Include the queues that are read another time: events trimmed from now on are a loss there, too.
        by_place = streams(self._broker, {*plan.known_places(self._broker, self.chosen.follows), *named})
        return plan.to_offsets(plan.starting(by_place, start_option))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the configured maximum number of rows per batch."""
        return ReadMaxRows(self.chosen.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Offsets:
        """Return the end of the next batch.

        Raises:
            EventsLost: unread events are gone.
        """
        self._renew_registration()
        positions, others = self._split(plan.to_positions(start))
        places, by_place = self._read_streams(positions)
        new = [place for place in places if place not in positions]
        joined = {place: BEGINNING for place in new if self._target is None or place in self._target}
        self._check({**positions, **joined}, by_place)
        end = plan.ends(positions, by_place, places, self._target)
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

    def commit(self, end: dict[str, Any]) -> None:
        """Store the committed offsets, which Spark will never request again."""
        if not self.chosen.trim:
            return
        fresh = {
            place: position
            for place, position in plan.to_positions(end).items()
            if self._committed.get(place) != position
        }
        try:
            store_positions(self._broker, self.chosen, fresh)
        except QueueUnavailable as error:
            log.warning("the read positions could not be stored; the next commit stores them: %s", error)
            return
        self._committed |= fresh
        self._registered_at = time.monotonic()

    def _split(self, positions: Positions) -> tuple[Positions, Positions]:
        """Return the positions of the queues that are read, and those of the others, which stay unchanged."""
        queues = self.chosen.queues
        read = {place: at for place, at in positions.items() if not queues or place[0] in queues}
        return read, {place: at for place, at in positions.items() if place not in read}

    def _read_streams(self, positions: Mapping[Place, str]) -> tuple[list[Place], dict[Place, Stream]]:
        places = plan.known_places(self._broker, self.chosen.queues)
        return places, streams(self._broker, dict.fromkeys([*places, *positions]))

    def _check(self, positions: Mapping[Place, str], by_place: Mapping[Place, Stream]) -> None:
        losses = plan.find_losses(self._broker, positions, by_place)
        new = [loss for loss in losses if ((loss.queue, loss.number), loss.after) not in self._reported]
        report(new, self.chosen)
        self._reported.update(((loss.queue, loss.number), loss.after) for loss in new)

    def _walk(self, place: Place, position: str, number: int) -> str:
        """Return the position ``number`` events further."""
        while number > 0:
            page = entries(self._broker, *place, position, None, min(number, self.chosen.fetch))
            if not page:
                break
            for entry in page:
                # The position may lie in the middle of an entry.
                position = f"{entry.ms}-{entry.last - max(0, entry.size - number)}"
                number -= min(number, entry.size)
                if not number:
                    break
        return position

    def _renew_registration(self) -> None:
        if self.chosen.trim and time.monotonic() - self._registered_at > REGISTRATION_SECONDS:
            events.follow(self._broker, self.chosen.consumer, self.chosen.follows)
            self._registered_at = time.monotonic()


def store_positions(broker: Broker, options: EventsOptions, positions: Mapping[Place, str]) -> None:
    """Move the consumer's cursors forward to these positions; a cursor never moves back."""
    queues: dict[str, dict[int, str]] = {}
    for (queue, number), position in positions.items():
        queues.setdefault(queue, {})[number] = position
    events.advance_all(broker, options.consumer, queues, options.follows, keep=options.keep)


def commit(options: Mapping[str, str], offsets: Mapping[str, Mapping[str, str]]) -> None:
    """Store the final offsets of a query that has ended; Spark itself commits them only when the query continues.

    Args:
        options: options of the source; ``consumer``, ``queue`` and ``follow`` are used.
        offsets: ``{queue: {"<number of the shard>": "<position>"}}``, from the progress of the query.
    """
    with open_broker(options) as broker:
        store_positions(broker, EventsOptions.parse(options), plan.to_positions(offsets))


def read_before(options: Mapping[str, str]) -> str | None:
    """Return the newest position that the consumer of a source has stored in Redis, over all shards; None = none."""
    with open_broker(options) as broker:
        cursors = [one.cursor for one in events.lag(broker, EventsOptions.parse(options).consumer)]
    newest = latest(BEGINNING, *cursors)
    return None if newest == BEGINNING else newest
