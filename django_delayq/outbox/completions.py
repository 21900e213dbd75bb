"""Dispatcher duty that stores how durable jobs ended.

The script that ends a durable job leaves a mark in Redis. A mark is deleted only after the change of its row was
committed, and only if it is still the same mark. Until then Redis answers ``known`` to every attempt to send the job
again. Rows that are claimed, or locked by a transaction, keep their marks, because a process may be about to send them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from django.db.models.functions import Now
from django.db.utils import Error as DatabaseError

from ..core.outcomes import MOST_MARKS, CompletionMark
from ..models import OutboxJob
from ..worker.parts import Parts
from .claims import Outbox
from .rows import chunks, free

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.queue import Queue
    from ..worker.changes import Changes

State = OutboxJob.State

#: seconds for which the ends of jobs are collected, so that they are stored together
GATHER: Final = 0.2
#: longest seconds until marks that could not be stored are tried again; the first retries come sooner, because most
#: rows are locked only for a moment, and a waiting mark is lost if Redis is
AGAIN: Final = 1.0
_FOR_EVER: Final = 3600.0
#: states from which a mark changes a row; a mark for a row in another state is obsolete
_BURIED_FROM: Final = (State.UNSENT, State.SENT, State.MOVED)


class Marks:
    """Duty that stores how durable jobs ended.

    Args:
        outboxes: outboxes of all databases that have one; a mark does not name its database.
        changes: names the shards with new marks.
    """

    def __init__(self, outboxes: Sequence[Outbox], broker: DjangoBroker, changes: Changes) -> None:
        self._outboxes = outboxes
        self._broker = broker
        self._changes = changes
        #: shards with marks, and the time from which on they may be read (monotonic)
        self._places: dict[tuple[str, int], float] = {}
        #: last pause before the next read of a shard
        self._pauses: dict[tuple[str, int], float] = {}
        self._next = 0.0
        self._shards = Parts("marks", broker, shared=(DatabaseError,))
        self._databases = Parts("marks", shared=(DatabaseError,) if len(outboxes) == 1 else ())

    def attach(self, ring: Callable[[], None]) -> None:
        """Subscribe ``ring``, which wakes this duty's loop."""
        self._changes.subscribe(ring)

    def run(self) -> float:
        """Store the marks that are due. Return the seconds until the next turn."""
        now = time.monotonic()
        if now < self._next:
            return self._next - now
        for place in self._changes.take("marks"):
            self._places[place] = now
        for place, at in list(self._places.items()):
            if at <= now:
                self._places[place] = time.monotonic() + AGAIN  # in case the next line fails
                self._shards.attempt(place, partial(self._take_down_or_postpone, place))
        now = time.monotonic()
        self._next = now + GATHER
        return max(GATHER, min(self._places.values(), default=now + _FOR_EVER) - now)

    def _take_down_or_postpone(self, place: tuple[str, int]) -> None:
        if self.take_down(*place)[1]:
            pause = self._pauses[place] = min(AGAIN, 2 * self._pauses.get(place, GATHER / 2))
            self._places[place] = time.monotonic() + pause
        else:
            del self._places[place]
            self._pauses.pop(place, None)

    def take_down(self, queue: str, shard: int) -> tuple[int, int]:
        """Store the marks of a shard. Return how many were stored, and how many have to wait for now."""
        opened = self._broker.existing(queue)
        return (0, 0) if opened is None else self._store_page_by_page(opened, shard)

    def _store_page_by_page(self, queue: Queue, shard: int) -> tuple[int, int]:
        stored: list[CompletionMark] = []
        count = 0
        while True:
            page = queue.marks(shard, forget=stored)
            count += len(stored)
            waiting = self.apply(page) if page else set()
            stored = [mark for mark in page if mark.key not in waiting]
            if not stored:
                return count, len(waiting)

    def apply(self, marks: Sequence[CompletionMark]) -> set[bytes]:
        """Change the rows of some marks. Return the keys of those whose rows could not be changed now.

        A mark does not name its database, so it waits while one of several databases cannot be reached. The rows in the
        others are changed nevertheless.
        """
        waiting: set[bytes] = set()
        for chunk in chunks(marks, MOST_MARKS):
            for outbox in self._outboxes:
                changed: list[set[bytes]] = []
                self._databases.attempt(outbox.alias, lambda: changed.append(_apply(outbox, chunk)))  # noqa: B023
                waiting |= changed[0] if changed else {mark.key for mark in chunk}
        return waiting


def _apply(outbox: Outbox, marks: Sequence[CompletionMark]) -> set[bytes]:
    ends = {uuid.UUID(bytes=mark.key): mark.end for mark in marks}
    with outbox.atomic():
        rows = outbox.unlocked(outbox.rows.filter(free(), key__in=ends)).order_by("id")
        keys = dict(rows.values_list("id", "key"))
        for end in set(ends.values()):
            mine = outbox.rows.filter(free(), pk__in=[pk for pk, key in keys.items() if ends[key] == end])
            if end == "done":
                mine.delete()
            elif end == "buried":
                mine.filter(state__in=_BURIED_FROM).update(
                    state=State.BURIED, claim=None, claimed_until=None, checked_at=Now()
                )
            else:
                mine.filter(state=State.BURIED).update(state=State.SENT)
    remaining = outbox.rows.filter(key__in=ends).values_list("key", "state")
    return {key.bytes for key, state in remaining if _is_open(ends[key], state)}


def _is_open(end: str, state: str) -> bool:
    """Return True if a mark still has to be stored in a row in this state."""
    if end == "done":
        return True
    return state in _BURIED_FROM if end == "buried" else state == State.BURIED


def places(queues: Iterable[Queue]) -> Iterator[tuple[str, int]]:
    """Yield all shards of some queues."""
    for queue in queues:
        yield from ((queue.name, number) for number in queue.numbers)
