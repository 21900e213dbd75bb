"""The data source ``delayq.events``: what became of every run, as a batch or as a stream.

    spark.readStream.format("delayq.events").option("redis", "redis://localhost:6379/0").load()

The streaming reader is asked by Spark, in a process of its own, how far there is something to read and what the tasks
are; the tasks read. A position is advanced in Redis when Spark says that a batch is done (option ``trim``).
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
from ..core.streams import BEGINNING, Place, Stream, begin, latest, streams
from . import event_plan as plan
from .event_plan import Offsets, Positions
from .event_reading import EventsOptions, EventsPartition, TaskReader, report
from .redis_door import open_broker
from .schemas import EVENTS

log = logging.getLogger(__name__)

#: seconds after which a consumer says again that it lives, when it has nothing else to say
STILL_HERE: Final = 60.0


class EventsSource(DataSource):
    """``delayq.events``: the events of queues, with the columns of ``schemas.EVENTS`` or some of them."""

    @classmethod
    def name(cls) -> str:
        """Its name as a format."""
        return "delayq.events"

    def schema(self) -> StructType:
        """All columns."""
        EventsOptions.parse(self.options)  # so that load() says what is wrong with them
        return EVENTS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what is there now."""
        return EventsReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads on and on."""
        return EventsStreamReader(self.options, schema)


# -- at once ---------------------------------------------------------------------------------------------------------


class EventsReader(TaskReader, DataSourceReader):
    """Reads what is there when the query is planned."""

    def partitions(self) -> list[InputPartition]:
        """One for each larger shard; smaller ones share one."""
        with open_broker(self.options) as broker:
            known = plan.known_places(broker, self.chosen.queues)
            wanted = self.chosen.start
            scene = streams(broker, {*known, *(() if isinstance(wanted, str) else wanted)})
            start = plan.starting(scene, wanted)
            if not isinstance(wanted, str):
                report(plan.find_losses(broker, start, scene), self.chosen)
            tasks = plan.intervals(broker, start, plan.ends(start, scene, known, None))
        return [EventsPartition(task) for task in tasks]


# -- on and on -------------------------------------------------------------------------------------------------------


class EventsStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on from the offsets that Spark keeps in the checkpoint."""

    def __init__(self, options: Any, schema: StructType) -> None:
        super().__init__(options, schema)
        self._reset()

    def _reset(self) -> None:
        self._door: ExitStack | None = None
        self._opened: Broker | None = None
        self._target: Positions | None = None
        self._newest: Offsets | None = None
        self._noted: Positions = {}
        self._told: set[tuple[Place, str]] = set()
        self._said_at = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need; connections and what the planner remembers stay where they are."""
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
        """Closes the connections of the planner."""
        if self._door is not None:
            self._door.close()
        self._door = self._opened = None

    # -- planning

    def initialOffset(self) -> Offsets:
        """Where a query begins that has no checkpoint yet."""
        self._say_still_here()  # first, so that nothing is taken off from now on
        wanted = self.chosen.start
        named = () if isinstance(wanted, str) else wanted
        # Also where the queues begin that are read another time: what is taken off from now on is a loss there, too.
        scene = streams(self._broker, {*plan.known_places(self._broker, self.chosen.follows), *named})
        return plan.to_offsets(plan.starting(scene, wanted))

    def getDefaultReadLimit(self) -> ReadLimit:
        """At most so many rows a batch."""
        return ReadMaxRows(self.chosen.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Offsets:
        """Up to where the next batch goes.

        Raises:
            EventsLost: something is gone that was not read.
        """
        self._say_still_here()
        positions, others = self._split(plan.to_positions(start))
        known, scene = self._look(positions)
        joined = {place: BEGINNING for place in known if place not in positions and self._is_wanted(place)}
        self._check({**positions, **joined}, scene)
        end = plan.ends(positions, scene, known, self._target)
        if isinstance(limit, ReadMaxRows):
            end = plan.limit_to(limit.max_rows, positions, end, scene, self._walk_ids)
        self._newest = plan.newest(scene, known)
        return plan.to_offsets({**others, **end})

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes from now on is left to the next query."""
        known, scene = self._look({})
        self._target = {place: scene[place].last for place in known}

    def reportLatestOffset(self) -> Offsets | None:
        """What there was at the last look, for the progress of the query."""
        return self._newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What the tasks of a batch read.

        Raises:
            EventsLost: something is gone of a shard that is read from its beginning, where no tombstone can tell it.
        """
        begun, until = plan.to_positions(start), plan.to_positions(end)
        new = {
            place: BEGINNING
            for place, position in until.items()
            if position != BEGINNING == begun.get(place, BEGINNING)
        }
        self._check(new, streams(self._broker, new))  # once more: the plan may be one of before a restart
        tasks = plan.intervals(self._broker, begun, until)
        return [EventsPartition(task) for task in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        """Spark will not ask for anything before these offsets again."""
        if not self.chosen.trim:
            return
        fresh = {
            place: position for place, position in plan.to_positions(end).items() if self._noted.get(place) != position
        }
        try:
            note_read(self._broker, self.chosen, fresh)
        except QueueUnavailable as error:
            log.warning("how far was read could not be noted, the next commit will do it: %s", error)
            return
        self._noted |= fresh
        self._said_at = time.monotonic()

    def _split(self, positions: Positions) -> tuple[Positions, Positions]:
        """Those of the queues that are read, and those that stay where they are until somebody reads them."""
        asked = self.chosen.queues
        read = {place: at for place, at in positions.items() if not asked or place[0] in asked}
        return read, {place: at for place, at in positions.items() if place not in read}

    def _look(self, positions: Mapping[Place, str]) -> tuple[list[Place], dict[Place, Stream]]:
        known = plan.known_places(self._broker, self.chosen.queues)
        return known, streams(self._broker, dict.fromkeys([*known, *positions]))

    def _is_wanted(self, place: Place) -> bool:
        return self._target is None or place in self._target

    def _check(self, positions: Mapping[Place, str], scene: Mapping[Place, Stream]) -> None:
        losses = plan.find_losses(self._broker, positions, scene)
        new = [loss for loss in losses if ((loss.queue, loss.number), loss.after) not in self._told]
        report(new, self.chosen)
        self._told.update(((loss.queue, loss.number), loss.after) for loss in new)

    def _walk_ids(self, place: Place, position: str, number: int) -> str:
        """The position so many events further."""
        while number > 0:
            found = begin(self._broker, *place, f"({position}", "+", min(number, self.chosen.fetch))()
            if not found:
                break
            position, number = found[-1][0].decode(), number - len(found)
        return position

    def _say_still_here(self) -> None:
        if self.chosen.trim and time.monotonic() - self._said_at > STILL_HERE:
            events.follow(self._broker, self.chosen.consumer, self.chosen.follows)
            self._said_at = time.monotonic()


def note_read(broker: Broker, options: EventsOptions, positions: Mapping[Place, str]) -> None:
    """Moves the consumer's cursors to these positions; a cursor never goes back."""
    queues: dict[str, dict[int, str]] = {}
    for (queue, number), position in positions.items():
        queues.setdefault(queue, {})[number] = position
    events.advance_all(broker, options.consumer, queues, options.follows)


def commit(options: Mapping[str, str], offsets: Mapping[str, Mapping[str, str]]) -> None:
    """Says for a query that has ended that it has read up to these offsets, which Spark does only when it goes on.

    Args:
        options: those of the source; ``consumer``, ``queue`` and ``follow`` count.
        offsets: ``{queue: {"<number of the shard>": "<position>"}}``, from the progress of the query.
    """
    with open_broker(options) as broker:
        note_read(broker, EventsOptions.parse(options), plan.to_positions(offsets))


def read_before(options: Mapping[str, str]) -> str | None:
    """The newest position that the consumer of a source has noted in Redis, in whatever shard; None = it has none."""
    with open_broker(options) as broker:
        noted = [one.cursor for one in events.lag(broker, EventsOptions.parse(options).consumer)]
    newest = latest(BEGINNING, *noted)
    return None if newest == BEGINNING else newest
