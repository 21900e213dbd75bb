"""State of a history: kept data and progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

from ..core import events
from .lake import EVENTS_TABLE, Lake, folder_of
from .landing import read_offsets
from .tables import Table

if TYPE_CHECKING:
    from ..core.broker import Broker


@dataclass(frozen=True, slots=True)
class Day:
    """Data kept for one day."""

    day: date
    #: folders of events, and the files in them
    batches: int
    files: int
    #: by table
    bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Status:
    """State of a history."""

    days: tuple[Day, ...]
    #: days whose metrics have to be computed or published again
    pending: tuple[date, ...]
    #: queue → number of the shard → position up to which everything is landed
    offsets: Mapping[str, Any] = field(default_factory=dict)
    #: lag by shard; None = not requested
    lag: tuple[events.Lag, ...] | None = None

    @property
    def bytes(self) -> int:
        """Total size in bytes."""
        return sum(sum(day.bytes.values()) for day in self.days)

    @property
    def behind(self) -> int | None:
        """Upper bound of the number of events still to be read; None = unknown."""
        return None if self.lag is None else sum(each.events for each in self.lag)


def status_of(
    lake: Lake, tables: Mapping[str, Table], consumer: str, door: Callable[[], AbstractContextManager[Broker]] | None
) -> Status:
    """Return the state from the folders, the notes and, through ``door``, the streams. Reads no table."""
    days = {*lake.days(EVENTS_TABLE)}.union(*(table.days() for table in tables.values()))
    lag = None
    if door is not None:
        with door() as broker:
            lag = tuple(events.lag(broker, consumer))
    return Status(
        tuple(_day(lake, tables, day) for day in sorted(days)), tuple(lake.pending()), read_offsets(lake, consumer), lag
    )


def _day(lake: Lake, tables: Mapping[str, Table], day: date) -> Day:
    raw, files = lake.files.size(folder_of(EVENTS_TABLE, day))
    sizes = {EVENTS_TABLE: raw, **{name: table.size(day)[0] for name, table in tables.items()}}
    return Day(day, len(lake.batches(day)), files, sizes)
