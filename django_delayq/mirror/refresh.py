"""Refresh of single rows from Redis, so that the effect of an action is visible at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .. import connections
from ..core.queue import Queue
from ..core.records.frames import CHUNK
from .index import Index
from .index_mirror import DELETE_CHUNK, database_of, table
from .rows import Entry, Place, Row, member_of, place_of, store


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one place of one shard; ``queue`` is None if the deployment no longer has it."""

    place: Place
    queue: Queue | None
    number: int
    rows: Sequence[Row]

    @property
    def index(self) -> Index | None:
        """Index in Redis that the rows mirror; None if the queue no longer exists."""
        return None if self.queue is None else Index(self.queue, self.number, self.place)


def grouped(rows: Iterable[Row]) -> list[Group]:
    """Return rows grouped by place, queue and shard."""
    groups: defaultdict[tuple[type[Row], str, int], list[Row]] = defaultdict(list)
    for row in rows:
        groups[type(row), row.queue, row.shard].append(row)
    broker = connections.broker()
    queues = {name: broker.known_queue(name) for name in sorted({name for _, name, _ in groups})}
    return [
        Group(place_of(model), queues[name], number, group_rows) for (model, name, number), group_rows in groups.items()
    ]


def refresh(group: Group) -> None:
    """Update these rows from Redis. Rows of jobs that no longer exist are deleted."""
    for start in range(0, len(group.rows), CHUNK):
        _refresh(group.place, group.index, group.rows[start : start + CHUNK])


def _refresh(place: Place, index: Index | None, rows: Sequence[Row]) -> None:
    if index is None:
        remove(place, rows)
        return
    scores = index.scores([member_of(row) for row in rows])
    entries = [Entry(member_of(row), score) for row, score in zip(rows, scores, strict=True) if score is not None]
    fresh = index.rows(entries)
    store(place, fresh, database_of(place))
    kept = {place.named(row) for row in fresh}
    remove(place, [row for row in rows if place.named(row) not in kept])


def remove(place: Place, rows: Sequence[Row]) -> None:
    """Delete rows of jobs that no longer exist."""
    for start in range(0, len(rows), DELETE_CHUNK):
        table(place).filter(pk__in=[row.pk for row in rows[start : start + DELETE_CHUNK]]).delete()
