"""State of a history: kept data and progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

from ..core import events
from .event_plan import to_positions
from .store import Store, pending_days, read_offsets
from .versions import LiveFile, Versions

if TYPE_CHECKING:
    from ..core.broker import Broker


@dataclass(frozen=True, slots=True)
class Day:
    """Size of the stored data of one day."""

    day: date
    #: number of files with events; a batch writes some, and a compaction leaves one for each hour
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
    store: Store,
    tables: Mapping[str, Versions],
    consumer: str,
    door: Callable[[], AbstractContextManager[Broker]] | None,
) -> Status:
    """Return the state from the tables' logs, the marks and, through ``door``, the streams. Reads no table."""
    files = {name: table.files() for name, table in tables.items()}
    lag = None
    if door is not None:
        with door() as broker:
            lag = lag_of(broker, store, consumer)
    days = {file.day for some in files.values() for file in some}
    return Status(
        tuple(_day(files, day) for day in sorted(days)),
        tuple(pending_days(store)),
        read_offsets(store, consumer),
        lag,
    )


def lag_of(broker: Broker, store: Store, consumer: str) -> tuple[events.Lag, ...]:
    """Return the lag of a history in each shard, from the positions in its checkpoint. Needs no Spark."""
    return tuple(events.lag(broker, to_positions(read_offsets(store, consumer))))


def _day(files: Mapping[str, Sequence[LiveFile]], day: date) -> Day:
    own = {name: [file for file in some if file.day == day] for name, some in files.items()}
    return Day(day, len(own["events"]), {name: sum(file.bytes for file in some) for name, some in own.items()})
