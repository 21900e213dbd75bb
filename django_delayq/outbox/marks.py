"""The duty of taking down how durable jobs ended: the script that ends one leaves a mark, and its row waits for it.

A mark is forgotten only after the change of its row was committed, and only if it is still the same one; before that,
Redis answers ``known`` to everybody who would send the job again. Rows under a claim, or locked by a transaction, keep
their marks: somebody may be about to send them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from django.db.models.functions import Now

from ..core.settled import MOST_MARKS, Mark
from ..models import OutboxJob
from .claims import Outbox
from .rows import free

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.queue import Queue
    from ..worker.changes import Changes

State = OutboxJob.State

#: seconds in which the ends of jobs are collected, so that they are taken down together
GATHER: Final = 0.2
#: longest seconds until another look at marks that could not be taken down; the first ones come sooner, because most
#: rows are only locked for a moment, and a mark that waits is lost if Redis is
AGAIN: Final = 1.0
_FOR_EVER: Final = 3600.0
#: from which states a mark leads where; one that finds its row elsewhere has nothing to say any more
_BURIED_FROM: Final = (State.UNSENT, State.SENT, State.MOVED)


class Marks:
    """See the module.

    Args:
        outboxes: of all databases that have one; a mark does not say to which of them it belongs.
        broker: where the marks are.
        changes: tells in which shards.
    """

    def __init__(self, outboxes: Sequence[Outbox], broker: DjangoBroker, changes: Changes) -> None:
        self._outboxes = outboxes
        self._broker = broker
        self._changes = changes
        #: shards with marks, and from when on they may be asked for (monotonic)
        self._places: dict[tuple[str, int], float] = {}
        #: the last pause before another look at a shard
        self._pauses: dict[tuple[str, int], float] = {}
        self._next = 0.0

    def attach(self, ring: Callable[[], None]) -> None:
        """``ring`` ends the rest of this duty's loop."""
        self._changes.subscribe(ring)

    def run(self) -> float:
        """Takes down what has been marked. Returns the seconds until the next time."""
        now = time.monotonic()
        if now < self._next:
            return self._next - now
        for place in self._changes.take("settled"):
            self._places[place] = now
        for place, at in list(self._places.items()):
            if at <= now:
                self._places[place] = time.monotonic() + AGAIN  # if the next line raises
                if self.take_down(*place)[1]:
                    pause = self._pauses[place] = min(AGAIN, 2 * self._pauses.get(place, GATHER / 2))
                    self._places[place] = time.monotonic() + pause
                else:
                    del self._places[place]
                    self._pauses.pop(place, None)
        now = time.monotonic()
        self._next = now + GATHER
        return max(GATHER, min(self._places.values(), default=now + _FOR_EVER) - now)

    def take_down(self, queue: str, shard: int) -> tuple[int, int]:
        """Takes down the marks of a shard. Returns how many, and how many have to wait for now."""
        opened = self._broker.existing(queue)
        return (0, 0) if opened is None else self._work_off(opened, shard)

    def _work_off(self, queue: Queue, shard: int) -> tuple[int, int]:
        done: list[Mark] = []
        count = 0
        while True:
            page = queue.settled(shard, forget=done)
            count += len(done)
            kept = self.apply(page) if page else set()
            done = [mark for mark in page if mark.key not in kept]
            if not done:
                return count, len(kept)

    def apply(self, marks: Sequence[Mark]) -> set[bytes]:
        """Changes the rows of some marks. Returns the keys of those whose rows could not be changed now."""
        kept: set[bytes] = set()
        for start in range(0, len(marks), MOST_MARKS):
            for outbox in self._outboxes:
                kept |= _apply(outbox, marks[start : start + MOST_MARKS])
        return kept


def _apply(outbox: Outbox, marks: Sequence[Mark]) -> set[bytes]:
    ends = {uuid.UUID(bytes=mark.key): mark.end for mark in marks}
    with outbox.atomic():
        rows = outbox.unlocked(outbox.rows.filter(free(), key__in=ends)).order_by("id")
        found = dict(rows.values_list("id", "key"))
        for end in set(ends.values()):
            mine = outbox.rows.filter(free(), pk__in=[pk for pk, key in found.items() if ends[key] == end])
            if end == "done":
                mine.delete()
            elif end == "buried":
                mine.filter(state__in=_BURIED_FROM).update(
                    state=State.BURIED, claim=None, claimed_until=None, checked_at=Now()
                )
            else:
                mine.filter(state=State.BURIED).update(state=State.SENT)
    left = outbox.rows.filter(key__in=ends).values_list("key", "state")
    return {key.bytes for key, state in left if _is_open(ends[key], state)}


def _is_open(end: str, state: str) -> bool:
    """Whether a mark has still to be taken down on a row in this state."""
    if end == "done":
        return True
    return state in _BURIED_FROM if end == "buried" else state == State.BURIED


def places(queues: Iterable[Queue]) -> Iterator[tuple[str, int]]:
    """All shards of some queues."""
    for queue in queues:
        yield from ((queue.name, number) for number in queue.numbers)
